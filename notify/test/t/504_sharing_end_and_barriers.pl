# Sessions that share a channel end one after the other.  While one waits for its turn, it
# closes its files when others ask for it, so that DROP DATABASE does not wait.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node    = new_node('main');
my $library = compile_interference();
my ($observer, $slow) = connect_many($node, 2);
my ($stays, @leave) = connect_many($node, 4, options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1');
$observer->run('CREATE DATABASE dropped');
$slow->run("LOAD '$library'");
$slow->run("CREATE FUNCTION hold_reassignment() RETURNS void LANGUAGE c AS '$library', 'interference_hold_reassignment'");
foreach my $session ($stays, @leave)
{
	$session->run($_) for 'LISTEN c', 'BEGIN';
}
$observer->run("NOTIFY c, '$_'") for 1 .. 8;

begin_and_pause($observer, $slow, 'nowhere', 'SELECT hold_reassignment()');
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

$_->close for $stays, $slow;
server_is_clean($observer, 'nothing is left');

done_testing();
