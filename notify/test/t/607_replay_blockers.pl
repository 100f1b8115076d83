# A client that does not read its notifications holds up neither replay nor a promotion,
# whatever replay waits for: all that PostgreSQL can ask a session for while it sends.  A
# session for which nothing waits stays.  606 has the cases of DROP DATABASE.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $conf    = "pinpoint.replicate = on\nallow_in_place_tablespaces = on";
my $primary = new_node('primary', init => { allows_streaming => 'logical' }, conf => $conf);
my $admin   = connect_to($primary);
my $version = $admin->value(q(SELECT current_setting('server_version_num')::int / 10000));
$admin->run("CREATE DATABASE victim$_") for 0 .. 3;
$admin->run("CREATE TABLESPACE victim$_ LOCATION ''") for 0 .. 1;
$primary->backup('base');

my ($standby, $observer, $stuck, $reader);
my $payload = 'x' x 7000;

sub state_of
{
	my ($condition) = @_;
	return $observer->value("SELECT wait_event FROM pg_stat_activity WHERE $condition") // '';
}

sub startup_waits
{
	my ($event) = @_;
	return wait_until(sub { state_of(q(backend_type = 'startup')) eq $event });
}

# A new standby, with a session that reads and one that does not.
sub begin_standby
{
	my ($name, $more, $delay) = @_;
	$standby = PostgreSQL::Test::Cluster->new($name);
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->append_conf('postgresql.conf', "max_standby_streaming_delay = $delay\n$more");
	$standby->start;
	$observer = connect_to($standby);
	my $lsn = $admin->value('SELECT pg_current_wal_flush_lsn()');
	wait_until(sub { $observer->value("SELECT pg_last_wal_replay_lsn() >= '$lsn'") eq 't' }) or die 'no catch-up';
	$reader   = connect_to($standby);
	$reader->run('LISTEN fence');
	$stuck = connect_to($standby);
	get_stuck();
	return;
}

# Notifications, until the session waits for its client to read.
sub get_stuck
{
	$stuck->run('LISTEN a');

	# one batch, and far more than the client reads below
	$admin->run(qq(SELECT count(pg_notify('a', i || '$payload')) FROM generate_series(1, 3000) i));
	wait_until(sub { state_of('pid = ' . $stuck->pid) eq 'ClientWrite' }) or die 'the session does not get stuck';
	return;
}

sub is_there { return defined stat_listener($observer, $stuck->pid); }

sub reader_gets_everything
{
	my ($name, $from) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$from->run("NOTIFY fence, '$name'");
	$reader->notifications_until('fence', $name);
	return pass("$name: a session that reads stays");
}

sub promotes
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(is_there(), "$name: the session stays while nothing waits for it");
	my $began = time;
	is($observer->value('SELECT pg_promote(true, 60)'), 't', "$name: a promotion does not wait for it");
	note(sprintf '%s: %.2f s', $name, time - $began);
	ok(wait_until(sub { !is_there() }), "$name: the session is gone");
	return reader_gets_everything($name, $observer);
}

sub end_standby
{
	$stuck->receive_until('EOF');
	$reader->close;
	server_is_clean($observer, 'nothing is left');
	$observer->close;
	return;
}

# A case with a standby of its own.  If one case fails, the next ones run nevertheless.
sub with_standby
{
	my ($name, $more, $delay, $code) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	eval { begin_standby($name, $more, $delay); $code->($name); end_standby(); 1 }
	  or fail("$name: $@");
	$_->hang_up for grep { defined } $stuck, $reader, $observer;
	$standby->stop('immediate');
	return;
}

