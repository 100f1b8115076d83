# A NOTIFY wakes the sessions that listen on its channel and no other.
#
# Two witnesses count: the engine counts the signals it sends, and the kernel
# counts how often each server process left its sleep.  The second does not
# know of the first, and with the engine switched off it shows that it can
# tell: PostgreSQL's own way wakes every one of the bystanders.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;
use Time::HiRes qw(time);

# A thousand client sockets, and some for the rest.
BEGIN { allow_open_files(1200) }

my $bystanders    = 200;
my $notifications = 1000;
my $crowd         = 1000;

# For each server process, how often it went back to sleep.  Taken when all of
# them sleep and two readings are the same.
sub times_asleep
{
	my @pids = map { $_->pid } @_;
	my $last = '';
	my %count;
	wait_until(
		sub {
			my $sleeping = 0;
			foreach my $pid (@pids)
			{
				open my $file, '<', "/proc/$pid/status" or die "process $pid: $!";
				my %status = map { /^(\w+):\s+(\w+)/ ? ($1, $2) : () } <$file>;
				$sleeping++ if $status{State} eq 'S';
				$count{$pid} = $status{voluntary_ctxt_switches}
				  // die 'this kernel does not count context switches';
			}
			my $reading = join ' ', @count{@pids};
			my $settled = $sleeping == @pids && $reading eq $last;
			$last = $reading;
			return $settled;
		}) or die 'server processes that have nothing to do do not sleep';
	return \%count;
}

my $node = new_node('main', max_connections => $crowd + 10);
my $observer = connect_to($node);
my $sender   = connect_to($node);

# ---- one session is interested, 200 listen on other channels

my $interested = connect_to($node);
$interested->run('LISTEN wanted');

my @others = connect_many($node, $bystanders);
# A session that has statistics to report wakes by itself after ten seconds;
# let them report at once.
$others[$_]->run("LISTEN other_$_; SELECT pg_stat_force_next_flush()")
  for 0 .. $#others;

my $queue_before = stat_queue($observer);
my $asleep       = times_asleep(@others);

$sender->run("NOTIFY wanted, '$_'") for 1 .. $notifications;
is_deeply(
	all_as_text($interested->wait_for($notifications)),
	[ map { "wanted/$_" } 1 .. $notifications ],
	'the interested session receives everything, in order');
ok(wait_until_idle($observer, $interested->pid), 'it has read to the end');

my $queue_after = stat_queue($observer);
my $listener    = stat_listener($observer, $interested->pid);
is($queue_after->{published} - $queue_before->{published},
	$notifications, 'every NOTIFY went through the engine');
cmp_ok($listener->{wakeups}, '>=', 1, 'the interested session was woken');
cmp_ok($listener->{wakeups}, '<=', $notifications,
	'and not more often than there were notifications');
is($listener->{notifications}, $notifications,
	'and counts what was delivered to it');
is($queue_after->{wakeups} - $queue_before->{wakeups},
	$listener->{wakeups}, 'no signal was sent to anyone else');
is( $observer->value(
		'SELECT sum(wakeups) + sum(notifications)'
		  . ' FROM pinpoint.stat_listeners WHERE pid <> '
		  . $interested->pid),
	0,
	"the $bystanders bystanders count no wakeup");
is_deeply(times_asleep(@others), $asleep,
	'and the kernel saw none of them wake');

# Once the listener is idle, a notification costs exactly one signal.
my @signals;
for (1 .. 20)
{
	my $before = stat_listener($observer, $interested->pid)->{wakeups};
	my $began  = time;
	$sender->run("NOTIFY wanted, 'single $_'");
	$interested->notifications_until('wanted', "single $_");
	wait_until_idle($observer, $interested->pid)
	  or die 'the listener did not become idle';

	# Who does not get to read for a second is reminded.
	my $signals = stat_listener($observer, $interested->pid)->{wakeups} - $before;
	$signals = 1 if $signals > 1 && $signals <= 1 + int(time - $began);
	push @signals, $signals;
}
is_deeply(\@signals, [ (1) x 20 ],
	'a notification to an idle listener costs no more than one signal');

# However many of its channels one transaction notifies.
$interested->run('LISTEN also_wanted; LISTEN not_used');
my $wakeups_before = stat_listener($observer, $interested->pid)->{wakeups};
my $began          = time;
$sender->run(
	"SELECT pg_notify(c, i::text) FROM generate_series(1, 10) i, (VALUES ('wanted'), ('also_wanted')) v (c)");
$interested->wait_for(20);
woken_times(stat_listener($observer, $interested->pid)->{wakeups} - $wakeups_before,
	1, $began, 'nor does a transaction with many notifications on two of its channels');

# A channel that nobody listens on wakes nobody.
$queue_before = stat_queue($observer);
$sender->run('NOTIFY nobody_listens');
$queue_after = stat_queue($observer);
is($queue_after->{wakeups}, $queue_before->{wakeups},
	'a NOTIFY that nobody listens for sends no signal');
is($queue_after->{unheard} - $queue_before->{unheard},
	1, 'and is counted as unheard');
is($queue_after->{used_bytes}, 0, 'and takes no space');

# ---- PostgreSQL's own way, for contrast

$queue_before = stat_queue($observer);
$asleep = times_asleep(@others);
$sender->run('SET pinpoint.enabled = off');
$sender->run("NOTIFY wanted, 'own way $_'") for 1 .. 10;
is_deeply(
	all_as_text($interested->wait_for(10)),
	[ map { "wanted/own way $_" } 1 .. 10 ],
	'switched off, notifications still arrive');
