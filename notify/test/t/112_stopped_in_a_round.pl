# A waker that stops in a round: it has taken signals from its list and has not sent them.  The
# sessions are signalled all the same, also if the session that has left the signals ends.  So
# are sessions in pinpoint.wait(), also if a sender stops.  110_stopped_waker.pl has a waker that
# stops between two rounds.

use strict;
use warnings;

use FindBin;
use POSIX ();
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my ($environment, $stop_at_signal) = compile_stop_at_signal();
local @ENV{ keys %$environment } = values %$environment;
my $node = new_node('main', max_connections => 100);
my ($observer, $sender) = connect_many($node, 2);
my $waker = $observer->value(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker'});

# The server cannot be stopped while the waker does not run.
sub go_on { kill 'CONT', $waker, $sender->pid; return; }
END { my $status = $?; go_on() if $waker; $? = $status; }

# Sessions that listen and sleep.  Each has been signalled before.
my @crowd;
sub let_listen
{
	my ($count) = @_;
	$_->close for @crowd;
	@crowd = connect_many($node, $count);
	$_->run('LISTEN b') for @crowd;
	crowd_gets('healthy', "$count listeners");
	return;
}

sub crowd_gets
{
	my ($payload, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$sender->run("NOTIFY b, '$payload'") if $payload eq 'healthy';
	is_deeply([ map { as_text($_->wait_for(1)) } @crowd ], [ ("b/$payload") x @crowd ], $name);
	wait_until(sub { !grep { !is_asleep($_) } @crowd }) or die 'somebody is busy';
	return;
}

# A round of the waker sends up to 16 signals.
foreach my $count (12, 16, 60)
{
	let_listen($count);
	$stop_at_signal->($waker, POSIX::SIGUSR1());
	$sender->run(q(NOTIFY b, 'taken'));
	ok(wait_until(sub { is_stopped($waker) }), 'the waker stops before it sends a signal');
	crowd_gets('taken', "the session that has left $count signals sends them, and nobody else does anything");
	go_on();
	crowd_gets('healthy', 'the waker goes on');
}

# ---- the session that has left the signals ends

# The waker begins a round while the session ends, and stops in the round.  On a slow machine,
# the session may do its work before.
my $stopped = 0;
foreach my $try (1 .. 5)
{
	stop_waker($observer);
	$stop_at_signal->($waker, POSIX::SIGUSR1());
	my $ends = connect_to($node);
	$ends->send_query(q(NOTIFY b, 'ended'));
	$ends->close;
	go_on();
	crowd_gets('ended', "try $try: a session that ends sends the signals that it has left");
	$stopped++ if is_stopped($waker);
	$stop_at_signal->(0, 0);
	go_on();
	crowd_gets('healthy', 'the waker goes on');
}
note("the waker has stopped $stopped times");

$_->close for @crowd;

# ---- sessions in pinpoint.wait(), which the one that stops has taken from a list

my @waiting = connect_many($node, 40);
foreach my $stops ($waker, $sender->pid)
{
	my $position = $observer->value('SELECT pinpoint.position()');
	$_->send_query("CALL pinpoint.wait('{w}', '$position', NULL)") for @waiting;
	wait_until(sub { $observer->value('SELECT count(*) FROM pinpoint.waiting') == @waiting && !grep { !is_asleep($_) } @waiting })
	  or die 'the sessions do not wait';
	$stop_at_signal->($stops, POSIX::SIGURG());
	$sender->send_query('NOTIFY w');
	ok(wait_until(sub { is_stopped($stops) }), 'a process stops before it sets a latch');
	is_deeply([ map { $_->result->rows->[0][0] } @waiting ], [ ('{w}') x @waiting ], 'all sessions look by themselves');
	kill 'CONT', $stops;
	is($sender->result->error, undef, 'and the process goes on');
}

$_->close for @waiting, $sender;
server_is_clean($observer, 'nothing is left');

done_testing();
