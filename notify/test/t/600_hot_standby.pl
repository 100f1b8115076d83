# A standby refuses NOTIFY as PostgreSQL does, and LISTEN where the extension is not;
# and serves them once it is promoted.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use Test::More;

my $primary = new_node('primary', init => { allows_streaming => 1 });
$primary->safe_psql('postgres', 'CREATE DATABASE no_extension');
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
$primary->wait_for_catchup($standby);

# In a database with the extension and in one without: the same texts.
my %session = map { $_ => connect_to($standby, dbname => $_) } qw(postgres no_extension);
foreach my $dbname (sort keys %session)
{
	my $session = $session{$dbname};
	foreach my $sql ('NOTIFY a', "NOTIFY a, 'payload'",
		"SELECT pg_notify('a', 'payload')", "SELECT pg_notify('', NULL)")
	{
		error_is($session->query($sql),
			'25006', 'cannot execute NOTIFY during recovery', undef,
			"$dbname: $sql is refused");
	}
	is($session->query($_)->error, undef, "$dbname: $_ is allowed")
	  for 'UNLISTEN a', 'UNLISTEN *', 'DISCARD ALL',
	  'SELECT pg_listening_channels()', 'SELECT pg_notification_queue_usage()';
	is($session->query('BEGIN; UNLISTEN *; COMMIT')->types,
		'CCCZ', "$dbname: UNLISTEN in a transaction");
}
error_is($session{no_extension}->query('LISTEN a'),
	'25006', 'cannot execute LISTEN during recovery', undef,
	'LISTEN is refused where the extension is not');
is($session{postgres}->query('LISTEN a')->error, undef, 'and allowed where it is');
$session{postgres}->run('UNLISTEN a');
is(stat_queue($session{postgres})->{published}, 0,
	'the view of the queue can be read on a standby');
is( $session{postgres}->value('SELECT count(*) FROM pinpoint.stat_listeners'),
	0, 'and that of the listeners, of which there are none');

# Without pinpoint.replicate the primary's notifications do not travel to it.
my $on_primary = connect_to($primary);
$on_primary->run("LISTEN a; NOTIFY a, 'on the primary'");
is(as_text($on_primary->wait_for(1)), 'a/on the primary', 'the primary works');

$standby->promote;
foreach my $dbname (sort keys %session)
{
	my $old = $session{$dbname};
	my $new = connect_to($standby, dbname => $dbname);
	ok( wait_until(sub { $old->value('SELECT pg_is_in_recovery()') eq 'f' }),
		"$dbname: promoted");
	$_->run('LISTEN a') for $old, $new;
	$old->run("NOTIFY a, 'from the old'");
	$new->run("SELECT pg_notify('a', 'from the new')");
	is_deeply(
		all_as_text($_->wait_for(2)),
		[ 'a/from the old', 'a/from the new' ],
		"$dbname: LISTEN and NOTIFY work")
	  for $old, $new;
	$new->close;
	$old->run('UNLISTEN *');
}
is(stat_queue($session{postgres})->{published}, 2, 'through the engine');
server_is_clean($session{postgres}, 'nothing is left');

done_testing();
