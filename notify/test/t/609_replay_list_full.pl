# A standby that has no room to remember another transaction that has written messages:
# the commit of that transaction disconnects listeners, and all channels have changed since
# positions from before it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use Test::More;

my $library = compile_interference();
my $primary = new_node('primary', init => { allows_streaming => 1 }, max_connections => 20,
	preload => "$library, pg_pinpoint", conf => 'pinpoint.replicate = on');
my $admin = connect_to($primary);
$admin->run('CREATE TABLE rows (i int)');
$admin->run("CREATE FUNCTION emit(bytea) RETURNS void AS '$library', 'interference_emit' LANGUAGE C");
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_pinpoint'");
$standby->start;
my $client = connect_to($standby);

sub catch_up
{
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	return;
}

sub changed
{
	my ($position, @channels) = @_;
	return $client->value("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', "
		  . join(', ', map { "'$_'" } @channels) . ')');
}

# No transaction of this library writes messages in subtransactions; these are enough for
# any list that has room for two of each possible session.
my $fills = connect_to($primary);
$fills->run('BEGIN');
$fills->run(
	q{DO $$
	BEGIN
		FOR i IN 1 .. 1000 LOOP
			BEGIN
				PERFORM emit(convert_to(E'1 1 1 1 56 8\n', 'UTF8'));
			EXCEPTION WHEN division_by_zero THEN
				NULL;
			END;
		END LOOP;
	END $$});

my $listener = connect_to($standby);
$listener->run('LISTEN a');
my $notifies = connect_to($primary);
begin_and_pause($admin, $notifies, 'pre_commit', q(BEGIN; INSERT INTO rows VALUES (1); NOTIFY a; COMMIT));
$admin->run('INSERT INTO rows VALUES (2)');
catch_up();
is($client->value('SELECT array_agg(i) FROM rows'), '{2}', 'a transaction has written its message, and is not visible');
is($listener->query('SELECT 1')->error, undef, 'it disconnects nobody yet');
my $position;
ok( wait_until(
		sub {
			$position = $client->value('SELECT pinpoint.position()');
			return changed($position, 'a', 'never') eq '';
		}),
	'the standby knows that the primary replicates, and nothing has changed');

open_gate();
is($notifies->result->error, undef, 'it commits');
catch_up();
is($client->value('SELECT count(*) FROM rows WHERE i = 1'), 1, 'and is visible');
is(changed($position, 'a', 'never'), 'a never', 'all channels have changed');
my ($error) = map { $_->{fields} } grep { $_->{type} eq 'E' } $listener->receive_until('EOF')->messages;
is($error->{C}, '57P01', 'the listener is disconnected');

# When the others have ended there is room again.
$fills->run('ROLLBACK');
$admin->run('CHECKPOINT');
catch_up();
$listener = connect_to($standby);
$listener->run('LISTEN a');
$position = $client->value('SELECT pinpoint.position()');
$admin->run(q(NOTIFY a, 'room'));
is(as_text($listener->wait_for(1)), 'a/room', 'with room again all is delivered');
is(changed($position, 'a'), 'a', 'and counted');

$_->close for $fills, $notifies, $listener;
server_is_clean($client, 'nothing is left');

done_testing();
