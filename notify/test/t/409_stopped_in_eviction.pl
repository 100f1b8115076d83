# A process stops after it has marked a listener that is too far behind, and before it ends its
# session: the waker, another sender or the session itself does so.

use strict;
use warnings;

use FindBin;
use POSIX ();
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my ($environment, $stop_at_signal) = compile_stop_at_signal();
local @ENV{ keys %$environment } = values %$environment;
my $node = new_node('main', conf => "pinpoint.max_listener_lag = 64kB\npinpoint.on_lag = disconnect");
my $observer = connect_to($node);
my $reason   = 'The backlog of this listener exceeded "pinpoint.max_listener_lag".';

# The server cannot be stopped while one of its processes is.
my @stopped;
sub go_on { kill 'CONT', splice @stopped; return; }
END { my $status = $?; go_on(); $? = $status; }

# A listener that is marked, and not signalled: the sender has stopped.
sub mark
{
	my $listener = connect_to($node);
	my $sender   = connect_to($node);
	$listener->run($_) for 'LISTEN c', 'BEGIN', 'SELECT 1';
	$stop_at_signal->($sender->pid, POSIX::SIGTERM());
	$sender->send_query(q{DO $$ BEGIN LOOP PERFORM pg_notify('c', repeat('x', 7000)); COMMIT; END LOOP; END $$});
	push @stopped, $sender->pid;
	ok(wait_until(sub { is_stopped($sender->pid) }), 'a sender stops before it ends the session of a listener');
	return ($listener, $sender);
}

# The listener is told why its session ends.
sub ends
{
	my ($listener, $sender, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_deeply([ @{ $listener->receive_until('E')->error }{qw(C D)} ], [ '57P01', $reason ], $name);
	go_on();
	$observer->run('SELECT pg_terminate_backend(' . $sender->pid . ')');
	$sender->result;
	return;
}

ends(mark(), 'the waker ends the session');

# ---- without a waker

$observer->close;
$node->append_conf('postgresql.conf', 'pinpoint.waker = off');
$node->restart;
($observer, my $other) = connect_many($node, 2);

my @marked = mark();
ok( wait_until(sub { $other->run('NOTIFY other'); return !$observer->value('SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $marked[0]->pid) }),
	'another sender ends the session');
ends(@marked, 'with the reason');

@marked = mark();
$marked[0]->send_query('COMMIT');
ends(@marked, 'the session ends by itself, when its transaction ends');

$other->close;
server_is_clean($observer, 'nothing is left');

done_testing();
