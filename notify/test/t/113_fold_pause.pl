# The pause of pinpoint.fold: under load, a session pauses after a delivery.  It needs no
# signal meanwhile, and delays nothing else.  At a low rate there is no pause.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;
use Time::HiRes qw(time);

# The processor time of deliveries is what the test says.
my ($environment, $set_clocks) = compile_clock();
local @ENV{ keys %$environment } = values %$environment;
my $node = new_node('main');
my ($observer, $sender, $listener) = connect_many($node, 3);
$listener->run('SET pinpoint.fold = on; LISTEN a');

# From now on, a delivery takes as long as this load: all sessions together should deliver once
# in a minute.
sub begin_load { $set_clocks->(0, 60_000_000); return; }
sub end_load   { $set_clocks->(0, 0);          return; }

sub wakeups { return stat_listener($observer, $listener->pid)->{wakeups}; }
sub state   { return stat_listener($observer, $listener->pid)->{state}; }

# The session delivers under load, until it pauses.  Returns its number of wakeups before the
# pause.
sub pause_under_load
{
	my $wakeups;
	begin_load();
	wait_until(
		sub {
			$sender->run(q(NOTIFY a, 'load'));
			$listener->wait_for(1);
			$wakeups = wakeups();
			return state() eq 'resting';
		}) or die 'it does not pause';
	end_load();
	return $wakeups;
}

# The same, and a notification in the pause.  Returns the number of signals for it.
sub signals_in_pause
{
	my $before = pause_under_load();
	$sender->run(q(NOTIFY a, 'in the pause'));
	is(as_text($listener->wait_for(1)), 'a/in the pause', 'a notification in the pause arrives');
	return wakeups() - $before;
}

# The pause has a bound.  On a busy machine, it can be over before the test looks.
ok(wait_until(sub { signals_in_pause() == 0 }), 'a session that pauses needs no signal');
ok(wait_until(sub { pause_under_load(); state() eq 'resting' }), 'the view shows the pause');
ok(wait_until(sub { state() eq 'idle' }), 'a pause without a notification is the last one');

# ---- a low rate

# Others use the processors, and this session delivers after a long time.
my $other = connect_to($node);
$other->run('SET pinpoint.fold = on; LISTEN b');
begin_load();
for my $number (1 .. 3)
{
	$sender->run("NOTIFY b, '$number'");
	$other->wait_for(1);
}
end_load();
$other->close;

my $before = wakeups();
my $began  = time;
for my $number (1 .. 50)
{
	$sender->run("NOTIFY a, '$number'");
	is(as_text($listener->wait_for(1)), "a/$number", "$number arrives");
}
woken_times(wakeups() - $before, 50, $began, 'one after the other, each wakes the session');

# ---- more has arrived

# The client does not read, and the delivery waits for it.  More is published meanwhile.
sub more_arrives
{
	pause_under_load();
	begin_load();
	$sender->run(q(SELECT count(pg_notify('a', j || repeat('x', 7000))) FROM generate_series(1, 1000) j));
	wait_until(
		sub {
			$observer->value(
				q(SELECT wait_event IS NOT DISTINCT FROM 'ClientWrite' FROM pg_stat_activity WHERE pid = )
				  . $listener->pid) eq 't';
		}) or die 'the delivery does not wait';
	$sender->run(q(NOTIFY a, 'more'));
	$listener->wait_for(1000);
	my $pauses = state() eq 'signalled' && is_asleep($listener);
	end_load();
	is(as_text($listener->wait_for(1)), 'a/more', 'what was published meanwhile arrives');
	return $pauses;
}
ok(wait_until(sub { more_arrives() }), 'a session with more to read pauses before');

# ---- what ends a pause

for my $sql (
	'SELECT 1', 'SELECT 1/0', 'SELEC', 'NOTIFY b', 'LISTEN b', 'SET pinpoint.fold = off',
	q(SET pinpoint.latency_target = '1h'))
{
	pause_under_load();
	$sender->run(q(NOTIFY a, 'waits'));
	$listener->query($sql);
	is(as_text($listener->wait_for(1)), 'a/waits', "$sql in the pause: the notification arrives");

	# With an interval of an hour, another load would not arrive.
	$listener->run('RESET pinpoint.latency_target; SET pinpoint.fold = on');
	pause_under_load();
	$listener->query($sql);
	$listener->run('RESET pinpoint.latency_target; SET pinpoint.fold = on');
	$sender->run(q(NOTIFY a, 'afterwards'));
	is(as_text($listener->wait_for(1)), 'a/afterwards', "$sql in the pause: so does the next one");
}

pause_under_load();
$listener->run('UNLISTEN *');
$sender->run(q(NOTIFY a, 'not heard'));
$listener->run('LISTEN a');
$sender->run(q(NOTIFY a, 'heard'));
is(as_text($listener->wait_for(1)), 'a/heard', 'UNLISTEN and LISTEN in the pause');

pause_under_load();
is($observer->value('SELECT pg_cancel_backend(' . $listener->pid . ')'), 't', 'a request to cancel');
$sender->run(q(NOTIFY a, 'after it'));
is(as_text($listener->wait_for(1)), 'a/after it', 'does no harm');

# ---- a session that may keep little does not pause

$observer->run('ALTER SYSTEM SET pinpoint.max_listener_lag = 100');
$observer->run('SELECT pg_reload_conf()');
for my $session ($observer, $listener)
{
	ok(wait_until(sub { $session->value('SHOW pinpoint.max_listener_lag') eq '100kB' }), 'a small limit');
}

# Each of these is more than a sixteenth of it.
sub deliver_large
{
	my ($count) = @_;
	$sender->run(q(SELECT pg_notify('a', repeat('x', 7900)))) && $listener->wait_for(1) for 1 .. $count;
	return;
}
begin_load();
deliver_large(1);
$before = wakeups();
$began  = time;
deliver_large(5);
woken_times(wakeups() - $before, 5, $began, 'it needs a signal for each');
end_load();
$observer->run('ALTER SYSTEM RESET pinpoint.max_listener_lag');
$observer->run('SELECT pg_reload_conf()');
ok(wait_until(sub { $listener->value('SHOW pinpoint.max_listener_lag') eq '-1' }), 'no limit');

# ---- the end of a session

ok(wait_until_idle($observer, $listener->pid), 'nothing is left to read');
is(stat_queue($observer)->{used_bytes}, 0, 'or kept');
pause_under_load();
$observer->run('SELECT pg_terminate_backend(' . $listener->pid . ')');
is($listener->receive_until('E')->error->{C}, '57P01', 'a session that pauses can be terminated');

server_is_clean($observer, 'nothing is left');

done_testing();
