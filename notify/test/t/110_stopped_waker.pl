# A waker that exists and does not run, as in a debugger: others do its work soon.  Nothing
# is left, the order is that of the commits, and no session does more than a part at a time.
# When the waker goes on, all is as before.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', max_connections => 150, conf => "pinpoint.queue_memory = '64kB'");
my $library = compile_interference();
my ($observer, $listener, $innocent, $slow) = connect_many($node, 4);
$listener->run('LISTEN a');
$slow->run("LOAD '$library'");
my ($waker, $count) = (0, 5_000);

# The server cannot be stopped while the waker does not run.
sub go_on { kill 'CONT', $waker if $waker; $waker = 0; return; }
END { my $status = $?; go_on(); $? = $status; }

sub stop { $waker = stop_waker($observer); return; }

sub hold_back_many
{
	my (%params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(hold_back($observer, $slow, $count, %params), $count, "$count transactions are held back");
	return;
}

sub release
{
	open_gate();
	is($slow->result->error, undef, 'the slow commit succeeds');
	return;
}

sub all_arrive
{
	my ($name, @more) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @expected = ('slow', 1 .. $count, @more);
	is_deeply([ map { $_->{payload} } $listener->wait_for(scalar @expected) ], \@expected, $name);
	return;
}

sub crowd_gets
{
	my ($sessions, $payload, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_deeply([ map { as_text($_->wait_for(1)) } @$sessions ], [ ("b/$payload") x @$sessions ], $name);
	return;
}

# ---- a slow commit has held back many, and nobody does anything after it

stop();
hold_back_many();
release();
all_arrive('the rest arrives, in the order of the commits');
hold_back_many();
release();
$innocent->run(q(NOTIFY a, 'innocent'));
all_arrive('also what another session sends then', 'innocent');
is(stat_queue($observer)->{held_back}, 0, 'nothing is left');

# ---- a part at a time

# The session of the slow commit stays in a transaction, so it cannot go on by itself, and
# the listener reads nothing.  The others have not notified, so they do a part at each commit.
go_on();
stop();
$listener->run('BEGIN');
$slow->run(q(SET interference.pause = 'nowhere'));
hold_back_many(then => '; BEGIN');
release();
my @new   = connect_many($node, 2);
my $left  = 'SELECT held_back FROM pinpoint.stat_queue';
my @lefts = ($new[0]->value($left));
wait_until(sub { push @lefts, $new[ @lefts % 2 ]->value($left); return $lefts[-1] < $count / 2; })
  or die 'nobody goes on';
my $most = 0;
$most = $_ > $most ? $_ : $most foreach map { $lefts[$_] - $lefts[ $_ + 1 ] } 0 .. $#lefts - 1;
cmp_ok($most, '<', 1_000, "other sessions publish the rest, a part at each commit: at most $most");
cmp_ok($lefts[-1], '>', 0, 'some are left');
go_on();
ok(wait_until(sub { stat_queue($observer)->{held_back} == 0 }), 'the waker goes on, and publishes them');
$_->run('COMMIT') for $slow, $listener;
$slow->run(q(SET interference.pause = 'nowhere'));
all_arrive('in the order of the commits, each once');
$_->close for @new;

# ---- signals

my @crowd = connect_many($node, 60);
$_->run('LISTEN b') for @crowd;
foreach my $payload ('healthy', 'healthy again')
{
	$innocent->run("NOTIFY b, '$payload'");
	crowd_gets(\@crowd, $payload, "many listeners: $payload");
}
wait_until(sub { !grep { !is_asleep($_) } @crowd }) or die 'somebody is busy';

# A waker that runs, and that had nothing to do for more than the 100 ms: it gets its work,
# although another session looks at it all the time.  On a machine that stands still, it may
# make no progress.
my $looker = connect_to($node);
$looker->send_query('DO $$ BEGIN LOOP COMMIT; END LOOP; END $$');
my $to_waker = sub { return $observer->value('SELECT sum(waker_signals) FROM pinpoint.stat_notify'); };
my $by_waker = 0;
foreach my $payload (1 .. 20)
{
	my $so_far = $to_waker->();
	$innocent->run("NOTIFY b, '$payload'");
	as_text($_->wait_for(1)) eq "b/$payload" or die 'a notification is missing' foreach @crowd;
	$by_waker++ if $to_waker->() - $so_far == @crowd;
	$observer->run('SELECT pg_sleep(0.11)');
}
$observer->run('SELECT pg_cancel_backend(' . $looker->pid . ')');
$looker->result;
$looker->close;
cmp_ok($by_waker, '>=', 16, "a waker that has slept does its work: $by_waker of 20 times");

stop();
$innocent->run(q(NOTIFY b, 'left'));
crowd_gets(\@crowd, 'left', 'the session that has left signals to the waker sends them');
foreach my $payload ('next', 'and next')
{
	$innocent->run("NOTIFY b, '$payload'");
	crowd_gets(\@crowd, $payload, "while the waker does not run: $payload");
}

# An error cancels the timeouts of a session.
go_on();
stop();
is($innocent->query(q(BEGIN; NOTIFY b, 'error'; COMMIT; SELECT 1/0))->error->{C}, '22012', 'the session fails after it');
crowd_gets(\@crowd, 'error', 'all the same');

# It ends before it could look.
go_on();
stop();
my $short = connect_to($node);
$short->run(q(NOTIFY b, 'ended'));
$short->close;
crowd_gets(\@crowd, 'ended', 'a session that ends sends the signals that it has left');

# It stays in a transaction.  Another session commits.
go_on();
stop();
$innocent->run(q(BEGIN; NOTIFY b, 'busy'; COMMIT; BEGIN));
ok(wait_until(sub {
	$observer->run('SELECT 1');
	return !grep { $_->receive_available; !$_->{notifications} || !@{ $_->{notifications} } } @crowd;
}), 'the session stays in a transaction: another one sends them');
crowd_gets(\@crowd, 'busy', 'to all');
$innocent->run('COMMIT');

# ---- sessions in pinpoint.wait()

# The waker has work.  It does this, and sleeps again.
sub sleeps { return slurp_file("/proc/$_[0]/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m && $1; }
my ($running, $slept) = ($waker, sleeps($waker));
go_on();
wait_until(sub { sleeps($running) > $slept }) or die 'the waker does not go on';
my @waiting = connect_many($node, 40);
my $since   = $observer->value('SELECT pinpoint.position()');
$_->send_query("CALL pinpoint.wait('{w}', '$since', NULL)") for @waiting;
wait_until(sub { $observer->value('SELECT count(*) FROM pinpoint.waiting') == @waiting && !grep { !is_asleep($_) } @waiting })
  or die 'the sessions do not wait';
stop();
$innocent->run('NOTIFY w');
is_deeply([ map { $_->result->rows->[0][0] } @waiting ], [ ('{w}') x @waiting ], 'sessions that wait are woken');
$_->close for @waiting;

go_on();
$innocent->run(q(NOTIFY b, 'afterwards'));
crowd_gets(\@crowd, 'afterwards', 'the waker goes on');
$_->close for @crowd;

# ---- notifications of a session that stays in a transaction

my ($long, $other) = connect_many($node, 2, options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1');
$_->run('LISTEN c') for $long, $other;
stop();
$_->run('BEGIN') for $long, $other;
$innocent->run("DO \$\$ BEGIN FOR i IN 1 .. 100 LOOP PERFORM pg_notify('c', i::text); COMMIT; END LOOP; END \$\$");
$other->run('COMMIT');
my %told;
ok(wait_until(sub {
	$innocent->run('NOTIFY nobody');
	$other->query('');
	$told{ $_->{payload} }++ foreach $other->take_notifications;
	return keys %told == 100;
}), 'senders reassign them');
$long->run('COMMIT');
$long->query('');
$told{ $_->{payload} }++ foreach $long->take_notifications;
is_deeply([ grep { $told{$_} != 1 } keys %told ], [], 'each is delivered once');
$_->close for $long, $other;

# Several sessions stay in transactions, with more than a portion each, and each sender ends after
# its first NOTIFY.  The next one goes on where it has ended.
my @long = connect_many($node, 3, options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1');
$_->run('LISTEN c') for @long;
$_->run('BEGIN') for @long;
$innocent->run("DO \$\$ BEGIN FOR i IN 1 .. 2000 LOOP PERFORM pg_notify('c', i::text); COMMIT; END LOOP; END \$\$");
my $ready = pop @long;
$ready->run('COMMIT');
%told = ();
ok(wait_until(sub {
	my $sender = connect_to($node);
	$sender->run('NOTIFY nobody');
	$sender->close;
	$ready->query('');
	$told{ $_->{payload} }++ foreach $ready->take_notifications;
	return keys %told == 2_000;
}), 'senders that notify once reassign those of several sessions');
is_deeply([ grep { $told{$_} != 1 } keys %told ], [], 'each is delivered once');
$_->run('COMMIT') for @long;
$_->close for @long, $ready;

# ---- disk space

$listener->run('BEGIN');
$innocent->run(q(DO $$ BEGIN FOR i IN 1 .. 500 LOOP PERFORM pg_notify('a', i || repeat('x', 7000)); COMMIT; END LOOP; END $$));
my $file = $node->data_dir . '/pg_notify/pg_pinpoint';
cmp_ok(-s $file, '>', 1_000_000, 'the queue uses its file');
$listener->run('COMMIT');
$listener->wait_for(500);
ok(wait_until(sub { $innocent->run('NOTIFY nobody'); return (-s $file) < 1_000_000; }), 'senders return disk space');

go_on();
$_->close for $slow, $innocent, $listener;
server_is_clean($observer, 'nothing is left');

done_testing();
