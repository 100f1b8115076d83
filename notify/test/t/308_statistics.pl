# The views count correctly, and show each role what its privileges allow.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use JSON::PP qw(decode_json);
use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $node = new_node('main', max_connections => 100,
	conf => "pinpoint.queue_size = 1MB\npinpoint.queue_memory = 64kB");
my ($observer, $sender) = connect_many($node, 2);
$observer->run($_)
  for 'CREATE ROLE someone LOGIN', 'CREATE ROLE watcher LOGIN IN ROLE pg_read_all_stats', 'CREATE DATABASE elsewhere';

# The counters of a database, by name; all zero if nothing was counted there.
sub counters
{
	my ($database) = @_;
	my $row = $observer->value(
		"SELECT row_to_json(n) FROM pinpoint.stat_notify AS n WHERE datname = '" . ($database // 'postgres') . "'");
	my %counters = defined $row ? %{ decode_json($row) } : ();
	delete @counters{qw(datid datname max_held_back_time stats_reset)};
	return \%counters;
}

# What has changed while some code ran, without zeros, and how many seconds it took.
my $seconds;
sub counted
{
	my ($code, $database) = @_;
	my $before = counters($database);
	my $began  = Time::HiRes::time;
	$code->();
	my $after = counters($database);
	$seconds = int(Time::HiRes::time - $began);
	my %change = map { $_ => $after->{$_} - ($before->{$_} // 0) } keys %$after;
	return { map { $change{$_} ? ($_ => $change{$_}) : () } keys %change };
}

# These are the counters.  Who does not get to read for a second, as somebody in a
# transaction, is reminded by one more signal.
sub counters_are
{
	my ($got, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $most = $expected->{signals} * (1 + $seconds);
	$got->{signals} = $expected->{signals}
	  if ($got->{signals} // 0) > $expected->{signals} && $got->{signals} <= $most;
	return is_deeply($got, $expected, $name);
}

# ---- counters

is_deeply(counted(sub { $sender->run("NOTIFY a, '$_'") for 1 .. 5 }),
	{ transactions => 5, notifications => 5, unheard => 5 }, 'nobody listens');
my @listeners = connect_many($node, 3);
$_->run('LISTEN a') for @listeners;
counters_are(
	counted(sub {
		$sender->run(q(BEGIN; NOTIFY a, '1'; NOTIFY a, '2'; NOTIFY a, '1'; COMMIT));
		$_->wait_for(2) for @listeners;
		wait_until_idle($observer, $_->pid) for @listeners;
	}),
	{ transactions => 1, notifications => 2, signals => 3, delivered => 6 }, 'three listen');
$listeners[0]->run('BEGIN');
counters_are(
	counted(sub {
		for (1 .. 4)
		{
			$sender->run("NOTIFY a, '$_'");
			foreach (@listeners[ 1, 2 ])
			{
				$_->wait_for(1);
				wait_until_idle($observer, $_->pid);
			}
		}
	}),
	{ transactions => 4, notifications => 4, signals => 9, signals_saved => 3, delivered => 8 },
	'one of them in a transaction');
my $ends = counted(sub { $listeners[0]->run('COMMIT') });
delete $ends->{signals} if ($ends->{signals} // 0) <= 1 + $seconds;    # reminders
is_deeply($ends, { delivered => 4 }, 'which ends');
$listeners[0]->run('SET pinpoint.fold = on');
$listeners[0]->run('BEGIN');
$_->close for @listeners[ 1, 2 ];
wait_until(sub { $observer->value('SELECT count(*) FROM pinpoint.stat_listeners') == 1 }) or die;
counters_are(
	counted(sub {
		$sender->run('NOTIFY a') for 1 .. 10;
		$listeners[0]->run('COMMIT');
	}),
	{ transactions => 10, notifications => 10, signals => 1, signals_saved => 9, delivered => 10, folded => 9 },
	'folded');
is_deeply(counted(sub { $sender->run('BEGIN; NOTIFY a; ROLLBACK') }), {}, 'a rollback is nothing');

my @crowd = connect_many($node, 20);
$_->run('LISTEN crowd') for @crowd;
counters_are(
	counted(sub {
		$sender->run('NOTIFY crowd');
		$_->wait_for(1) for @crowd;
		wait_until_idle($observer, $_->pid) for @crowd;
	}),
	{ transactions => 1, notifications => 1, signals => 20, waker_signals => 20, delivered => 20 }, 'the waker');
$_->close for @crowd;

my ($first, $second) = connect_many($node, 2,
	options => '-c pinpoint.shared_channels=jobs -c pinpoint.share_limit=1');
$first->run('LISTEN jobs');
$first->run('BEGIN');
counters_are(
	counted(sub {
		$sender->run('NOTIFY jobs');
		$second->run('LISTEN jobs');
		$first->close;
		$second->wait_for(1);
		$second->run('');    # it has counted when it answers
	}),
	{ transactions => 1, notifications => 1, signals => 2, reassigned => 1, delivered => 1 }, 'handed on');

# A commit that waits holds back another.
my $library = compile_interference();
my $slow    = connect_to($node);
$slow->run("LOAD '$library'");
$observer->run('CREATE TABLE t (i int)');
is_deeply(
	counted(sub {
		begin_and_pause($observer, $slow, 'commit', 'BEGIN; INSERT INTO t VALUES (1); NOTIFY x; COMMIT');
		$sender->run('NOTIFY x');
		open_gate();
		$slow->result;
	}),
	{ transactions => 2, notifications => 2, unheard => 2, held_back => 1, published_by_others => 1 },
	'held back');
my $longest = "SELECT max_held_back_time FROM pinpoint.stat_notify WHERE datname = 'postgres'";
cmp_ok($observer->value($longest), '>', 0, 'for some time');
cmp_ok($observer->value($longest), '<', 1000 * (time - $^T + 1), 'in milliseconds');
$slow->close;

my $far = connect_to($node, dbname => 'elsewhere');
$far->run('CREATE EXTENSION pg_pinpoint');
is_deeply(counted(sub { $far->run('NOTIFY a') }, 'elsewhere'),
	{ transactions => 1, notifications => 1, unheard => 1 }, 'another database');

# ---- by channel

my $by_channel = q(SELECT string_agg(channel || ' ' || transactions, ', ' ORDER BY channel) FROM pinpoint.stat_channels WHERE channel LIKE 'by%');
my $counting = connect_to($node);
$counting->run('LISTEN by1; LISTEN by2');
$sender->run($_)
  for 'NOTIFY by1', q(BEGIN; NOTIFY by1, 'a'; NOTIFY by1, 'b'; NOTIFY by2; NOTIFY by3; COMMIT), 'BEGIN; NOTIFY by1; ROLLBACK';
is($observer->value($by_channel), 'by1 2, by2 1', 'transactions that notified a channel');
$counting->run($_) for 'UNLISTEN by1', 'LISTEN by1';
is($observer->value($by_channel), 'by1 0, by2 1', 'since somebody listens');
$counting->close;

# ---- many sessions at a time

my @senders = connect_many($node, 8);
is_deeply(
	counted(sub {
		$_->send_query(q(DO $$ BEGIN FOR i IN 1 .. 500 LOOP PERFORM pg_notify('nobody', j::text) FROM generate_series(1, 3) j; COMMIT; END LOOP; END $$))
		  for @senders;
		$_->result for @senders;

		# The last ones can have left some to the waker.
		wait_until(sub { stat_queue($observer)->{held_back} == 0 }) or die 'some are held back';
	})->{$_},
	{ transactions => 4000, notifications => 12000, unheard => 4000 }->{$_}, "eight sessions: $_")
  for qw(transactions notifications unheard);
$_->close for @senders;

# ---- looked at all the time, while sessions begin and end to read

my @busy = connect_many($node, 6);
$_->run('LISTEN busy') for @busy;
my $many = 5000;
$observer->send_query(q(DO $$ BEGIN FOR i IN 1 .. 20000 LOOP PERFORM FROM pinpoint.stat_get_listeners(); PERFORM FROM pinpoint.stat_get_queue(); END LOOP; END $$));
$sender->send_query("DO \$\$ BEGIN FOR i IN 1 .. $many LOOP PERFORM pg_notify('busy', ''); COMMIT; END LOOP; END \$\$");
$_->wait_for($many) for @busy;
is($_->result->error, undef, 'looking does no harm') for $sender, $observer;
$_->close for @busy;

# ---- a queue that is full; a listener that is behind

$listeners[0]->run('RESET pinpoint.fold');
$listeners[0]->run('BEGIN');
my $sent = 0;

# Sends much.  Does it fit?
sub send_much
{
	my $result = $sender->query(q(SELECT pg_notify('a', repeat('x', 7000) || i) FROM generate_series(1, 10) i));
	$sent++ unless $result->error;
	return !$result->error;
}

# The server looks for a reason to warn at most once in 5 seconds, and the busy listeners
# above may have been the reason for the last look.
my $warned = counters()->{warned} // 0;
my $full   = counted(sub { while (send_much()) { } });
is($full->{queue_full}, 1, 'a queue that is full');
is($full->{transactions}, $sent, 'what fails is not sent');
ok(wait_until(sub { send_much(); counters()->{warned} > $warned }), 'of which somebody is warned');
if ($node->pg_version >= 17)
{
	is($observer->value(q(SELECT count(*) FROM pg_wait_events WHERE name = 'PinpointQueueFile')),
		1, 'waiting for the file to grow has a name');
}
my $row = $observer->run(
	q(SELECT backlog_batches, backlog_bytes > 500000 AS large,
	  oldest_unread BETWEEN now() - interval '1 hour' AND now() AS old, usename = current_user AS who, application_name,
	  state FROM pinpoint.stat_listeners WHERE pid = ) . $listeners[0]->pid);
is_deeply($row->rows, [ [ $sent, 't', 't', 't', '', 'signalled' ] ], 'which session is behind, by how much, since when');
is_deeply(counted(sub {
		$observer->run(q(ALTER SYSTEM SET pinpoint.max_listener_lag = '100kB'));
		$observer->run(q(ALTER SYSTEM SET pinpoint.on_lag = 'disconnect'));
		$observer->run('SELECT pg_reload_conf()');
		wait_until(sub { $sender->query('NOTIFY nobody'); !defined stat_listener($observer, $listeners[0]->pid) });
	})->{disconnected}, 1, 'disconnected');

# ---- who sees what

my $theirs = connect_to($node, user => 'someone');
$theirs->run('LISTEN secret');
my $own = connect_to($node);
$own->run('LISTEN other');
my ($someone, $watcher) = map { connect_to($node, user => $_) } qw(someone watcher);
my $query = 'SELECT usename, state, channels FROM pinpoint.stat_listeners WHERE pid = ';
is_deeply($someone->run($query . $own->pid)->rows, [ [ undef, undef, undef ] ], q(of another user's session nothing but that it is there));
is_deeply($someone->run($query . $theirs->pid)->rows, [ [ 'someone', 'idle', 1 ] ], 'of ones own everything');
is_deeply($watcher->run($query . $own->pid)->rows, [ [ scalar getpwuid($>), 'idle', 1 ] ], 'pg_read_all_stats sees all');
error_is($someone->query("SELECT * FROM pinpoint.$_"), '42501', "permission denied for view $_", undef, "$_ is not for everybody")
  for qw(listening stat_channels);
error_is($someone->query('SELECT pinpoint.stat_reset()'), '42501', 'permission denied for function stat_reset', undef, 'nor is stat_reset()');
is_deeply($watcher->run('SELECT pid, channel, shared FROM pinpoint.listening WHERE pid IN (' . join(',', $own->pid, $theirs->pid, $second->pid) . ') ORDER BY channel')->rows,
	[ [ $second->pid, 'jobs', 't' ], [ $own->pid, 'other', 'f' ], [ $theirs->pid, 'secret', 'f' ] ], 'who listens on what');
$far->run('LISTEN hidden');
is_deeply($watcher->run('SELECT datname, channel FROM pinpoint.listening WHERE pid = ' . $far->pid)->rows,
	[ [ 'elsewhere', undef ] ], 'not the names in another database');

# ---- reset

is($observer->value('SELECT max(stats_reset) FROM pinpoint.stat_notify'), undef, 'never reset');
$observer->run('SELECT pinpoint.stat_reset()');
is_deeply(counted(sub { }), {}, 'quiet');
is($observer->value('SELECT sum(transactions + notifications + signals + delivered + max_held_back_time) FROM pinpoint.stat_notify'), 0, 'all is zero');
isnt($observer->value('SELECT max(stats_reset) FROM pinpoint.stat_notify'), undef, 'and since when is told');

$_->close for $theirs, $own, $far, $second;
server_is_clean($observer, 'nothing is left');

done_testing();
