# Each allocation of memory fails once: in LISTEN, UNLISTEN, NOTIFY, their commits, the
# delivery, the views and the end of a session.  The server goes on, no session is told
# something wrong, and nothing is left over.
#
# The allocations of pg_pinpoint, and of what it calls, are tried.
# PINPOINT_TEST_MEMORY=full tries all allocations of the session.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $full = ($ENV{PINPOINT_TEST_MEMORY} // '') eq 'full';
my $node = new_node('main', conf => "wal_level = logical\nlog_min_error_statement = panic\nmax_prepared_transactions = 2");
my $interference = compile_interference();
my ($observer, $sender, $witness) = connect_many($node, 3);
$observer->run("CREATE FUNCTION fail_allocations(text) RETURNS void LANGUAGE c AS '$interference', 'interference_fail_allocations'");
$observer->run('CREATE TABLE log (n int)');
$witness->run('LISTEN a; LISTEN z');

my $server     = $node;
my $postmaster = postmaster();
sub postmaster { return slurp_file($server->data_dir . '/postmaster.pid') =~ /^(\d+)/ && $1; }
my $file = "$PostgreSQL::Test::Utils::tmp_check/allocations";

# The session with $file lets this allocation fail, from now on; none with 0.  Or the process
# with this PID, if the server has the file.
sub fail_allocation
{
	my ($number, $pid) = @_;
	open my $handle, '+<', $file or die "could not open $file: $!";
	syswrite $handle, $number == 0 ? pack('q', 0) : pack('q5', $number, $full, $pid // 0, 0, 0)
	  or die "could not write $file: $!";
	close $handle or die "could not write $file: $!";
	return;
}

# Has one failed since the last number was set?
sub has_failed { return (unpack 'q5', slurp_file($file))[4]; }

sub new_session
{
	my (@statements) = @_;
	append_to_file($file, pack('q5', (0) x 5)) if !-s $file;
	fail_allocation(0);
	my $session = connect_to($node);
	$session->run("SELECT fail_allocations('$file')");
	$session->run($_) for q{DO $$ BEGIN END $$}, @statements;    # loads PL/pgSQL
	return $session;
}

# Calls $try with 1, 2, 3 and so on, which prepares, then sets the allocation with this number
# to fail, until none fails, or $limit have failed.
sub with_each_allocation
{
	my ($name, $try, $limit) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $failed = 0;
	my @wrong;
	while (1)
	{
		my $number = $failed + 1;
		my $wrong  = $try->($number);
		push @wrong, "allocation $number: $wrong" if $wrong;
		last if !has_failed() || @wrong > 10;
		last if ++$failed == ($limit // 0);
	}
	fail_allocation(0);
	cmp_ok($failed, '>', 0, "$name: memory is allocated");
	note("$name: $failed allocations");
	is_deeply(\@wrong, [], "$name: each may fail");
	is($server->safe_psql('postgres', 'SELECT 1') && postmaster(), $postmaster, "$name: the server goes on");
	return;
}

# What is left in the queue, which nobody has to read; undef if nothing.
sub rest
{
	my $queue = {};
	wait_until(
		sub {
			$queue = stat_queue($observer);
			return !grep { $queue->{$_} } qw(used_bytes batches in_flight held_back);
		}) and return;
	return join ', ', map { "$_ $queue->{$_}" } qw(used_bytes batches in_flight held_back);
}

# What the witness has received on "a", up to now.
my $fence = 0;
sub received
{
	$sender->run("NOTIFY z, '" . ++$fence . q{'});
	return join ' ', map { "$_->{channel}/$_->{payload}" } $witness->notifications_until('z', $fence);
}

# How a statement failed that may only run out of memory; undef if it did that, or nothing.
sub wrong_error
{
	my ($result) = @_;
	my $error = $result->error or return;
	return if $error->{C} eq '53200';

	# PostgreSQL reports an internal error if memory runs out when it creates a hash table.
	return if $error->{M} =~ /^failed to initialize hash table/;
	return "$error->{S} $error->{C} $error->{M}";
}

# ---- senders

# A notification arrives if and only if the row of its transaction is there.
my $number_of_rows = 0;
sub try_sender
{
	my ($session, $sql, $expected) = @_;
	return sub {
		my ($number) = @_;
		$number_of_rows++;
		fail_allocation($number);
		my $result = ${$session}->query("INSERT INTO log VALUES ($number_of_rows); $sql");
		fail_allocation(0);
		my $failed = has_failed();
		my $ended  = $result->types =~ /\$$/;

		# If PL/pgSQL runs out of memory before it has rolled back a subtransaction, PostgreSQL
		# cannot end the transaction.
		if (!$ended && $result->status ne 'I')
		{
			$$session->close;
			$ended = 1;
		}
		my $committed = $observer->value("SELECT count(*) FROM log WHERE n = $number_of_rows");
		my $received  = received();
		my $due       = $committed ? $expected : '';
		my $rest      = rest();
		$$session = new_session() if $ended;
		return
			$received ne $due      ? "received '$received', not '$due'"
		  : $rest                  ? "left: $rest"
		  : wrong_error($result)   ? wrong_error($result)
		  : !$failed && !$committed ? 'not committed'
		  :                          undef;
	};
}

my $session = new_session();
my @senders = (
	[ 'NOTIFY',      q{NOTIFY a, 'x'}, 'a/x' ],
	[ 'pg_notify()', q{SELECT pg_notify('a', 'x')}, 'a/x' ],
	[
		'many notifications',
		q{SELECT count(pg_notify('a', (i % 20)::text)) FROM generate_series(1, 40) i},
		join ' ', map { "a/$_" } 1 .. 19, 0
	],
	[
		'many channels',
		q{SELECT count(pg_notify('c' || i, '')) FROM generate_series(1, 100) i; NOTIFY a, 'x'}, 'a/x'
	],
	[
		'subtransactions',
		q{DO $$ BEGIN NOTIFY a, '1'; BEGIN NOTIFY a, '2'; BEGIN NOTIFY a, '3'; END; RAISE EXCEPTION 'no';}
		  . q{ EXCEPTION WHEN raise_exception THEN NOTIFY a, '4'; END; NOTIFY a, '5'; END $$},
		'a/1 a/4 a/5'
	]);
with_each_allocation($_->[0], try_sender(\$session, $_->[1], $_->[2])) for @senders;

$session->run('SET pinpoint.replicate = on');
with_each_allocation('pinpoint.replicate', try_sender(\$session, q{NOTIFY a, 'x'}, 'a/x'));
$session->close;

# ---- watched tables

$observer->run($_) for 'CREATE TABLE watched (n int)', 'CREATE TABLE child () INHERITS (watched)', q{SELECT pinpoint.watch('watched', 'a')},
  'CREATE TABLE by_row (n int)',
  q{CREATE TRIGGER t AFTER INSERT ON by_row FOR EACH ROW EXECUTE FUNCTION pinpoint.notify_row('{n}', '{n}')};
$session = new_session();
is(received(), 'a/', 'watch() notifies the channel');
with_each_allocation('a watched table', try_sender(\$session, 'INSERT INTO child VALUES (1)', 'a/'));
with_each_allocation('watch()', try_sender(\$session, q{SELECT pinpoint.watch('watched', 'a'); INSERT INTO watched VALUES (1)}, 'a/'));
with_each_allocation('notify_row()', try_sender(\$session, q{INSERT INTO by_row VALUES (1); NOTIFY a, 'x'}, 'a/x'));

# COMMIT PREPARED may fail after the prepared transaction has committed.  Then listeners are
# disconnected instead of notified.
my ($of_prepared, $disconnected) = (0, 0);
with_each_allocation(
	'COMMIT PREPARED',
	sub {
		my ($number) = @_;
		$of_prepared++;
		$sender->run("BEGIN; INSERT INTO child VALUES (1000 + $of_prepared); PREPARE TRANSACTION 'p'");
		fail_allocation($number);
		my $result = $session->query(q{COMMIT PREPARED 'p'});
		my $failed = has_failed();
		my $ended  = $result->types =~ /\$$/;
		fail_allocation(0) if !$failed;
		my $committed = $observer->value("SELECT count(*) FROM watched WHERE n = 1000 + $of_prepared");
		$observer->run(q{ROLLBACK PREPARED 'p'}) if !$committed;
		$session = new_session() if $ended;
		if ($committed && $result->error)
		{
			my $error = $witness->receive_until('E')->error;
			$witness = connect_to($node);
			$witness->run('LISTEN a; LISTEN z');
			$disconnected++;
			return "the listener is told $error->{C}" if $error->{C} ne '57P01';
		}
		else
		{
			my $received = received();
			return "received '$received'" if $received ne ($committed ? 'a/' : '');
		}
		return wrong_error($result) // rest();
	});
note("listeners were disconnected $disconnected times");
$session->close;

# ---- listeners

# A new session executes LISTEN.  What it then receives is what pg_listening_channels() says.
sub try_listen
{
	my ($before, $sql, $channels) = @_;
	return sub {
		my ($number) = @_;
		my $listener = new_session(@$before);
		fail_allocation($number);
		my $result = $listener->query($sql);
		fail_allocation(0);
		my $ended  = $result->types =~ /\$$/;
		my $failed = has_failed();
		my $wrong  = wrong_error($result);
		$wrong = 'no error' if $failed && !$result->error;
		my $listening = '';
		if (!$ended)
		{
			$listener->run('ROLLBACK') if $result->status ne 'I';
			$listening = join ' ', sort map { $_->[0] } @{ $listener->run('SELECT pg_listening_channels()')->rows };
			$sender->run(join '; ', map { "NOTIFY $_, '$number'" } qw(b c d));

			# The end of a later statement is behind what the session has to receive.
			$listener->run('LISTEN e');
			$listener->run("NOTIFY e, 'end'");
			my @received = $listener->notifications_until('e', 'end');
			my $begins   = grep { $_->{payload} eq '' } @received;
			my $got      = join ' ', sort map { $_->{channel} } grep { $_->{payload} ne '' } @received;
			$wrong ||= "$begins notifications of the LISTEN" if $begins != ("@$before" =~ /notify_on_listen/ && $listening ne '');
			$wrong ||= "received '$got', listens on '$listening'" if $got ne $listening;
			$listener->close;
		}
		wait_until(sub { $observer->value(q{SELECT count(*) FROM pinpoint.stat_listeners}) == 1
			&& $observer->value(q{SELECT count(*) FROM pinpoint.stat_channels}) == 2 })
		  or $wrong ||= 'something is left of the session';
		my $rest = rest();
		return
			$wrong ? $wrong
		  : $rest  ? "left: $rest"
		  : !$failed && $listening ne $channels ? "listens on '$listening'"
		  :          undef;
	};
}

with_each_allocation('first LISTEN', try_listen([], 'LISTEN b', 'b'));
with_each_allocation('further LISTEN',
	try_listen([ 'LISTEN b' ], 'BEGIN; LISTEN c; LISTEN d; COMMIT', 'b c d'));
with_each_allocation('LISTEN, shared',
	try_listen([ q{SET pinpoint.shared_channels = 'b'} ], 'LISTEN b', 'b'));
with_each_allocation('pinpoint.notify_on_listen',
	try_listen([ q{SET pinpoint.notify_on_listen = 'b'} ], 'LISTEN b', 'b'));
with_each_allocation('UNLISTEN', try_listen([ 'LISTEN b; LISTEN c' ], 'UNLISTEN c', 'b'));
with_each_allocation('UNLISTEN *',
	try_listen([ 'LISTEN b; LISTEN c' ], q{BEGIN; UNLISTEN *; LISTEN b; COMMIT}, 'b'));

# ---- delivery

# A listener that was idle either receives everything, or its session ends.  PostgreSQL reports
# a protocol violation (08P01) if its small transaction fails while it waits for the client.
sub try_delivery
{
	my (@before) = @_;
	my $listener;
	return sub {
		my ($number) = @_;
		$listener //= new_session(@before);
		fail_allocation($number);
		$sender->run("BEGIN; NOTIFY b, '$number'; NOTIFY c, '$number'; NOTIFY d, '$number'; COMMIT");
		my ($got, $end, @errors) = ('', '');
		while ($got ne 'b c' && !$end)
		{
			my $message = $listener->receive;
			$got .= ($got && ' ') . $message->{channel} if $message->{type} eq 'A';
			$end = $message->{type} eq 'EOF';
			push @errors, $message->{fields}{C} if $message->{type} eq 'E';
		}
		fail_allocation(0);
		undef $listener if $end;
		wait_until(sub { $observer->value(q{SELECT count(*) FROM pinpoint.stat_listeners}) == ($end ? 1 : 2) })
		  or die 'the session does not end';
		my $rest = rest();
		return
			grep({ !/^(?:53200|08P01)$/ } @errors) ? "errors @errors"
		  : $rest ? "left: $rest"
		  : $end && !@errors ? 'the session ended without an error'
		  :         undef;
	};
}

with_each_allocation('delivery', try_delivery('LISTEN b; LISTEN c'));
with_each_allocation('delivery with pinpoint.fold', try_delivery('SET pinpoint.fold = on', 'LISTEN b; LISTEN c'));
with_each_allocation('delivery, shared',
	try_delivery(q{SET pinpoint.shared_channels = 'b'}, 'LISTEN b; LISTEN c'));
with_each_allocation('delivery with pinpoint.latency_target',
	try_delivery('SET pinpoint.latency_target = 1', 'LISTEN b; LISTEN c'));

# ---- functions and views

$session = new_session();
my $position = $session->value('SELECT pinpoint.position()');
$sender->run('NOTIFY b');
foreach my $sql (
	"SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', 'b', 'c')",
	"CALL pinpoint.wait('{b,c}', '$position', '1 hour')",
	"CALL pinpoint.wait('{c}', '$position', '1 ms')",
	'SELECT count(*) FROM pinpoint.stat_listeners',
	'SELECT count(*) FROM pinpoint.listening',
	'SELECT count(*) FROM pinpoint.stat_channels',
	'SELECT count(*) FROM pinpoint.stat_notify')
{
	my $expected = $session->value($sql);
	with_each_allocation(
		$sql =~ s/'[^']*-[^']*'/position/r,
		sub {
			my ($number) = @_;
			fail_allocation($number);
			my $result = $session->query($sql);
			fail_allocation(0);
			my $wrong = wrong_error($result);
			return $wrong if $wrong;
			return 'it still waits' if $observer->value('SELECT count(*) FROM pinpoint.waiting') > 0;
			return if $result->error;
			return 'no error' if has_failed();
			return $result->rows->[0][0] eq $expected ? undef : "result $result->rows->[0][0]";
		});
}
$session->close;

# ---- the end of a session

my $sharers = connect_to($node);
$sharers->run(q{SET pinpoint.shared_channels = 's'; LISTEN s});
my $n = 0;
with_each_allocation_or_none(
	'end of a session',
	sub {
		my ($number) = @_;
		my $leaving = new_session(q{SET pinpoint.shared_channels = 's'; SET pinpoint.share_limit = 1}, 'LISTEN s; LISTEN b');
		$leaving->run('BEGIN');
		$sender->run("NOTIFY s, '" . ++$n . q{'}) for 1 .. 4;
		fail_allocation($number);
		$leaving->close;
		wait_until(sub { $observer->value(q{SELECT count(*) FROM pinpoint.stat_listeners}) == 2 })
		  or return 'something is left of the session';
		$sender->run("NOTIFY s, 'end'");
		my %got = map { $_->{payload} => 1 } $sharers->notifications_until('s', 'end');
		return if 4 == grep { $got{ $n - $_ } } 0 .. 3;
		return 'notifications are lost';
	});

sub with_each_allocation_or_none
{
	my ($name, $try) = @_;
	my $failed = 0;
	my @wrong;
	while (1)
	{
		my $wrong = $try->($failed + 1);
		push @wrong, "allocation " . ($failed + 1) . ": $wrong" if $wrong;
		last if !has_failed() || @wrong > 10;
		$failed++;
	}
	note("$name: $failed allocations");
	is_deeply(\@wrong, [], "$name: memory may run out");
	return;
}

$_->close for $sharers, $witness;
server_is_clean($observer, 'nothing is left');
$node->stop;

# ---- the waker, and replay on a standby

my %with_file = (
	preload => "pg_pinpoint, $interference",
	conf    => "interference.allocations = '$file'\npinpoint.heartbeat_interval = 10ms\npinpoint.replicate = on\n"
	  . 'log_min_error_statement = panic');
fail_allocation(0);
my $primary = new_node('primary', init => { allows_streaming => 1 }, %with_file);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'hot_standby = on');
$standby->start;
$server     = $primary;
$postmaster = postmaster();
($observer, $sender, $witness) = connect_many($primary, 3);
$witness->run('LISTEN a; LISTEN z; LISTEN pinpoint_heartbeat');
my @others = connect_many($primary, 12);
$_->run('LISTEN a') for @others;

sub waker
{
	my $pid;
	wait_until(sub { $pid = $observer->run(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker'})->rows->[0] })
	  or die 'there is no waker';
	return $pid->[0];
}

# It signals the listeners, sends heartbeats, and starts again a second after it has failed.
with_each_allocation(
	'waker',
	sub {
		my ($number) = @_;
		fail_allocation($number, waker());
		$sender->run("NOTIFY a, '$number'");
		my @wrong = grep { $_ ne "a/$number" } map { as_text($_->wait_for(1)) } @others;
		wait_until(\&has_failed) or return 'the waker allocates nothing';

		# No heartbeat is sent while there is no waker.
		waker();
		$sender->run("NOTIFY z, '$number'");
		$witness->notifications_until('z', $number);
		my ($next) = $witness->wait_for(1);
		return
			@wrong ? "received @wrong"
		  : $next->{channel} ne 'pinpoint_heartbeat' ? 'received ' . as_text($next)
		  :          undef;
	},
	$full ? 30 : 4);
$_->close for $witness, @others;

# The startup process must not fail, so it must not allocate memory.
$sender->run('CREATE TABLE t (b bool)');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
my ($listener, $looker) = connect_many($standby, 2);
wait_until_counting($looker);
$listener->run('LISTEN a; LISTEN pinpoint_heartbeat');
$looker->run(q{SET pinpoint.shared_channels = 'a'; LISTEN a});
my $startup = $looker->value(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'});
fail_allocation(1_000_000, $startup);
$sender->run(q{NOTIFY a, 'alone'; SELECT count(pg_notify('c' || i, repeat('x', 7000))) FROM generate_series(1, 3000) i; NOTIFY a, 'many'});
$sender->run(q{INSERT INTO t SELECT pg_notify('a', 'with a row') IS NULL});
is_deeply(
	[ grep { !/heartbeat/ } map { as_text($_) } $listener->notifications_until('a', 'with a row') ],
	[ 'a/alone', 'a/many' ],
	'a standby replays notifications');
is((unpack 'q5', slurp_file($file))[3], 0, 'and the startup process allocates no memory for them');
fail_allocation(0);

# ---- an apply worker that commits a prepared transaction

my $subscriber = new_node('subscriber', preload => "pg_pinpoint, $interference", init => { allows_streaming => 'logical' }, conf => <<"EOC");
interference.allocations = '$file'
max_prepared_transactions = 5
wal_retrieve_retry_interval = 100ms
log_min_error_statement = panic
EOC
$server     = $subscriber;
$postmaster = postmaster();
$_->close for $observer, $sender;
($observer, $sender, $witness) = connect_many($subscriber, 3);
$observer->run($_) for 'CREATE TABLE watched (n int)', 'CREATE TABLE plain (n int)', q{SELECT pinpoint.watch('watched', 'a')},
  'CREATE DATABASE publisher';
$witness->run('LISTEN a; LISTEN z');
my $publisher = connect_to($subscriber, dbname => 'publisher');
$publisher->run($_) for 'CREATE TABLE watched (n int)', 'CREATE TABLE plain (n int)', 'CREATE PUBLICATION p FOR ALL TABLES',
  q{SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, true)};
$observer->run("CREATE SUBSCRIPTION s CONNECTION 'host="
	  . $subscriber->host . ' port=' . $subscriber->port . ' user=' . getpwuid($>) . q{ dbname=publisher' PUBLICATION p}
	  . q{ WITH (create_slot = false, slot_name = 's', copy_data = false, two_phase = true)});
wait_until(sub { $observer->value('SELECT subtwophasestate FROM pg_subscription') eq 'e' }) or die 'there is no subscription';
my $prepared = 'SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()';

sub apply_worker
{
	my ($not) = @_;
	my $rows;
	wait_until(
		sub {
			$rows = $observer->run(q{SELECT pid FROM pg_stat_activity WHERE datname = 'postgres'}
				  . q{ AND backend_type IN ('logical replication worker', 'logical replication apply worker')})->rows;
			return @$rows && $rows->[0][0] != ($not // 0);
		}) or die 'there is no worker';
	return $rows->[0][0];
}

# The listener is notified, or it is told that it was not.  The next worker does what is left.
($of_prepared, $disconnected) = (0, 0);
with_each_allocation(
	'COMMIT PREPARED of an apply worker',
	sub {
		my ($number) = @_;
		$of_prepared++;
		my $worker = apply_worker();
		$publisher->run($_) for 'BEGIN', "INSERT INTO watched VALUES ($of_prepared)", q{PREPARE TRANSACTION 'p'};
		wait_until(sub { $observer->value($prepared) == 1 }) or die 'the transaction is not prepared';
		fail_allocation($number, $worker);
		$publisher->run(q{COMMIT PREPARED 'p'});
		wait_until(sub { $observer->value($prepared) == 0 }) or die 'the transaction is not committed';

		# The worker has committed another transaction, or there is another worker.
		$publisher->run("INSERT INTO plain VALUES ($of_prepared)");
		wait_until(sub { $observer->value("SELECT count(*) FROM plain WHERE n = $of_prepared") }) or die 'the worker stops';
		my $failed = has_failed();
		return 'the worker has not ended' if $failed && apply_worker() == $worker;
		fail_allocation(0) if !$failed;
		my $message = $witness->receive;
		if ($message->{type} eq 'E')
		{
			$disconnected++;
			return "the listener is told $message->{fields}{C}" if $message->{fields}{C} ne '57P01';
			$witness->close;
			$witness = connect_to($subscriber);
			$witness->run('LISTEN a; LISTEN z');
		}
		elsif (as_text($message) ne 'a/')
		{
			return 'received ' . as_text($message);
		}

		# The next worker may notify again.
		my $received = received();
		return $received =~ /^(?:a\/ ?)*$/ ? rest() : "then received '$received'";
	});
note("listeners were disconnected $disconnected times");
fail_allocation(0);

unlike(slurp_file($_->logfile), qr/PANIC|TRAP|terminated by signal/, $_->name . ': no process has crashed')
  for $node, $primary, $standby, $subscriber;

done_testing();
