# Watched tables beyond one running server: prepared transactions and crashes, apply
# workers, standbys, dumps, and a full queue.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', init => { allows_streaming => 'logical' }, conf => <<'EOC');
max_prepared_transactions = 5
pinpoint.replicate = on
pinpoint.queue_memory = 256kB
pinpoint.queue_size = 256kB
EOC
my ($owner, $writer, $listener) = connect_many($node, 3);
$owner->run($_) foreach split /\n\n/, <<'EOS';
CREATE TABLE t (id int PRIMARY KEY, v text)

CREATE TABLE "it's odd" (id int)

CREATE TABLE parts (id int) PARTITION BY LIST (id)

CREATE TABLE parts1 PARTITION OF parts FOR VALUES IN (1)

SELECT pinpoint.watch('t'), pinpoint.watch('parts', 'p'), pinpoint.watch('"it''s odd"', 'o"d\''d')
EOS

# ---- a transaction that is prepared while the server crashes

$writer->run(q{BEGIN; INSERT INTO t VALUES (1); INSERT INTO parts1 VALUES (1); PREPARE TRANSACTION 'over the crash'});
$_->close for $owner, $writer, $listener;
$node->stop('immediate');
$node->start;
($owner, $writer, $listener) = connect_many($node, 3);
$listener->run('LISTEN t; LISTEN p; LISTEN new');

# While it is prepared, nobody can watch the table.
$owner->send_query(q{SELECT pinpoint.watch('t', 'new')});
my $waits = 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $owner->pid;
ok(wait_until(sub { ($writer->value($waits) // '') eq 'Lock' }), 'watch() waits for a prepared transaction');
$writer->run(q{COMMIT PREPARED 'over the crash'});
is($owner->result->error, undef, 'until it is committed');
# It notifies the new channel, too, if the watch is committed before it looks again.
$writer->run(q{NOTIFY p, 'fence'});
my @notified = sort @{ all_as_text($listener->notifications_until('p', 'fence')) };
is_deeply([ grep { $_ ne 'new/' } @notified ], [ 'p/', 't/', 't/' ], 'COMMIT PREPARED after a crash notifies, and watch()');
$writer->run(q{INSERT INTO t VALUES (2)});
is_deeply(all_as_text($listener->wait_for(1)), ['new/'], 'the watch begins after it');
$owner->run(q{SELECT pinpoint.watch('t')});
is_deeply([ sort @{ all_as_text($listener->wait_for(2)) } ], [ 'new/', 't/' ], 'watch() notifies both channels');

# ---- a standby

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
my $reader = connect_to($standby);
$reader->run('LISTEN t');
$writer->run('INSERT INTO t VALUES (3)');
is_deeply(all_as_text($reader->wait_for(1)), ['t/'], 'a standby is notified');
is($reader->value('SELECT max(id) FROM t'), 3, 'and shows the row');

# COMMIT PREPARED waits for a synchronous standby before it notifies, and never notifies if
# the primary crashes now.
sub set_synchronous
{
	my ($names) = @_;
	$node->append_conf('postgresql.conf', "synchronous_standby_names = '$names'");
	$node->reload;
	return;
}
wait_until_counting($reader);
$writer->run(q{BEGIN; INSERT INTO t VALUES (4); PREPARE TRANSACTION 'half'});
my $before = $reader->value('SELECT pinpoint.position()');
set_synchronous('missing');
wait_until_commits_wait($node);
$writer->send_query(q{COMMIT PREPARED 'half'});
is_deeply(all_as_text($reader->wait_for(1)), ['t/'], 'a standby notifies before COMMIT PREPARED does');
is($reader->value('SELECT max(id) FROM t'), 4, 'and shows the row');
is($reader->value("SELECT changed FROM pinpoint.changed_since('$before', 't', 'other')"), '{t}', 'and reports the change');
my $waits_for = 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $writer->pid;
ok(wait_until(sub { ($owner->value($waits_for) // '') eq 'SyncRep' }), 'which still waits');
set_synchronous('');
is($writer->result->error, undef, 'until it need not wait');
is_deeply(all_as_text($reader->wait_for(1)), ['t/'], 'then its own notification arrives');
$reader->run('LISTEN fence');
$writer->run($_) for q{BEGIN; INSERT INTO t VALUES (5); PREPARE TRANSACTION 'no'}, q{ROLLBACK PREPARED 'no'}, 'NOTIFY fence';
is_deeply(all_as_text($reader->wait_for(1)), ['fence/'], 'not if it is rolled back');

# A standby that has not replayed what PREPARE TRANSACTION wrote.
$writer->run(q{BEGIN; INSERT INTO t VALUES (6); PREPARE TRANSACTION 'over a restart'});
$writer->run('CHECKPOINT');
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
$reader->run('CHECKPOINT');
$reader->close;
$standby->restart;
$reader = connect_to($standby);
$reader->run('LISTEN t');
$writer->run(q{COMMIT PREPARED 'over a restart'});
is($reader->receive_until('E')->error->{C}, '57P01', 'a standby that may have missed it disconnects listeners');
$reader->close;
$reader = connect_to($standby);
error_is($reader->query(q{SELECT pinpoint.watch('t')}), '25006',
	'cannot execute pinpoint.watch() in a read-only transaction', undef, 'watch() needs the primary');
$reader->close;
$standby->stop('immediate');
is_deeply(all_as_text($listener->wait_for(3)), [ ('t/') x 3 ], 'the listener on the primary had it, too');

# ---- apply workers

my $user = getpwuid($>);
my $here = 'host=' . $node->host . ' port=' . $node->port . " user=$user dbname=publisher";
$node->safe_psql('postgres', 'CREATE DATABASE publisher');
$node->safe_psql('publisher', q{CREATE TABLE t (id int PRIMARY KEY, v text)});
$node->safe_psql('publisher', q{
	CREATE PUBLICATION p FOR TABLE t;
	SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, true)});
$owner->run("CREATE SUBSCRIPTION s CONNECTION '$here' PUBLICATION p"
	  . q{ WITH (create_slot = false, slot_name = 's', copy_data = false, two_phase = true)});
ok(wait_until(sub { $owner->value('SELECT subtwophasestate FROM pg_subscription') eq 'e' }), 'a subscription with two_phase');
my $publisher = connect_to($node, dbname => 'publisher');
$publisher->run($_) for q{INSERT INTO t SELECT i FROM generate_series(100, 200) i},
  q{UPDATE t SET v = 'x'}, 'UPDATE t SET id = id WHERE false';
is_deeply(all_as_text($listener->wait_for(2)), [ 't/', 't/' ], 'an apply worker notifies once per transaction');
is($owner->value('SELECT count(*) FROM t WHERE v IS NOT NULL'), 101, 'when the rows are visible');

my $worker = q{SELECT pid FROM pg_stat_subscription WHERE subname = 's' AND pid IS NOT NULL};
my $prepared = 'SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()';
foreach my $restart (0, 1)
{
	my $pid = $owner->value($worker);
	$publisher->run("BEGIN; INSERT INTO t VALUES (30$restart); PREPARE TRANSACTION 'two phases'");
	ok(wait_until(sub { $owner->value($prepared) == 1 }), 'the transaction is prepared on the subscriber');
	if ($restart)
	{
		$owner->run("SELECT pg_terminate_backend($pid)");
		ok(wait_until(sub { my $new = $owner->run($worker)->rows; @$new && $new->[0][0] != $pid }), 'another worker');
	}
	$publisher->run(q{COMMIT PREPARED 'two phases'});
	is_deeply(all_as_text($listener->wait_for(1)), ['t/'], 'and notifies when it is committed');
}
$publisher->run(q{BEGIN; INSERT INTO t VALUES (400); PREPARE TRANSACTION 'no phases'});
ok(wait_until(sub { $owner->value($prepared) == 1 }), 'one that is rolled back');
$publisher->run(q{ROLLBACK PREPARED 'no phases'});
ok(wait_until(sub { $owner->value($prepared) == 0 }), 'is rolled back on the subscriber');
$publisher->run('INSERT INTO t VALUES (401)');
$owner->run(q{SELECT pg_sleep(0)}) until $owner->value('SELECT count(*) FROM t WHERE id = 401');
$owner->run('NOTIFY new');
is_deeply(all_as_text($listener->wait_for(2)), [ 't/', 'new/' ], 'and does not notify');
$owner->run($_) for 'ALTER SUBSCRIPTION s DISABLE', 'ALTER SUBSCRIPTION s SET (slot_name = NONE)', 'DROP SUBSCRIPTION s';
$publisher->close;

# ---- dump and restore, also where the library is not preloaded

my $dump = "$PostgreSQL::Test::Utils::tmp_check/watched.sql";
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('postgres') ], 'pg_dump');
$owner->run('CREATE DATABASE restored');
my $not_preloaded = new_node('not_preloaded', preload => '');
$not_preloaded->safe_psql('postgres', 'CREATE DATABASE restored');
my $watched = q{SELECT string_agg(relation || ' ' || channel, ', ' ORDER BY channel) FROM pinpoint.watched};
foreach my $target ($node, $not_preloaded)
{
	$target->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $target->connstr('restored') ],
		'restore on ' . $target->name);
	is($target->safe_psql('restored', $watched), $owner->value($watched), 'the same tables are watched');
}
my $restored = connect_to($node, dbname => 'restored');
$restored->run('LISTEN t');
$restored->run('DELETE FROM t WHERE id = 1');
is_deeply(all_as_text($restored->take_notifications), ['t/'], 'a restored table notifies');
$restored->close;
my $session = connect_to($not_preloaded, dbname => 'restored');
is($session->query(q{SELECT pinpoint.watch('t', 'later')})->error, undef, 'watch() where the library is not preloaded');
$session->run('LISTEN later; DELETE FROM t');
is_deeply(all_as_text($session->take_notifications), [], 'has no effect there');
$session->close;
$not_preloaded->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_pinpoint'");
$not_preloaded->restart;
$session = connect_to($not_preloaded, dbname => 'restored');
$session->run('LISTEN later; INSERT INTO t VALUES (1)');
is_deeply(all_as_text($session->take_notifications), ['later/'], 'until it is preloaded');
$session->close;

# ---- a notification that cannot be sent, because the queue is full

my $slow = connect_to($node);
$slow->run($_) for 'LISTEN a', 'BEGIN', 'SELECT 1';
foreach my $size (7000, 1)
{
	my $result;
	do { $result = $writer->query("SELECT pg_notify('a', repeat('x', $size))") } until $result->error;
	is($result->error->{C}, '54000', "the queue has no room for $size bytes");
}
is($writer->query(q{INSERT INTO t VALUES (901)})->error->{C}, '54000', 'so a change of a watched table fails');
is($writer->value('SELECT count(*) FROM t WHERE id >= 900'), 0, 'before its commit');
$slow->close;
ok(wait_until(sub { !$writer->query('INSERT INTO t VALUES (902)')->error }), 'until there is room');

$_->close for $owner, $writer, $listener;
done_testing();
