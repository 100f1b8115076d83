# The heartbeat: who gets it, what its position covers, and what it costs others.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node = new_node('main',
	conf => 'pinpoint.heartbeat_interval = 100ms',
	init => { allows_streaming => 1 });
my %local    = (options => '-c synchronous_commit=local');
my $observer = connect_to($node, %local);
my $writer   = connect_to($node, %local);
my $library  = compile_interference();
my $form     = qr/^((?:[0-9a-f]{16}-){3}[0-9a-f]{8}-[0-9a-f]{16}) primary$/;

sub changed
{
	my ($position, @channels) = @_;
	return $observer->value("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', "
		  . join(', ', map { "'$_'" } @channels) . ')');
}

# The position of the next heartbeat of a session; other notifications before it go to
# the list.
sub heartbeat
{
	my ($session, $others) = @_;
	while (1)
	{
		my ($notification) = $session->wait_for(1);
		if ($notification->{channel} eq 'pinpoint_heartbeat')
		{
			$notification->{payload} =~ $form or die "unexpected: $notification->{payload}";
			return $1;
		}
		push @$others, as_text($notification);
	}
}

# A heartbeat that is sent from now on: not one that has come before, nor the first,
# which may have been on its way.
sub new_heartbeat
{
	my ($session, $others) = @_;
	$session->query('');
	push @$others, map { as_text($_) }
	  grep { $_->{channel} ne 'pinpoint_heartbeat' } $session->take_notifications;
	heartbeat($session, $others);
	return heartbeat($session, $others);
}

# ---- nobody listens on it

my $listener = connect_to($node, %local);
$listener->run('LISTEN a');
my $published = $observer->value('SELECT coalesce(sum(transactions), 0) FROM pinpoint.stat_notify');

# ---- somebody does

my $beats = connect_to($node, %local);
$beats->run('LISTEN pinpoint_heartbeat; LISTEN a');
my ($first) = $beats->wait_for(1);
like($first->{payload}, $form, 'a heartbeat has a position and the role of the server');
is($observer->value("SELECT backend_type FROM pg_stat_activity WHERE pid = $first->{pid}"),
	'pg_pinpoint waker', 'it comes from the waker');
my $position = heartbeat($beats);
is(heartbeat($beats), $position, 'while nothing is notified the position stays');
is($position, $observer->value('SELECT pinpoint.position()'), 'and is the present one');
is(stat_listener($observer, $listener->pid)->{wakeups}, 0, 'a session that does not listen on it is not woken');
is($observer->value('SELECT coalesce(sum(transactions), 0) FROM pinpoint.stat_notify'),
	$published, 'and no transaction is counted');

my @others;
$writer->run(q{NOTIFY a, '1'});
is(changed($position, 'a', 'b'), 'a', 'since a heartbeat a notification has come');
my $later = new_heartbeat($beats, \@others);
is_deeply(\@others, ['a/1'], 'it is delivered');
is(changed($later, 'a', 'b'), '', 'and since the next heartbeat nothing has changed');
is_deeply(all_as_text($listener->wait_for(1)), ['a/1'], 'others get it too');

# ---- PostgreSQL's own way

$position = $later;
$writer->run(q{SET pinpoint.enabled = off; NOTIFY a, '2'; RESET pinpoint.enabled});
is(changed($position, 'a', 'b'), 'a b', 'what goes through the queue of PostgreSQL counts for all channels');
$later = new_heartbeat($beats, \@others);
is(changed($later, 'a', 'b'), '', 'and the next heartbeat covers it');
is_deeply(\@others, [ 'a/1', 'a/2' ], 'when it is delivered');
is_deeply(all_as_text($listener->wait_for(1)), ['a/2'], 'to others, too');

# ---- a session that has read the queue of PostgreSQL before the notification was visible, and
# reads the heartbeat before PostgreSQL signals it

