# The waker: a background worker that signals listeners when there are many.
# Nothing is lost with it, whatever becomes of it.  110_stopped_waker.pl has a waker that does
# not run.  Here, nobody does its work while it is stopped, which takes a planted fault.
#
# With PINPOINT_TEST_WAKER=full, 1,000 sessions get 10,000 notifications each.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $full  = ($ENV{PINPOINT_TEST_WAKER} // '') eq 'full';
my $many  = 500;
my $crowd = $full ? 1000 : 600;
BEGIN { allow_open_files(2048); }

my $node = new_node('main', max_connections => $crowd + 50, conf => has_faults() ? 'pinpoint.debug_fault = no_reserve' : '');
my ($observer, $sender) = connect_many($node, 2);

sub waker_pid
{
	return $observer->value(
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker'});
}

# Waits for a waker, another one than this, and returns its PID.
sub new_waker
{
	my ($old) = @_;
	return wait_until(
		sub { my $pid = waker_pid(); return defined $pid && $pid != ($old // 0) && $pid; });
}

# All of these sessions get one notification.
sub all_get
{
	my ($payload, $name, @sessions) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_deeply([ map { as_text($_->wait_for(1)) } @sessions ],
		[ ("a/$payload") x @sessions ], $name);
	return;
}

my $waker = new_waker();
ok($waker, 'there is a waker');
is($observer->value('SHOW pinpoint.waker'), 'on', 'by default');
is( $observer->value(
		"SELECT datname IS NULL FROM pg_stat_activity WHERE pid = $waker"),
	't', 'it has no database');

# ---- a session that reads before the waker comes to it

# It catches up with invalidation messages, and PostgreSQL does not flush then.
my @idle = connect_many($node, 20);
$_->run('LISTEN a') for @idle;
stop_waker($observer);
$sender->run(q(NOTIFY a, 'caught up'));
ok( wait_until(
		sub {
			$sender->run('CREATE TEMPORARY TABLE much (i int, t text); DROP TABLE much') for 1 .. 20;
			return $observer->value(
				q{SELECT count(*) FROM pinpoint.stat_listeners WHERE state <> 'idle'}) == 0;
		}),
	'all have read without the waker');
all_get('caught up', 'and told their clients', @idle);
kill 'CONT', $waker;

# ---- it signals the same sessions again

# A reminder would wake them as well, but later, and counts as a wakeup.
my @wakeups;
foreach my $round (1 .. 10)
{
	my $so_far = stat_queue($observer)->{wakeups};
	$sender->run("NOTIFY a, '$round'");
	as_text($_->wait_for(1)) eq "a/$round" or die 'a notification is missing' foreach @idle;
	push @wakeups, stat_queue($observer)->{wakeups} - $so_far;
}
ok((grep { $_ == @idle } @wakeups[ 1 .. 9 ]), "each time, without reminders: @wakeups");
$_->close for @idle;
wait_until(sub { $observer->value('SELECT count(*) FROM pinpoint.stat_listeners WHERE channels > 0') == 0 })
  or die 'they stay';

# ---- it does its work

my @listeners = connect_many($node, $many);
$_->run('LISTEN a') for @listeners;

my $before = stat_queue($observer)->{wakeups};
my $began  = time;
$sender->run(q(NOTIFY a, 'first'));
all_get('first', "$many listeners are woken", @listeners);
woken_times(stat_queue($observer)->{wakeups} - $before, $many, $began, 'once each');

SKIP:
{
	skip 'no fault can be planted: the server was built without assertions', 5 unless has_faults();

	# It stands still, so whoever gets anything is not woken by it.  A signal that comes late
	# would make a session read.
	wait_until(sub { !grep { !is_asleep($_) } @listeners }) or die 'somebody is busy';
	stop_waker($observer);
	$sender->run(q(NOTIFY a, 'handed over'));
	is($sender->value('SELECT 1'), 1, 'the sender does not wait for it');
	my @states = map { $_->[0] } @{
		$observer->run('SELECT DISTINCT state FROM pinpoint.stat_listeners')->rows };
	is_deeply(\@states, ['signalled'], 'nobody else does its work while it is there');

	# A session that looks for itself need not wait for it.
	is($listeners[0]->query('SELECT 1')->types, 'TDCAZ', 'a command of the client comes first');
	is(as_text($listeners[0]->wait_for(1)), 'a/handed over', 'with what is unread');
	kill 'CONT', $waker;
	all_get('handed over', 'when it goes on, all are woken', @listeners[ 1 .. $#listeners ]);
}

# A few are signalled by the sender.
my @few = connect_many($node, 8);
$_->run('LISTEN b') for @few;
stop_waker($observer);
$sender->run(q(NOTIFY b, 'few'));
is_deeply([ map { as_text($_->wait_for(1)) } @few ], [ ('b/few') x @few ],
	'a few are woken without it');
kill 'CONT', $waker;

# The sender among many.
$listeners[0]->run(q(NOTIFY a, 'own'));
all_get('own', 'a sender that listens itself', @listeners);

SKIP:
{
	skip 'no fault can be planted: the server was built without assertions', 5 unless has_faults();

	# Another sender comes first, while the sender commits, and the waker does not signal it.
	my ($first, $itself) = ($sender, $listeners[0]);
	my $library = compile_interference();
	$_->run("LOAD '$library'") for $first, $itself;
	begin_and_pause($observer, $first, 'commit', q(BEGIN; SELECT pg_current_xact_id(); NOTIFY a, 'before it'; COMMIT), 1);
	begin_and_pause($observer, $itself, 'commit', q(BEGIN; SELECT pg_current_xact_id(); NOTIFY a, 'its own'; COMMIT), 2);
	stop_waker($observer);
	open_gate(1);
	is($first->result->error, undef, 'another sender commits');
	is(stat_listener($observer, $itself->pid)->{state}, 'signalled', 'and leaves the signal to the waker');
	open_gate(2);
	is_deeply(all_as_text($itself->result->notifications), [ 'a/before it', 'a/its own' ],
		'what a session notifies comes with the result of its command');
	kill 'CONT', $waker;
	all_get('before it', 'the others are told', @listeners[ 1 .. $#listeners ]);
	all_get('its own', 'both', @listeners[ 1 .. $#listeners ]);
	$itself->take_notifications;
	$_->run(q(SET interference.pause = 'nowhere')) for $first, $itself;
}

# ---- it is ended with something in its list

stop_waker($observer);
$sender->run(q(NOTIFY a, 'terminated'));
is($observer->value("SELECT pg_terminate_backend($waker)"), 't', 'it can be terminated');
kill 'CONT', $waker;
all_get('terminated', 'what it had in its list is done', @listeners);
$waker = new_waker($waker);
ok($waker, 'it is started again');
$sender->run(q(NOTIFY a, 'restarted'));
all_get('restarted', 'and works', @listeners);

# ---- listeners that end while they are in the list

my ($first_pid) = map { $_->pid } @listeners;
stop_waker($observer);
$sender->run(q(NOTIFY a, 'to those who leave'));
my @leaving = splice @listeners, 0, 100;
$_->hang_up for @leaving;
my $left = scalar @listeners;
ok( wait_until(
		sub {
			$observer->value(
				q{SELECT count(*) FROM pinpoint.stat_listeners WHERE channels > 0}) == $left + @few;
		}),
	'100 of them end');
my @new = connect_many($node, 100);
$_->run('LISTEN c') for @new;
kill 'CONT', $waker;
all_get('to those who leave', 'those who stay get it', @listeners);
$sender->run(q(NOTIFY c, 'to the new ones'));
is_deeply([ map { as_text($_->wait_for(1)) } @new ], [ ('c/to the new ones') x @new ],
	'those who have taken their places are told nothing else');
SKIP:
{
	skip 'no fault can be planted: the server was built without assertions', 2 unless has_faults();

	stop_waker($observer);
	$sender->run(q(NOTIFY c, 'and again'));
	$_->run('UNLISTEN c; LISTEN a') for @new;
	$sender->run(q(NOTIFY a, 'another channel'));
	kill 'CONT', $waker;
	all_get('another channel', 'nor when they change the channel meanwhile', @new);
	all_get('another channel', 'others get it as well', @listeners);
}
$_->close for @new, @few;

# There is no room for the crowd before they have ended.
$left = @listeners;
wait_until(
	sub {
		$observer->value(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'}) == 2 + $left;
	}) or die 'sessions stay';

# ---- many notifications, and a waker that is terminated all the time

push @listeners, connect_many($node, $crowd - @listeners);
$_->run('LISTEN a') for @listeners;
my $sent    = $full ? 10_000 : 200;
my $pause   = $full ? 1 : 0.2;
$observer->run('CREATE TABLE ended (pid int)');
my $killer = connect_to($node);
$killer->send_query(<<"EOS");
DO \$\$ BEGIN LOOP
	WITH waker AS MATERIALIZED (
		SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker')
	INSERT INTO ended SELECT pid FROM waker WHERE pg_terminate_backend(pid);
	COMMIT;
	PERFORM pg_sleep($pause);
END LOOP; END \$\$
EOS
wait_until(sub { $observer->value('SELECT count(*) FROM ended') > 0 }) or die 'there was no waker to end';
$sender->send_query(<<"EOS");
DO \$\$ BEGIN FOR i IN 1 .. $sent LOOP PERFORM pg_notify('a', i::text); COMMIT; END LOOP; END \$\$
EOS
my @next   = (1) x @listeners;
my $wrong  = 0;
my $all_in = wait_until_all(
	sub {
		my $done = 1;
		foreach my $i (0 .. $#listeners)
		{
			next if $next[$i] > $sent;
			$listeners[$i]->receive_available;
			foreach my $notification ($listeners[$i]->take_notifications)
			{
				$wrong++ if $notification->{payload} ne $next[$i];
				$next[$i]++;
			}
			$done = 0 if $next[$i] <= $sent;
		}
		return $done;
	});

# As wait_until(), for something that takes long: as long as there is progress.
sub wait_until_all
{
	my ($condition) = @_;
	my ($progress, $since) = (-1, time);
	while (1)
	{
		return 1 if $condition->();
		my $sum = 0;
		$sum += $_ for @next;
		($progress, $since) = ($sum, time) if $sum > $progress;
		return 0 if time - $since > $PostgreSQL::Test::Utils::timeout_default;
	}
}
ok($all_in, "$crowd sessions get $sent notifications each");
is($wrong, 0, 'in order, and each once');
is($sender->result->error, undef, 'the sender succeeds');
$observer->run('SELECT pg_cancel_backend(' . $killer->pid . ')');
is($killer->result->error->{C}, '57014', 'who ended the waker all the time has done so until now');
my $ended = $observer->value('SELECT count(*) FROM ended');
cmp_ok($ended, '>=', $full ? 5 : 1, "$ended times");
$killer->close;

# ---- without it

$_->close for @listeners;
server_is_clean($observer, 'nothing is left');
$_->close for $observer, $sender;

sub works_without
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$observer = connect_to($node);
	is(waker_pid(), undef, "$name: there is none");
	my @sessions = connect_many($node, 50);
	$_->run('LISTEN a') for @sessions;
	$observer->run(q(NOTIFY a, 'without'));
	all_get('without', "$name: all are woken", @sessions);
	$_->close for @sessions, $observer;
	return;
}

$node->append_conf('postgresql.conf', 'pinpoint.waker = off');
$node->restart;
works_without('pinpoint.waker = off');

$node->append_conf('postgresql.conf', "pinpoint.waker = on\nmax_worker_processes = 0");
$node->restart;
works_without('no worker slot');

# ---- it comes with every start

$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->restart;
$observer = connect_to($node);
ok(new_waker(), 'after a restart');
$observer->close;
$node->stop('immediate');
$node->start;
$observer = connect_to($node);
ok(new_waker(), 'after an immediate shutdown');

# Killed: PostgreSQL starts again, as with every process that has shared memory.
$observer->close;
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->reload;
$observer = connect_to($node);
$waker = waker_pid();
kill 'KILL', $waker;
wait_until(sub { !eval { $observer->value('SELECT 1') } }) or die 'nothing happens';
wait_until(sub { $observer = eval { connect_to($node) } }) or die 'the server does not come back';
ok(new_waker($waker), 'after it was killed');
@listeners = connect_many($node, 20);
$_->run('LISTEN a') for @listeners;
$observer->run(q(NOTIFY a, 'after a crash'));
all_get('after a crash', 'it works', @listeners);

$_->close for @listeners;
server_is_clean($observer, 'nothing is left');

done_testing();
