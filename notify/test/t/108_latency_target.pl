# pinpoint.latency_target: a session that is under a storm of notifications gets
# them together, at most once in that time, and none later than it must.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;
use Time::HiRes qw(time);

my $node     = new_node('main', conf => 'max_prepared_transactions = 2');
my $observer = connect_to($node);
my $sender   = connect_to($node);
my $listener = connect_to($node);
my $another  = connect_to($node);

sub wakeups
{
	return stat_listener($observer, $listener->pid)->{wakeups};
}

# Sends notifications of these numbers, each in a transaction of its own, and
# waits until the session that does not wait has them.
sub notify
{
	my (@numbers) = @_;
	$sender->run("NOTIFY a, '$_'") for @numbers;
	$another->wait_for(scalar @numbers);
	return;
}

is($listener->value('SHOW pinpoint.latency_target'), 0, 'off by default');
$_->run('LISTEN a') for $listener, $another;

# No test waits for so long: what arrives, arrives for another reason.
$listener->run(q(SET pinpoint.latency_target = '1h'));
is($listener->value('SHOW pinpoint.latency_target'), '1h', 'on');

notify(1);
is(as_text($listener->wait_for(1)), 'a/1', 'after a quiet time the first one arrives at once');
my $before = wakeups();
my $began  = time;

notify(2 .. 101);
$listener->receive_available;
is_deeply([ $listener->take_notifications ], [], 'the next ones are collected');
woken_times(wakeups() - $before, 1, $began, 'a hundred of them wake the session once');
is( stat_listener($observer, $listener->pid)->{state},
	'signalled', 'the view shows that it has something to read');
cmp_ok(stat_listener($observer, $listener->pid)->{backlog_bytes},
	'>', 0, 'and what it keeps');
is( $observer->value('SELECT state FROM pg_stat_activity WHERE pid = ' . $listener->pid),
	'idle', 'it is idle');
is( $observer->value(
		'SELECT backend_xmin IS NULL AND backend_xid IS NULL FROM pg_stat_activity WHERE pid = '
		  . $listener->pid),
	't', 'and holds no snapshot');

# The client wants something.
my $result = $listener->query('SELECT 1');
is($result->types, 'TDC' . ('A' x 100) . 'Z', 'a command of the client ends the wait');
is_deeply(all_as_text($listener->take_notifications),
	[ map { "a/$_" } 2 .. 101 ], 'everything is there, in order');
ok(wait_until_idle($observer, $listener->pid), 'nothing is left to read');
is(stat_queue($observer)->{used_bytes}, 0, 'or kept');

# A notification to oneself comes before the command is over, as ever.
is($listener->query("NOTIFY a, 'own'")->types, 'CAZ', 'its own notification does not wait');
$listener->take_notifications;
$another->wait_for(1);

# In a transaction, and after it.
$listener->run('BEGIN');
notify(1 .. 10);
is($listener->query('COMMIT')->types, 'C' . 'A' x 10 . 'Z',
	'what came during a transaction comes at its end');
$listener->take_notifications;

# Extended protocol.
notify(11 .. 12);
$listener->send_statement('SELECT 1')->send_sync;
is($listener->result->types, '12DCAAZ', 'the extended protocol ends the wait, too');
$listener->take_notifications;

# A command and a notification come in the same moment.  PostgreSQL may have read
# the command before it turns to the notification.
my @together = map { "together $_" } 1 .. 500;
foreach my $payload (@together)
{
	$sender->send_query("NOTIFY a, '$payload'");
	$listener->send_query('SELECT 1');
	$_->result for $listener, $sender;
}
$listener->run('SELECT 2');
is_deeply(
	all_as_text($listener->take_notifications),
	[ map { "a/$_" } @together ],
	'a command that comes with a notification does not wait either');
$another->wait_for(scalar @together);

