# Sessions that share a channel end one after the other.  While one waits for its turn, it
# closes its files when others ask for it, so that DROP DATABASE does not wait.  If that
# fails, its notifications come to others nevertheless.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

# With data_sync_retry, a file that cannot be closed is no reason to end the server.
my $node    = new_node('main', conf => 'data_sync_retry = on');
my $library = compile_interference();
my $hold    = q{SELECT hold_reassignment(size) FROM pg_shmem_allocations WHERE name = 'pg_pinpoint turns'};
my ($observer, $slow) = connect_many($node, 2);
my ($stays, @leave) = connect_many($node, 4, options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1');
$observer->run('CREATE DATABASE dropped');
$slow->run("LOAD '$library'");
$slow->run("CREATE FUNCTION hold_reassignment(bigint) RETURNS void LANGUAGE c AS '$library', 'interference_hold_reassignment'");
foreach my $session ($stays, @leave)
{
	$session->run($_) for 'LISTEN c', 'BEGIN';
}
$observer->run("NOTIFY c, '$_'") for 1 .. 8;

begin_and_pause($observer, $slow, 'nowhere', $hold);
my $leaving = 'FROM pg_stat_activity WHERE pid IN (' . join(',', map { $_->pid } @leave) . ')';
$observer->run("SELECT pg_terminate_backend(pid) $leaving");
ok( wait_until(sub { $observer->value("SELECT count(*) $leaving AND wait_event = 'PinpointReassignment'") == @leave }),
	'sessions that end wait for their turn');

# Cancelled, if it waits for them.
$observer->run('SET statement_timeout = ' . 500 * $PostgreSQL::Test::Utils::timeout_default);
is($observer->query('DROP DATABASE dropped')->error, undef, 'DROP DATABASE does not wait for them');
$observer->run('RESET statement_timeout');
is($observer->value("SELECT count(*) $leaving"), scalar @leave, 'and they wait still');

open_gate();
is($slow->result->error, undef, 'they get their turn');
$stays->run('COMMIT');
is_deeply(
	[ sort map { $_->{payload} } $stays->wait_for(8) ],
	[ 1 .. 8 ],
	'and what was assigned to them comes to the session that stays');


# ---- a barrier fails

my $fails = connect_to($node, options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1');
$stays->run('BEGIN');
$fails->run('LISTEN c');
$fails->run("CREATE FUNCTION fail_barrier() RETURNS void LANGUAGE c AS '$library', 'interference_fail_barrier'");
$fails->run('CREATE TABLE open_file AS SELECT 1');
$fails->run($_) for 'SELECT fail_barrier()', 'BEGIN', 'SELECT count(*) FROM open_file';
$observer->run("NOTIFY c, '$_'") for 1 .. 8;
$observer->run('CREATE DATABASE dropped');
begin_and_pause($observer, $slow, 'nowhere', $hold);
$observer->run('SELECT pg_terminate_backend(' . $fails->pid . ')');
my $of_fails = 'FROM pg_stat_activity WHERE pid = ' . $fails->pid;
ok(wait_until(sub { $observer->value("SELECT count(*) $of_fails AND wait_event = 'PinpointReassignment'") }),
	'a session waits for its turn');
is($observer->query('DROP DATABASE dropped')->error, undef, 'DROP DATABASE ends when the session ends, which fails to close its files');
ok($node->log_contains('FATAL:  interference: the barrier fails'), 'it fails');
ok(wait_until(sub { !$observer->value("SELECT count(*) $of_fails") }), 'and ends without its turn');
$stays->run('COMMIT');
is_deeply(
	[ sort map { $_->{payload} } $stays->wait_for(8) ],
	[ 1 .. 8 ],
	'what was assigned to it comes to the session that stays');
open_gate();
is($slow->result->error, undef, 'others can take their turn');

$_->close for $stays, $slow;
server_is_clean($observer, 'nothing is left');

done_testing();