# Replay of DROP TABLESPACE first asks all sessions to close their files.  The client
# reads until its session has done so.  Then all transactions conflict, because there is a
# temporary file.
sub drop_tablespace
{
	my ($name) = @_;
	my $user   = connect_to($standby);
	$user->run($_)
	  for "SET temp_tablespaces = $name", 'SET work_mem = 64', 'BEGIN',
	  q(DECLARE c CURSOR FOR SELECT i || repeat('x', 100) FROM generate_series(1, 10000) i ORDER BY 1), 'FETCH c';
	$admin->run("DROP TABLESPACE $name");
	wait_until(
		sub {
			my $state = state_of(q(backend_type = 'startup'));
			$stuck->read_ahead if $state eq 'ProcSignalBarrier' && state_of('pid = ' . $stuck->pid) eq 'ClientWrite';
			return $state eq 'RecoveryConflictTablespace';
		}) or die 'no conflict';
	$user->close;
	return;
}

# ---- recovery conflicts

with_standby('tablespace_conflict', '', '3s', sub {
	drop_tablespace('victim0');
	ok(wait_until(sub { !is_there() }), 'a tablespace is dropped: the session is ended like a query');
	ok(wait_until(sub { $observer->value(q(SELECT count(*) FROM pg_tablespace WHERE spcname = 'victim0')) == 0 }), 'replay goes on');
	ok(wait_until(sub { $standby->log_contains('disconnecting 1 listener because replay waits for it') }), 'the log says so');
	reader_gets_everything('conflict', $admin);
});

SKIP:
{
	skip 'no logical slots on a standby before PostgreSQL 16', 4 if $version < 16;
	with_standby('slot_conflict', '', '3s', sub {
		$stuck->close;
		$stuck = connect_to($standby);
		$stuck->send_query(q(SELECT pg_create_logical_replication_slot('temporary', 'test_decoding', true)));
		wait_until(
			sub {
				$admin->run('SELECT pg_log_standby_snapshot()');
				return $observer->value('SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn IS NOT NULL') == 1;
			}) or die 'no slot';
		is($stuck->result->error, undef, 'a session has a temporary replication slot');
		get_stuck();
		$admin->run($_) for 'CREATE TABLE short_lived ()', 'DROP TABLE short_lived', 'VACUUM pg_class';
		ok(wait_until(sub { !is_there() }), 'its slot conflicts with recovery: it is ended');
		reader_gets_everything('slot', $admin);
	});
}

# ---- promotion, with no limit for conflicts

with_standby('paused', '', -1, sub {
	$observer->run('SELECT pg_wal_replay_pause()');
	$admin->run('DROP DATABASE victim0');
	startup_waits('RecoveryPause') or die 'not paused';
	$primary->wait_for_catchup($standby, 'flush', $primary->lsn('flush'));
	promotes('paused');
});

with_standby('delayed', '', -1, sub {
	$observer->run(q(ALTER SYSTEM SET recovery_min_apply_delay = '1h'));
	$standby->reload;
	wait_until(sub { $observer->value('SHOW recovery_min_apply_delay') eq '1h' }) or die 'not reloaded';
	# Only commits are delayed.  The startup process may read its configuration later than
	# sessions do.
	my $delayed = 0;
	wait_until(
		sub {
			$admin->run('CREATE TABLE delayed' . $delayed++ . ' ()');
			return state_of(q(backend_type = 'startup')) eq 'RecoveryApplyDelay';
		}) or die 'no delay';
	$admin->run('DROP DATABASE victim1');
	$primary->wait_for_catchup($standby, 'flush', $primary->lsn('flush'));
	promotes('delayed');
});

with_standby('tablespace', '', -1, sub {
	drop_tablespace('victim1');
	promotes('tablespace');
});

SKIP:
{
	skip 'no promote_trigger_file from PostgreSQL 16 on', 5 if $version >= 16;
	with_standby('trigger_file', 'promote_trigger_file = promote_now', -1, sub {
		$admin->run('DROP DATABASE victim2');
		startup_waits('ProcSignalBarrier') or die 'replay does not wait';
		ok(is_there(), 'with -1 replay waits for the session');
		append_to_file($standby->data_dir . '/promote_now', '');
		ok(wait_until(sub { $observer->value('SELECT pg_is_in_recovery()') eq 'f' }), 'a promotion by a file does not');
		ok(wait_until(sub { !is_there() }), 'the session is gone');
		reader_gets_everything('trigger_file', $observer);
	});
}

done_testing();