# Describe and Sync run no statement, and do not wait either: the session would
# answer after an hour.
$listener->send_parse('described', 'SELECT 1')->send_sync;
$listener->result;
foreach my $payload (@together)
{
	$sender->send_query("NOTIFY a, '$payload'");
	$listener->send('D', "Sdescribed\0")->send_sync;
	$_->result for $listener, $sender;
}
$listener->run('SELECT 2');
is_deeply(
	all_as_text($listener->take_notifications),
	[ map { "a/$_" } @together ],
	'nor does Describe');
$another->wait_for(scalar @together);

# An error makes PostgreSQL forget all timeouts.
$listener->run(q(SET pinpoint.latency_target = '500ms'));
for my $error ('SELECT 1/0', 'SELEC', 'EXECUTE missing')
{
	notify("before $error");
	$listener->wait_for(1);
	notify("then $error");
	$listener->query($error);
	is(as_text($listener->wait_for(1)), "a/then $error", "$error does not leave it asleep");
}
$listener->run(q(SET pinpoint.latency_target = '200ms'));
notify('before portal');
$listener->wait_for(1);
notify('then portal');
$listener->send('E', "missing\0" . pack('N', 0))->send_sync;
is($listener->result->error->{C}, '34000', 'an error outside of any transaction');
is(as_text($listener->wait_for(1)), 'a/then portal', 'does not either');

# A session that does not know of its activity collects, too.
$listener->run(q(SET pinpoint.latency_target = '1h'));
$observer->run(q(ALTER ROLE CURRENT_USER SET track_activities = off));
my $untracked = connect_to($node);
$untracked->run(q(SET pinpoint.latency_target = '1h'; LISTEN a));
notify('to all');
$untracked->wait_for(1);
notify('collected');
$untracked->receive_available;
is_deeply([ $untracked->take_notifications ], [], 'with track_activities = off, too');
is(stat_listener($observer, $untracked->pid)->{state}, 'signalled', 'it has something to read');
$untracked->close;
$observer->run(q(ALTER ROLE CURRENT_USER RESET track_activities));
$listener->run('SELECT 1');
$listener->take_notifications;

# ---- collecting holds up nothing

