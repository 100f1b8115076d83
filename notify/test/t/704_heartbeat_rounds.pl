# The position of a heartbeat covers nothing that is held back, however the commits that
# hold it back end.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node = new_node('main', conf => 'pinpoint.heartbeat_interval = 100ms', init => { allows_streaming => 1 });
my %local = (options => '-c synchronous_commit=local');
my ($observer, $writer, $beats) = connect_many($node, 3, %local);
$observer->run('CREATE TABLE rows (what text)');
$beats->run('LISTEN pinpoint_heartbeat');

sub changed
{
	my ($position) = @_;
	return $observer->value(
		"SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', 'slow', 'last')");
}

# The position of a heartbeat that was sent from now on: the first one may be older.
sub new_heartbeat
{
	$beats->query('');
	$beats->take_notifications;
	my (undef, $beat) = $beats->wait_for(2);
	return (split / /, $beat->{payload})[0];
}

# Three commits wait one behind the other, and a fourth one does not.
$observer->run(q{ALTER SYSTEM SET synchronous_standby_names = 'nobody'});
$observer->run('SELECT pg_reload_conf()');
wait_until_commits_wait($node);
my @slow;
for (1 .. 3)
{
	my $session = connect_to($node);
	push @slow, $session;
	$session->send_query(q{BEGIN; INSERT INTO rows VALUES ('slow'); NOTIFY slow; COMMIT});
	wait_until(
		sub {
			$observer->value(q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = } . $session->pid);
		}) or die 'it does not wait';
}
$writer->run(q{INSERT INTO rows VALUES ('last'); NOTIFY last});
is(changed(new_heartbeat()), 'last', 'what is held back is not covered');

for my $i (0 .. 2)
{
	$observer->run('SELECT pg_cancel_backend(' . $slow[$i]->pid . ')');
	is($slow[$i]->result->error, undef, 'a slow commit ends');
	my $changed = changed(new_heartbeat());
	if ($i < 2) { like($changed, qr/last/, 'and another one still holds it back'); }
	else        { is($changed, '', 'and all is covered'); }
}

done_testing();
