# Many sessions that share a channel end together.  While they wait for their turns, they
# sleep, until the session before them is done, and at most a second.  They do not wait for one
# that is stopped.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant { LEAVE => 40, SECONDS => 3 };

my $node    = new_node('main', max_connections => LEAVE + 20, conf => "log_disconnections = on\nlog_line_prefix = '%m [%p] '");
my $library = compile_interference();
my $hold    = q{SELECT hold_reassignment(size) FROM pg_shmem_allocations WHERE name = 'pg_pinpoint turns'};
my ($observer, $slow) = connect_many($node, 2);
my ($stays, @leave) = connect_many($node, 1 + LEAVE, options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1');
my %pids = map { $_->pid => 1 } @leave;
my $waiting = q{FROM pg_stat_activity WHERE wait_event = 'PinpointReassignment' AND pid IN (} . join(',', keys %pids) . ')';
$slow->run("LOAD '$library'");
$slow->run("CREATE FUNCTION hold_reassignment(bigint) RETURNS void LANGUAGE c AS '$library', 'interference_hold_reassignment'");

# How often the processes have gone to sleep.
sub sleeps
{
	my $sum = 0;
	foreach my $pid (@_)
	{
		slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)$/m or die 'no such line';
		$sum += $1;
	}
	return $sum;
}

# When sessions have ended, in seconds of the day, as the server log says.
sub ends
{
	my $log = slurp_file($node->logfile);
	my %seconds;
	$seconds{$4} = $1 * 3600 + $2 * 60 + $3
	  while $log =~ /^\S+ (\d+):(\d+):(\S+) \S+ \[(\d+)\].* disconnection: /mg;
	return sort { $a <=> $b } grep { defined } map { $seconds{ $_->pid } } @_;
}

# Has them end in this order, and returns when they wait for their turns.
sub terminate
{
	my $n = $observer->value("SELECT count(*) $waiting");
	foreach my $session (@_)
	{
		$observer->run('SELECT pg_terminate_backend(' . $session->pid . ')');
		$n++;
		wait_until(sub { $observer->value("SELECT count(*) $waiting") == $n }) or die 'a session does not wait for its turn';
	}
	return;
}

foreach my $session ($stays, @leave)
{
	$session->run($_) for 'LISTEN c', 'BEGIN';
}
$observer->run("NOTIFY c, '$_'") for 1 .. 2 * LEAVE;
begin_and_pause($observer, $slow, 'nowhere', $hold);
terminate(@leave);

# ---- they sleep

my $begin  = time;
my $before = sleeps(keys %pids);
wait_until(sub { time - $begin >= SECONDS }) or die 'the time stands still';
my $sleeps  = sleeps(keys %pids) - $before;
my $seconds = time - $begin;
cmp_ok($sleeps, '<=', 5 * LEAVE * $seconds, sprintf 'sessions that wait sleep, measured for %.1f s', $seconds);

# ---- the first one does not run

kill 'STOP', $leave[0]->pid or die "could not stop a session: $!";
open_gate();
is($slow->result->error, undef, 'the turn before them ends');
ok(wait_until(sub { $observer->value("SELECT count(*) $waiting") == 1 }), 'all but the first one end, which is stopped');
kill 'CONT', $leave[0]->pid or die "could not continue a session: $!";
ok(wait_until(sub { $observer->value("SELECT count(*) $waiting") == 0 }), 'the first one ends, too');
$stays->run('COMMIT');
is_deeply(
	[ sort { $a <=> $b } map { $_->{payload} } $stays->wait_for(2 * LEAVE) ],
	[ 1 .. 2 * LEAVE ],
	'what was assigned to them comes to the session that stays');

# ---- the one that has its turn does not run

@leave = connect_many($node, 3, options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1');
foreach my $session ($stays, @leave)
{
	$session->run($_) for 'LISTEN c', 'BEGIN';
}
$observer->run("NOTIFY c, '$_'") for 1 .. 8;
begin_and_pause($observer, $slow, 'nowhere', 'SELECT hold_reassignment(NULL)');
my $of_leave = 'FROM pg_stat_activity WHERE pid IN (' . join(',', map { $_->pid } @leave) . ')';
$observer->run("SELECT pg_terminate_backend(pid) $of_leave");
ok(wait_until(sub { $observer->value("SELECT count(*) $of_leave") == 0 }), 'the others end without their turns');
$stays->run('COMMIT');
is_deeply([ sort map { $_->{payload} } $stays->wait_for(8) ], [ 1 .. 8 ], 'and reassign what was assigned to them');

# A session to which nothing is assigned needs no turn.
my ($idle) = connect_many($node, 1, options => '-c pinpoint.shared_channels=c');
$idle->run('LISTEN c');
my $begun = time;
$observer->run('SELECT pg_terminate_backend(' . $idle->pid . ')');
ok(wait_until(sub { $observer->value('SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $idle->pid) == 0 }),
	sprintf 'a session that has nothing to reassign ends, in %.3f s', time - $begun);
open_gate();
is($slow->result->error, undef, 'the turn ends');

# ---- they wake each other

# Each would try again a second after it went to sleep, at another time than the others.  The
# waker's reminders would wake them, too.  A machine that stands still needs more than one try.
$_->close for $stays, $slow;
server_is_clean($observer, 'nothing is left');
$observer->close;
$node->append_conf('postgresql.conf', 'pinpoint.waker = off');
$node->restart;
($observer, $slow) = connect_many($node, 2);
$slow->run("LOAD '$library'");
($stays) = connect_many($node, 1, options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1');
my $shortest = 1000;
for (my $try = 1; $try <= 5 && $shortest > 0.5; $try++)
{
	@leave = connect_many($node, 10, options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1');
	foreach my $session ($stays, @leave)
	{
		$session->run($_) for 'LISTEN c', 'BEGIN';
	}
	$observer->run("NOTIFY c, '$_'") for 1 .. 2 * @leave;
	$waiting = q{FROM pg_stat_activity WHERE wait_event = 'PinpointReassignment' AND pid IN (}
	  . join(',', map { $_->pid } @leave) . ')';
	begin_and_pause($observer, $slow, 'nowhere', $hold);
	my $start = time;
	foreach my $number (0 .. $#leave)
	{
		wait_until(sub { time - $start >= $number * 0.1 }) or die 'the time stands still';
		terminate($leave[$number]);
	}
	open_gate();
	is($slow->result->error, undef, 'the turn before them ends');
	my @ends;
	wait_until(sub { @ends = ends(@leave); return @ends == @leave; }) or die 'a session does not end';
	my $took = $ends[-1] - $ends[0];
	$shortest = $took if $took >= 0 && $took < $shortest;
	$stays->run('COMMIT');
	$stays->wait_for(2 * @leave);
}
cmp_ok($shortest, '<=', 0.5, sprintf 'when the first one has ended, the others follow in %.3f s', $shortest);

$_->close for $stays, $slow;
server_is_clean($observer, 'nothing is left');

done_testing();