my ($ahead, $unsent) = connect_many($node, 2, %local);
$_->run("LOAD '$library'") for $ahead, $unsent;
$ahead->run('LISTEN pinpoint_heartbeat; LISTEN a');
pause_when_idle($observer, $ahead, 'ahead');
$position = $observer->value('SELECT pinpoint.position()');
$unsent->run('SET pinpoint.enabled = off');
begin_and_pause($observer, $unsent, 'release', q{NOTIFY a, '3'}, 'unsent');
is(changed($position, 'a'), 'a', 'a notification is counted before PostgreSQL signals anybody');
wait_until(sub { changed(heartbeat($beats), 'a') eq '' }) or die 'no heartbeat covers it';
open_gate('ahead');
@others = ();
wait_until(sub { changed(heartbeat($ahead, \@others), 'a') eq '' }) or die 'no heartbeat covers it';
is_deeply(\@others, ['a/3'], 'it comes before a heartbeat that covers it');
open_gate('unsent');
is($unsent->result->error, undef, 'its sender goes on');
$_->close for $ahead, $unsent;
is_deeply(all_as_text($listener->wait_for(1)), ['a/3'], 'others get it, too');

# ---- with pinpoint.latency_target

my $patient = connect_to($node, options => '-c synchronous_commit=local -c pinpoint.latency_target=300ms');
$patient->run('LISTEN pinpoint_heartbeat; LISTEN p');
foreach my $i (1 .. 3)
{
	@others = ();
	$writer->run("NOTIFY p, '$i'");
	wait_until(sub { changed(heartbeat($patient, \@others), 'p') eq '' }) or die 'no heartbeat covers it';
	is_deeply(\@others, ["p/$i"], 'a session that delays deliveries receives heartbeats after what they cover');
}
$patient->close;

# ---- in a transaction

$beats->run('BEGIN; SELECT 1');
$beats->take_notifications;
wait_until(sub { stat_listener($observer, $beats->pid)->{state} eq 'signalled' })
  or die 'no heartbeat comes';
is_deeply([ $beats->query('SELECT 1')->notifications ], [], 'nothing comes in a transaction');
$beats->run('COMMIT');
ok(heartbeat($beats), 'but after it');

# ---- another database, one without the extension, and sharing

$observer->run('CREATE DATABASE other');
my $other = connect_to($node, %local, dbname => 'other');
my $early = connect_to($node, %local, dbname => 'other');
$early->run('LISTEN pinpoint_heartbeat');
$other->run('CREATE EXTENSION pg_pinpoint');
$other->run(q{SET pinpoint.shared_channels = '*'; LISTEN pinpoint_heartbeat});
my $second = connect_to($node, %local, dbname => 'other');
$second->run(q{SET pinpoint.shared_channels = '*'; SET pinpoint.share_limit = 1; LISTEN pinpoint_heartbeat; LISTEN fence});
ok(heartbeat($other), 'another database has its heartbeat');
ok(heartbeat($second) && heartbeat($other), 'and each session gets it, shared or not');
$other->run(q{NOTIFY fence});
ok(heartbeat($second), 'one is sent');
is_deeply([ $early->query('')->notifications ], [], 'not to a session that listened when the extension did not exist');
$_->close for $other, $early, $second;

# ---- forged

foreach my $statement ('NOTIFY pinpoint_heartbeat', q{SELECT pg_notify('pinpoint_heartbeat', 'x')},
	q{SELECT pinpoint.notify('pinpoint_heartbeat', 'x')})
{
	error_is($writer->query($statement), '42939', 'channel name "pinpoint_heartbeat" is reserved',
		undef, "refused: $statement");
}

# ---- what is held back is not covered.  The first of what is held back, in the order of
# commits, is not the first that was counted.

$observer->run('CREATE TABLE rows (what text)');
$observer->run(q{ALTER SYSTEM SET synchronous_standby_names = 'nobody'});
$observer->run('SELECT pg_reload_conf()');
wait_until_commits_wait($node);
my $before = new_heartbeat($beats);