$queue_after = stat_queue($observer);
is($queue_after->{$_}, $queue_before->{$_},
	"switched off, the engine's counter of $_ does not move")
  for qw(published wakeups);
ok( wait_until(
		sub {
			my $now = times_asleep(@others);
			return !grep { $now->{$_} == $asleep->{$_} } keys %$now;
		}),
	'switched off, every bystander is woken');

$sender->run('SET pinpoint.enabled = on');
$sender->run("NOTIFY wanted, 'on again'");
is(as_text($interested->wait_for(1)), 'wanted/on again', 'switched on again');
is(stat_queue($observer)->{published}, $queue_after->{published} + 1,
	'through the engine');

# ---- another database

$observer->run('CREATE DATABASE elsewhere');
my $elsewhere = connect_to($node, dbname => 'elsewhere');
$elsewhere->run('LISTEN wanted');
$sender->run("NOTIFY wanted, 'not elsewhere'");
is(as_text($interested->wait_for(1)), 'wanted/not elsewhere', 'arrives here');
is(stat_listener($observer, $elsewhere->pid)->{wakeups},
	0, 'and wakes nobody who listens in another database');
$elsewhere->close;

# ---- more channels than are looked up one by one

# Each of these is in the second half of the channels, and one is in none.
$queue_before = stat_queue($observer);
$began        = time;
$sender->run(
	q{BEGIN; SELECT count(pg_notify('many_' || i, 'x')) FROM generate_series(1, 500) AS i;
	  NOTIFY other_0, 'many'; NOTIFY other_199, 'many'; COMMIT});
is(as_text($_->wait_for(1)) =~ s/.*\///r, 'many', 'is found among many channels')
  for $others[0], $others[199];
woken_times(stat_queue($observer)->{wakeups} - $queue_before->{wakeups},
	2, $began, 'and nobody else is woken');

$_->close for @others, $interested;
server_is_clean($observer, 'nothing is left of the first group');

# ---- 1,000 sessions on one channel; their number grows and shrinks

my @crowd;
my $seconds = 0;
for my $size (10, $crowd / 2, $crowd)
{
	push @crowd, connect_many($node, $size - @crowd);
	$_->run('LISTEN news') for @crowd;    # twice for some: counts once
	is( $observer->value(
			"SELECT listeners FROM pinpoint.stat_channels WHERE channel = 'news'"),
		$size, "$size sessions are known to listen");
	$began = time;
	$sender->run("NOTIFY news, 'to $size'");
	my @got = map { as_text($_->wait_for(1)) } @crowd;
	$seconds += int(time - $began);
	is_deeply(\@got, [ ("news/to $size") x $size ], "all $size receive");
}
is( $observer->value(
		'SELECT count(*) FROM pinpoint.stat_listeners'
		  . ' WHERE channels = 1 AND wakeups BETWEEN 1 AND ' . (3 + $seconds)),
	$crowd, 'none is woken more often than there were notifications'
	  . ($seconds > 0 ? ", and reminders within $seconds s" : ''));

# A quarter stops listening on this channel only, a quarter on all, a quarter
# disconnects, and one quarter stays.
my (@unlisten, @unlisten_all, @leave, @stay);
push @{ (\@unlisten, \@unlisten_all, \@leave, \@stay)[ $_ % 4 ] }, $crowd[$_]
  for 0 .. $#crowd;
$_->run('LISTEN fence; UNLISTEN news') for @unlisten;
$_->run('UNLISTEN *') for @unlisten_all;
$_->close for @leave;
ok( wait_until(
		sub {
			$observer->value('SELECT count(*) FROM pinpoint.stat_listeners') ==
			  @unlisten + @stay;
		}),
	'those that stopped listening are gone from the listeners');

# A session that ends gives up its slot before its channels.
ok( wait_until(
		sub {
			$observer->value(
				"SELECT listeners FROM pinpoint.stat_channels WHERE channel = 'news'") == @stay;
		}),
	'and from the channel');

$sender->run("NOTIFY news, 'to the rest'");
$sender->run("NOTIFY fence, 'end'");
is_deeply(
	[ map { as_text($_->wait_for(1)) } @stay ],
	[ ('news/to the rest') x @stay ],
	'those that stayed receive');
is_deeply(
	[ map { as_text($_) } map { $_->notifications_until('fence', 'end') } @unlisten ],
	[], 'those that stopped listening on the channel do not');
$_->run('LISTEN fence') for @unlisten_all;
$sender->run("NOTIFY fence, 'end 2'");
is_deeply(
	[ map { as_text($_) } map { $_->notifications_until('fence', 'end 2') } @unlisten_all ],
	[], 'nor those that stopped listening on all');

$_->notifications_until('fence', 'end 2') for @unlisten;

# The places that became free are used again.
$_->run('UNLISTEN *; LISTEN news') for @unlisten, @unlisten_all;
push @stay, @unlisten, @unlisten_all, connect_many($node, scalar @leave);
$_->run('LISTEN news') for @stay;
$sender->run("NOTIFY news, 'to all again'");
is_deeply(
	[ map { $_->notifications_until('news', 'to all again') } @stay ],
	[], 'all receive again, and nothing else');
is( $observer->value(
		"SELECT listeners FROM pinpoint.stat_channels WHERE channel = 'news'"),
	$crowd, 'the channel has all its listeners again');

$_->hang_up for @stay;
server_is_clean($observer, 'nothing is left of the crowd');

done_testing();
