# A worker of a subscription reloads its configuration twice while it applies a transaction,
# and track_counts is off in between: all watched tables count as changed.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use Test::More;

my $node = new_node('main', init => { allows_streaming => 'logical' }, conf => 'logical_decoding_work_mem = 64kB');
my ($owner, $listener) = connect_many($node, 2);

# Before 16, a worker receives a transaction only when the publisher has committed it.
plan skip_all => 'no parallel workers of a subscription' if $owner->value('SHOW server_version_num') < 160000;

my $tables = 'CREATE TABLE t (id int); CREATE TABLE plain (id int, v text)';
$owner->run($tables);
$owner->run(q{SELECT pinpoint.watch('t')});
$listener->run('LISTEN t; LISTEN fence');
$owner->run('CREATE DATABASE publisher');
my $publisher = connect_to($node, dbname => 'publisher');
$publisher->run($_) for $tables, 'CREATE PUBLICATION p FOR ALL TABLES', q{SELECT pg_create_logical_replication_slot('s', 'pgoutput')};
my $here = 'host=' . $node->host . ' port=' . $node->port . ' user=' . getpwuid($>) . ' dbname=publisher';
$owner->run("CREATE SUBSCRIPTION s CONNECTION '$here' PUBLICATION p WITH (create_slot = false,"
	  . q{ slot_name = 's', copy_data = false, streaming = parallel)});

# As many rows as the publisher does not keep until the commit.
my $many_rows = q{INSERT INTO plain SELECT i, repeat('x', 100) FROM generate_series(1, 3000) i};

# The worker that has written a table in a transaction that is open.
sub worker_that_has_written
{
	my ($table) = @_;
	my $pid;
	wait_until(sub {
		$pid = $owner->value("SELECT coalesce(min(pid), 0) FROM pg_locks JOIN pg_stat_activity USING (pid)
			WHERE relation = '$table'::regclass AND mode = 'RowExclusiveLock' AND backend_type = 'logical replication parallel worker'") })
	  or die "no worker has written $table";
	return $pid;
}

# The worker shows application_name when it has reloaded it.  It does so when it receives
# further rows: without them, it waits for a lock of its leader.
sub set_track_counts
{
	my ($value, $pid) = @_;
	$owner->run($_) for "ALTER SYSTEM SET track_counts = $value", "ALTER SYSTEM SET application_name = 'counts $value'",
	  'SELECT pg_reload_conf()';
	wait_until(sub {
		$publisher->run($many_rows);
		return $owner->value("SELECT application_name FROM pg_stat_activity WHERE pid = $pid") eq "counts $value" })
	  or die 'the worker does not reload its configuration';
	return;
}

# Commits on the publisher.  Returns what the subscriber has notified when the transaction is
# visible there.
sub commit
{
	$publisher->run('COMMIT');
	my $count = $publisher->value('SELECT count(*) FROM plain');
	ok(wait_until(sub { $owner->value('SELECT count(*) FROM plain') == $count }), 'the transaction is applied');
	$owner->run('NOTIFY fence');
	return all_as_text($listener->notifications_until('fence', ''));
}

$publisher->run($_) for 'BEGIN', $many_rows;
worker_that_has_written('plain');
is_deeply(commit(), [], 'a transaction that does not change the watched table');

$publisher->run($_) for 'BEGIN', $many_rows;
my $pid = worker_that_has_written('plain');
set_track_counts('off', $pid);
$publisher->run($_) for 'INSERT INTO t VALUES (1)', $many_rows;
is(worker_that_has_written('t'), $pid, 'a change while track_counts is off');
set_track_counts('on', $pid);
is_deeply(commit(), ['t/'], 'the change is notified');
is($owner->value('SELECT count(*) FROM t'), 1, 'and visible');

$publisher->run($_) for 'BEGIN', $many_rows;
worker_that_has_written('plain');
is_deeply(commit(), [], 'the changes of the next transaction are counted');

$owner->run($_) for 'ALTER SUBSCRIPTION s DISABLE', 'ALTER SUBSCRIPTION s SET (slot_name = NONE)', 'DROP SUBSCRIPTION s';
$_->close for $owner, $listener, $publisher;
done_testing();