my $slow = connect_to($node);
$slow->send_query(q{BEGIN; INSERT INTO rows VALUES ('slow'); NOTIFY a, 'slow'; COMMIT});
wait_until(
	sub {
		$observer->value(q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = }
			  . $slow->pid);
	}) or die 'the commit does not wait';

my $paused = connect_to($node, %local);
$paused->run("LOAD '$library'");
begin_and_pause($observer, $paused, 'commit', q{INSERT INTO rows VALUES ('second'); NOTIFY a, 'second'});
$writer->run(q{INSERT INTO rows VALUES ('third'); NOTIFY b, 'third'});
is(changed(new_heartbeat($beats), 'a', 'b'), 'b', 'a heartbeat does not cover what is held back');
open_gate();
is($paused->result->error, undef, 'the transaction before it in the order of commits gets ready after it');
is(stat_queue($observer)->{held_back}, 2, 'two are held back');
@others = ();
my $during = new_heartbeat($beats, \@others);
is(changed($during, 'a', 'b'), 'a b', 'a heartbeat covers neither');
is_deeply(\@others, [], 'as nothing is delivered');

# What comes meanwhile does not change that.
$writer->run(qq{NOTIFY c, '$_'}) for 1 .. 200;
is(changed(new_heartbeat($beats, \@others), 'a', 'b', 'c'), 'a b c', 'nor later ones');

$observer->run('SELECT pg_cancel_backend(' . $slow->pid . ')');
is($slow->result->error, undef, 'the slow commit succeeds');
wait_until(sub { stat_queue($observer)->{held_back} == 0 }) or die 'something is still held back';
@others = ();
my $after = new_heartbeat($beats, \@others);
is_deeply(\@others, [ 'a/slow', 'a/second' ], 'all is delivered');
is(changed($after, 'a', 'b', 'c'), '', 'and covered');

# ---- under load the position does not stand still, though something is always held back

my @writers = connect_many($node, 8, %local);
$_->send_query(q{DO $$ BEGIN FOR i IN 1 .. 5000 LOOP INSERT INTO rows VALUES ('x'); PERFORM pg_notify('load', i::text); COMMIT; END LOOP; END $$})
  for @writers;
my @positions;
my $active = q{SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'DO %'};
wait_until(sub { $observer->value($active) == @writers }) or die 'the writers do not start';
$beats->query('');
$beats->take_notifications;
while ($observer->value($active))
{
	push @positions, heartbeat($beats);
}
$_->result for @writers;
is_deeply([ sort @positions ], \@positions, 'positions of heartbeats never go back');
my %different = map { $_ => 1 } @positions;
cmp_ok(scalar keys %different, '>', @positions / 2, 'and go on under load')
  or diag(scalar @positions, ' heartbeats');
is(new_heartbeat($beats), $observer->value('SELECT pinpoint.position()'), 'to the present one');

# ---- the interval, and the waker

$observer->run(q{ALTER SYSTEM SET pinpoint.heartbeat_interval = 0});
$observer->run('SELECT pg_reload_conf()');
my $reloaded = connect_to($node, %local);
wait_until(sub { $reloaded->value('SHOW pinpoint.heartbeat_interval') eq '0' }) or die 'not reloaded';
my $quiet = wait_until(
	sub {
		$beats->query('');
		$beats->take_notifications;

		# A heartbeat would come within half a second; an interval of 100 ms has passed
		# often.
		my $until = Time::HiRes::time() + 0.5;
		while (Time::HiRes::time() < $until) { $beats->receive_available; Time::HiRes::sleep(0.01); }
		return !$beats->take_notifications;
	});
ok($quiet, 'an interval of 0 sends none');
$observer->run(q{ALTER SYSTEM SET pinpoint.heartbeat_interval = '50ms'});
$observer->run('SELECT pg_reload_conf()');
$observer->run(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker'});
ok(heartbeat($beats), 'and the next waker sends it again');

# ---- nothing is left

$beats->run('UNLISTEN *');
$_->close for $beats, $listener, @writers;
server_is_clean($observer, 'nothing is left');

done_testing;
