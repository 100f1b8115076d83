# Sessions that end, in every way there is, leave nothing behind and harm
# nobody.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node = new_node('main', conf => "restart_after_crash = on\npinpoint.queue_size = 1MB");

my ($observer, $sender, $witness);

sub open_sessions
{
	$observer = connect_to($node);
	$sender   = connect_to($node);
	$witness  = connect_to($node);
	$witness->run('LISTEN a');
	return;
}

# Nothing remains of process $pid, and the others go on.
sub gone_without_trace
{
	my ($pid, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $queue;
	ok( wait_until(
			sub {
				$queue = stat_queue($observer);
				return !stat_listener($observer, $pid)
				  && !grep { $queue->{$_} } qw(used_bytes batches in_flight held_back);
			}),
		"$name: nothing remains")
	  or diag(join ', ', map { "$_ $queue->{$_}" } sort keys %$queue);

	# A session gives up its slot before its channels.
	ok( wait_until(
			sub {
				$observer->value(
					"SELECT listeners FROM pinpoint.stat_channels WHERE channel = 'a'") == 1;
			}),
		"$name: the channel has one listener");
	$sender->run("NOTIFY a, 'after: $name'");
	is_deeply(all_as_text($witness->notifications_until('a', "after: $name")),
		[], "$name: others are served");
	return;
}

sub terminate
{
	my ($pid) = @_;
	$observer->value("SELECT pg_terminate_backend($pid)") eq 't'
	  or die "could not terminate $pid";
	return;
}

open_sessions();

# ---- sessions that go by themselves or are sent away

my %end = (
	'disconnected'       => sub { $_[0]->close },
	'client gone'        => sub { $_[0]->hang_up },
	'terminated'         => sub { terminate($_[0]->pid) });

foreach my $how (sort keys %end)
{
	my $session = connect_to($node);
	$session->run('LISTEN a; LISTEN b; LISTEN c');
	$end{$how}->($session);
	gone_without_trace($session->pid, "$how while idle");

	# in a transaction that wants to listen and notify
	$session = connect_to($node);
	$session->run("BEGIN; LISTEN a; LISTEN b; NOTIFY a, 'not committed'");
	$end{$how}->($session);
	gone_without_trace($session->pid, "$how before its first commit");

	$session = connect_to($node);
	$session->run('LISTEN a; LISTEN b');
	$session->run(
		"BEGIN; NOTIFY a, 'not committed'; LISTEN c; SAVEPOINT s; UNLISTEN b; NOTIFY b");
	$end{$how}->($session);
	gone_without_trace($session->pid, "$how in a transaction that notifies");

	# with a backlog that it has not read
	$session = connect_to($node);
	$session->run('LISTEN a; LISTEN b');
	$session->run('BEGIN');
	$sender->run("SELECT pg_notify('b', repeat('x', 1000) || $_)") for 1 .. 100;
	cmp_ok(stat_listener($observer, $session->pid)->{backlog_bytes},
		'>', 100_000, "$how: it has a backlog");
	cmp_ok(stat_queue($observer)->{used_bytes}, '>', 100_000, 'which takes space');
	$end{$how}->($session);
	gone_without_trace($session->pid, "$how with a backlog");
}

# Two listeners keep the same batches, or one more than the other.
my @slow = connect_many($node, 2);
foreach my $session (@slow)
{
	$session->run('LISTEN b');
	$session->run('BEGIN');
}
$sender->run("SELECT pg_notify('b', repeat('x', 1000) || $_)") for 1 .. 50;
$slow[0]->close;
ok(wait_until(sub { !stat_listener($observer, $slow[0]->pid) }),
	'one of two slow listeners ends');
is(stat_queue($observer)->{batches}, 50, 'what the other has not read is kept');
is(scalar @{ [ $slow[1]->query('COMMIT')->notifications ] },
	50, 'and it gets all of it');
$slow[1]->close;
gone_without_trace($slow[1]->pid, 'the other');

# ---- a client that does not read what it is sent

my $filling = 'x' x 7900;

# Sends more than the socket takes, so that the server process waits in the
# middle of sending, with more to come.  Returns the number of notifications.
sub make_stuck
{
	my ($stuck) = @_;
	my $sent = 0;
	$stuck->run('LISTEN b');
	ok( wait_until(
			sub {
				$sender->run("NOTIFY b, '$filling " . ++$sent . q('));
				return ($observer->value(
						'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $stuck->pid)
					  // '') eq 'ClientWrite'
				  && stat_listener($observer, $stuck->pid)->{backlog_bytes} > 0;
			}),
		'a session is stuck: its client does not read');
	$sender->run("NOTIFY a, 'meanwhile'");
	is(as_text($witness->wait_for(1)), 'a/meanwhile', 'others are served meanwhile');
	return $sent;
}

my $stuck = connect_to($node);
my $sent  = make_stuck($stuck);
is($observer->value('SELECT pg_cancel_backend(' . $stuck->pid . ')'),
	't', 'a request to cancel');
is_deeply(
	[ map { $_->{payload} } $stuck->wait_for($sent) ],
	[ map { "$filling $_" } 1 .. $sent ],
	'does not keep it from getting everything once its client reads');
is($stuck->query('SELECT 1')->types, 'TDCZ', 'nor from going on');
$stuck->close;
gone_without_trace($stuck->pid, 'stuck, and free again');

$stuck = connect_to($node);
$sent  = make_stuck($stuck);
terminate($stuck->pid);
gone_without_trace($stuck->pid, 'terminated while it sends');
$stuck->receive_until('EOF');
my @received = $stuck->take_notifications;
cmp_ok(scalar @received, '<', $sent, 'its client did not receive everything');
is_deeply(
	[ map { $_->{payload} } @received ],
	[ map { "$filling $_" } 1 .. @received ],
	'but what it did receive, in order');

$stuck = connect_to($node);
make_stuck($stuck);
$stuck->hang_up;
gone_without_trace($stuck->pid, 'client gone while it sends');

# ---- a session that ends in the middle of its own commit

# A deferred constraint trigger fails the commit after the NOTIFY.
$observer->run(
	q{CREATE TABLE checked (i int);
	  CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
		AS $$ BEGIN PERFORM pg_notify('a', 'from the trigger');
			  IF NEW.i < 0 THEN RAISE EXCEPTION 'refused'; END IF;
			  PERFORM pg_advisory_lock(NEW.i); RETURN NULL; END $$;
	  CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON checked
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()});
my $committing = connect_to($node);
$committing->run('LISTEN b');
is( $committing->query("BEGIN; NOTIFY a, 'x'; LISTEN c; INSERT INTO checked VALUES (-1); COMMIT")
	  ->error->{M},
	'refused', 'a commit that fails');
gone_without_trace(0, 'after a commit that failed');
is(stat_listener($observer, $committing->pid)->{channels},
	1, 'its LISTEN did not take effect');

$observer->run('SELECT pg_advisory_lock(1)');
$committing->send_query("BEGIN; NOTIFY a, 'x'; LISTEN c; INSERT INTO checked VALUES (1); COMMIT");
ok( wait_until(
		sub {
			$observer->value(
				q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'}
				  . ' AND pid = ' . $committing->pid);
		}),
	'a commit that waits in its last trigger');
terminate($committing->pid);
gone_without_trace($committing->pid, 'terminated in its commit');
$observer->run('SELECT pg_advisory_unlock(1)');

# ---- crash of a server process, immediate shutdown

sub leave_traces
{
	my @sessions = connect_many($node, 5);
	foreach my $session (@sessions)
	{
		$session->run('LISTEN a; LISTEN b');
		$session->run('BEGIN');
	}
	$sender->run("NOTIFY b, 'unread $_'") for 1 .. 10;
	$sessions[0]->run("NOTIFY a, 'not committed'");
	is(stat_queue($observer)->{batches}, 10, 'there are unread batches');
	return @sessions;
}

sub clean_after
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	open_sessions();
	is($observer->value('SELECT count(*) FROM pinpoint.stat_listeners'),
		1, "$what: nobody listens but the new session");
	is($observer->value('SELECT count(*) FROM pinpoint.stat_channels'),
		1, "$what: on one channel");
	my $queue = stat_queue($observer);
	is($queue->{$_}, 0, "$what: $_ is 0")
	  for qw(used_bytes batches in_flight held_back published wakeups);
	$sender->run("NOTIFY a, '$_'") for 1 .. 100;
	is_deeply(
		all_as_text($witness->wait_for(100)),
		[ map { "a/$_" } 1 .. 100 ],
		"$what: LISTEN and NOTIFY work");
	return;
}

foreach my $victim ('a listener', 'a sender', 'a session that does neither')
{
	my @sessions = leave_traces();
	my $killed =
	    $victim eq 'a listener' ? $sessions[1]
	  : $victim eq 'a sender'   ? $sender
	  :                           connect_to($node);
	kill 'KILL', $killed->pid or die "could not kill: $!";
	$_->receive_until('EOF') for @sessions, $observer, $sender, $witness;
	ok( wait_until(sub { eval { connect_to($node)->close; 1 } }),
		"$victim was killed, and the server starts again");
	clean_after("$victim killed");
}

leave_traces();
stop_and_start($node, 'immediate');
clean_after('immediate shutdown');

leave_traces();
stop_and_start($node, 'fast');
clean_after('fast shutdown');

$witness->close;
server_is_clean($observer, 'nothing is left');

done_testing();