# Notifications of PostgreSQL's own way come at once, and leave no snapshot behind,
# also where a transaction keeps its first one.
my $repeatable = connect_to($node);
$repeatable->run(q(SET default_transaction_isolation = 'repeatable read'));
$repeatable->run(q(SET pinpoint.latency_target = '1h'; LISTEN a; LISTEN own));
notify('to begin with');
$repeatable->wait_for(1);
notify('collected');
$sender->run('SET pinpoint.enabled = off');
for my $number (1 .. 3)
{
	$sender->run("NOTIFY own, '$number'");
	is(as_text($repeatable->wait_for(1)), "own/$number", q(PostgreSQL's own way does not wait));
}
$sender->run('SET pinpoint.enabled = on');
is(stat_listener($observer, $repeatable->pid)->{state}, 'signalled', 'and ours does');
is( $observer->value(
		'SELECT backend_xmin IS NULL AND backend_xid IS NULL AND xact_start IS NULL FROM pg_stat_activity WHERE pid = '
		  . $repeatable->pid),
	't', 'it holds no snapshot and is in no transaction');
$repeatable->run('SELECT 1');
is_deeply(all_as_text($repeatable->take_notifications), ['a/collected'], 'nothing is lost');
$repeatable->close;
$listener->run('SELECT 1');
$listener->take_notifications;

SKIP:
{
	skip 'transaction_timeout came with PostgreSQL 17', 1
	  if $observer->value('SHOW server_version_num') < 170000;

	# The timeout must not pass in PostgreSQL's small transactions, however busy the machine.
	my $got;
	for (my $timeout = 50; !$got && $timeout < 4000; $timeout *= 4)
	{
		my $short = connect_to($node);
		$short->run("SET pinpoint.latency_target = '" . 40 * $timeout . "ms'; LISTEN a");
		notify('at once');
		$short->receive->{type} eq 'A' or next;
		$short->query("SET transaction_timeout = $timeout")->error and next;
		$short->take_notifications;
		notify('later');
		my $message = $short->receive;
		$got = $message->{type} eq 'A' && as_text($message);
		$short->close;
	}
	is($got, 'a/later', 'a transaction timeout has nothing to end');
	$listener->run('SELECT 1');
	$listener->take_notifications;
}

# ---- the interval passes

$listener->run(q(SET pinpoint.latency_target = '200ms'));
for my $round (1 .. 3)
{
	notify(map { "$round.$_" } 1 .. 50);
	is_deeply(
		all_as_text($listener->wait_for(50)),
		[ map { "a/$round.$_" } 1 .. 50 ],
		"round $round: without a command they arrive after the interval, in order");
}

# ---- a session that has been under a storm looks by itself

sub state { return stat_listener($observer, $listener->pid)->{state}; }

# Waits until the session has put off a delivery, for which it must have got to read.
sub wait_until_put_off
{
	wait_until(sub { state() eq 'signalled' && is_asleep($listener) }) or die 'it does not collect';
	return;
}

# Puts one delivery off, and delivers it when the client wants something: from then on
# the session rests, for as long as the interval is.
sub rest
{
	my ($interval) = @_;
	$listener->run("SET pinpoint.latency_target = '1h'");
	notify('first', 'put off');
	wait_until_put_off();
	$listener->run("SET pinpoint.latency_target = '$interval'");
	$listener->take_notifications;
	return;
}

rest('1h');
is(state(), 'resting', 'it rests');
is(stat_queue($observer)->{used_bytes}, 0, 'and keeps nothing');
$before = wakeups();
$began  = time;
notify(1 .. 10);
cmp_ok(wakeups() - $before, '<=', int(time - $began), 'nobody signals it, but for reminders after each second');
is(state(), 'signalled', 'what there is waits for it');
$listener->run('SELECT 1');
is_deeply(all_as_text($listener->take_notifications), [ map { "a/$_" } 1 .. 10 ], 'until its client wants something');

rest('300ms');
notify('while it rests');
is(as_text($listener->wait_for(1)), 'a/while it rests', 'or the interval has passed');
ok(wait_until(sub { state() eq 'idle' }), 'and when there is nothing any more it stops');
$before = wakeups();
$began  = time;
notify('afterwards');
is(as_text($listener->wait_for(1)), 'a/afterwards', 'then it is woken');
woken_times(wakeups() - $before, 1, $began, 'by a signal');

rest('100ms');
$before = wakeups();
for my $number (1 .. 20)
{
	notify($number);
	is(as_text($listener->wait_for(1)), "a/$number", "it rests often: $number arrives");
}
cmp_ok(wakeups() - $before, '>=', 1, 'but waits for a signal now and then');

# What makes PostgreSQL forget the timeout, or changes it, ends the rest.
for my $sql ('SELECT 1/0', 'SELEC', 'BEGIN; SELECT 1/0', 'SELECT 1', 'RESET pinpoint.latency_target')
{
	rest('1h');
	$listener->query($_) for $sql, 'ROLLBACK';
	is(state(), 'idle', "$sql ends the rest");
	$listener->run('RESET pinpoint.latency_target');
	notify($sql);
	is(as_text($listener->wait_for(1)), "a/$sql", 'and it is awake');
}

# Whatever the client wants, also what notifies or listens itself.
for my $sql ('NOTIFY b', 'LISTEN b', 'UNLISTEN b', q(BEGIN; SELECT 1; PREPARE TRANSACTION 'prepared'))
{
	rest('1h');
	notify('waits');
	$listener->run($sql);
	is_deeply(all_as_text($listener->take_notifications), ['a/waits'], "$sql is told what waits");
	$listener->query(q(ROLLBACK PREPARED 'prepared'));

	# The interval changes together with it.
	rest('1h');
	$listener->run($sql =~ s/^(BEGIN; |)/$1SET pinpoint.latency_target = 0; /r);
	notify('interval');
	is(as_text($listener->wait_for(1)), 'a/interval', "$sql ends the rest");
	$listener->query(q(ROLLBACK PREPARED 'prepared'));
}

# An error of which nobody is told, and after which nobody looks but the commit.
rest('1h');
$listener->query($_)
  for 'BEGIN', 'SAVEPOINT s', q(DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '01000'; END $$), 'ROLLBACK TO s', 'NOTIFY b', 'COMMIT';
is(state(), 'idle', 'an error of the class of warnings');
$listener->run('RESET pinpoint.latency_target');

rest('1h');
$listener->run('UNLISTEN *');
$listener->run('RESET pinpoint.latency_target');
$listener->run('LISTEN a');
notify('once more');
is(as_text($listener->wait_for(1)), 'a/once more', 'to LISTEN anew ends it, too');

# ---- what ends a session ends the wait

$listener->run(q(SET pinpoint.latency_target = '1h'));
notify('first');
$listener->receive_available;
notify('second');
is($observer->value('SELECT pg_cancel_backend(' . $listener->pid . ')'),
	't', 'a request to cancel');
is($listener->value('SELECT 1'), 1, 'does no harm to a session that collects');
$listener->take_notifications;
notify('third');
$observer->run('SELECT pg_terminate_backend(' . $listener->pid . ')');
is($listener->receive_until('E')->error->{C}, '57P01', 'a session that collects can be terminated');

my $gone = connect_to($node);
$gone->run(q(SET pinpoint.latency_target = '1h'));
$gone->run('LISTEN a');
notify('fourth');
$gone->wait_for(1);
notify('fifth');
$gone->hang_up;
ok(wait_until(sub { !stat_listener($observer, $gone->pid) }),
	'a session whose client goes away ends');

# The timeout must not pass before the session collects, however busy the machine.
my ($timed_out, $collects);
for (my $timeout = 300; !$collects && $timeout < 60_000; $timeout *= 4)
{
	$timed_out = connect_to($node);
	$timed_out->run(
		"SET pinpoint.latency_target = '1h'; LISTEN a; SET idle_session_timeout = $timeout");
	notify('sixth');
	$timed_out->receive->{type} eq 'A' or next;
	notify('seventh');
	my $listener = stat_listener($observer, $timed_out->pid);
	$collects = $listener && $listener->{state} eq 'signalled';
}
ok($collects, 'a session with a timeout collects');
$timed_out->take_notifications;
is($timed_out->receive_until('E')->error->{C}, '57P05', 'idle_session_timeout works');
is_deeply([ $timed_out->take_notifications ], [], 'which ended the session before the interval did');

# ---- the clock is set back

my ($environment, $set_clock) = compile_clock();
{
	local @ENV{ keys %$environment } = values %$environment;
	my $elsewhen = new_node('elsewhen', conf => 'pinpoint.waker = off');
	($observer, $sender, $listener) = map { connect_to($elsewhen) } 1 .. 3;
	$listener->run('LISTEN a');
	$listener->run(q(SET pinpoint.latency_target = '1h'));
	$sender->run('NOTIFY a');
	$listener->wait_for(1);
	$sender->run('NOTIFY a');
	wait_until_put_off();
	$listener->run('SELECT 1');
	$listener->take_notifications;
	is(state(), 'resting', 'it rests');
	$set_clock->(-2 * 3600);
	$sender->run(q(NOTIFY a, 'back'));
	is(as_text($listener->wait_for(1)), 'a/back', 'a clock that is set back keeps nothing');
	$_->close for $observer, $sender, $listener;
	$elsewhen->stop;
}
$observer = connect_to($node);

# ---- bad values

foreach my $case ([ '-1', '22023' ], [ '2h', '22023' ], [ 'soon', '22023' ])
{
	my ($value, $sqlstate) = @$case;
	is($observer->query("SET pinpoint.latency_target = '$value'")->error->{C},
		$sqlstate, "$value is refused");
}

$another->close;
server_is_clean($observer, 'nothing is left');

done_testing();
