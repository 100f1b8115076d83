# Rows are removed in passing. Positions that need them are unknown, and nobody waits.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use ManagedTest;
use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Each change removes rows, and channels without a change for 10 transactions. A serializable transaction does not.
my $node = managed_node('main', file => managed_file('& 63 = 0' => '& 0 = 0', '- 10000000' => '- 10', '& 960 <> 0' => '& 0 = 0'));
my ($asks, $writer, $other) = map { app($node) } 1 .. 3;
run_all($writer, 'CREATE TABLE a (id int)', 'CREATE TABLE z (id int)', "SELECT pinpoint.watch('a'), pinpoint.watch('z')");
my $rows = q{SELECT count(*) FROM pinpoint.written WHERE channel = '%s' AND source IN ('t', 'n')};
my $count = sub { return $node->safe_psql('managed', sprintf $rows, @_); };

# ---- A channel that has not changed for long

my $position = $asks->value('SELECT pinpoint.position()');
run_all($writer, 'INSERT INTO z VALUES (1)');
is((changed($asks, $position, 'a', 'z'))[0], 'z', 'a change of z');
run_all($writer, "INSERT INTO a VALUES ($_)") foreach 1 .. 40;
is($count->('z'), 0, 'its row is removed');
cmp_ok($count->('a'), '<=', 1, 'a channel that changes has one row');
is((changed($asks, $position, 'z'))[0], 'z', 'a position that needs it is unknown');
is(changes($asks, $writer, [ 'a', 'z' ], 'INSERT INTO a VALUES (1)'), 'a', 'a new one is known');
cmp_ok($node->safe_psql('managed', "SELECT count(*) FROM pinpoint.written WHERE source = 'f'"), '<=', 2, 'limits do not accumulate');

# Channels of rows come and go.
run_all($writer, 'CREATE TABLE rows_of (id int)',
	q{CREATE TRIGGER r AFTER INSERT ON rows_of FOR EACH ROW EXECUTE FUNCTION pinpoint.notify_row('row:{id}')},
	'INSERT INTO rows_of SELECT generate_series(1, 500)');
$position = $asks->value('SELECT pinpoint.position()');
run_all($writer, "INSERT INTO rows_of VALUES ($_)") foreach 1001 .. 1060;
cmp_ok($node->safe_psql('managed', 'SELECT count(*) FROM pinpoint.written'), '<', 100, 'channels of rows are removed');
is((changed($asks, $position, 'row:1001', 'row:3'))[0], 'row:1001 row:3', 'positions from before are unknown');
$position = $asks->value('SELECT pinpoint.position()');
is((changed($asks, $position, 'row:1001', 'row:3', 'rows'))[0], 'rows', 'channels that the template makes do not change without a notification');

# ---- A removal that is not committed

run_all($writer, 'INSERT INTO a VALUES (1)');
$position = $asks->value('SELECT pinpoint.position()');
run_all($other, 'BEGIN', 'INSERT INTO a VALUES (2)');
run_all($writer, 'SET lock_timeout = 1000', 'INSERT INTO a VALUES (3)');
pass('another writer does not wait for it');
is((changed($asks, $position, 'a'))[0], 'a', 'its change is told');
my $second = $asks->value('SELECT pinpoint.position()');
run_all($other, 'ROLLBACK');
is((changed($asks, $position, 'a'))[0], 'a', 'also after the rollback of the first one');
is((changed($asks, $second, 'a'))[0], '', 'which is no change');
run_all($other, 'BEGIN', 'SAVEPOINT s', 'INSERT INTO a VALUES (2)', 'ROLLBACK TO s', 'INSERT INTO z VALUES (2)', 'COMMIT');
is((changed($asks, $position, 'a', 'z'))[0], 'a z', 'after a rollback to a savepoint, too');
is((changed($asks, $second, 'a', 'z'))[0], 'z', 'of which nothing remains');

# REPEATABLE READ, with a snapshot from before another removal.
run_all($other, 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT 1');
run_all($writer, 'INSERT INTO a VALUES (4)');
$position = $asks->value('SELECT pinpoint.position()');
run_all($other, 'INSERT INTO a VALUES (5)', 'COMMIT');
is((changed($asks, $position, 'a'))[0], 'a', 'a transaction with an old snapshot');
run_all($other, 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'INSERT INTO a VALUES (6)');
run_all($writer, 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'INSERT INTO a VALUES (7)', 'COMMIT');
run_all($other, 'COMMIT');

# Likewise where triggers for rows fire: new partitions of two tables.
foreach my $table (qw(p q))
{
	run_all($writer, "CREATE TABLE $table (id int) PARTITION BY LIST (id)", "SELECT pinpoint.watch('$table')",
		map { "CREATE TABLE $table$_ PARTITION OF $table FOR VALUES IN ($_)" } 1, 2);
}
run_all($_, 'BEGIN ISOLATION LEVEL SERIALIZABLE') for $other, $writer;
foreach my $table (qw(p q))
{
	run_all($other,  "INSERT INTO ${table}1 VALUES (1)");
	run_all($writer, "INSERT INTO ${table}2 VALUES (2)");
}
is(join(' ', map { my $error = $_->query('COMMIT')->error; $error ? $error->{C} : 'none' } $other, $writer), 'none none',
	'serializable transactions that remove no rows do not fail because of each other');

# Where all writers are serializable, some of them remove rows.
$node->safe_psql('postgres', 'CREATE DATABASE serializable OWNER app');
install($node, dbname => 'serializable', file => managed_file('& 63 = 0' => '& 0 = 0', '& 960 <> 0' => '& 0 <> 0'));
my $serializable = app($node, dbname => 'serializable');
run_all($serializable, 'CREATE TABLE t (id int)', "SELECT pinpoint.watch('t')", 'SET default_transaction_isolation = serializable');
run_all($serializable, "INSERT INTO t VALUES ($_)") foreach 1 .. 20;
is($node->safe_psql('serializable', "SELECT count(*) FROM pinpoint.written WHERE source = 't'"), 1, 'a serializable transaction removes rows');
$serializable->close;

# ---- Channels that pinpoint.notify() feeds

$position = $asks->value('SELECT pinpoint.position()');
is((changed($asks, $position, 'jobs'))[0], 'jobs', 'nothing counts the notifications of a channel');
run_all($writer, q{SELECT pinpoint.notify('jobs', 'x')});
$position = $asks->value('SELECT pinpoint.position()');
is((changed($asks, $position, 'jobs'))[0], '', 'until pinpoint.notify() does');

# Nothing counted a notification, and then a trigger appears that would have.
$position = $asks->value('SELECT pinpoint.position()');
run_all($writer, 'CREATE TABLE late (id int)', 'NOTIFY late', "CREATE TRIGGER late AFTER INSERT ON late FOR EACH ROW EXECUTE FUNCTION pinpoint.notify_row('late')");
is((changed($asks, $position, 'late'))[0], 'late', 'a trigger does not count what was notified before it');
$position = $asks->value('SELECT pinpoint.position()');
is((changed($asks, $position, 'late'))[0], '', 'but then it does');
run_all($writer, 'DROP TABLE late');
is(changes($asks, $writer, [ 'jobs', 'a' ], q{SELECT pinpoint.notify('jobs', 'x')}), 'jobs', 'a notification');
run_all($writer, q{SELECT pinpoint.watch('a', 'jobs')}, 'INSERT INTO a VALUES (8)', q{SELECT pinpoint.unwatch('a')});
$position = $asks->value('SELECT pinpoint.position()');
is((changed($asks, $position, 'jobs'))[0], '', 'a table was watched with this channel for a while');
run_all($writer, 'INSERT INTO z VALUES (1)') foreach 1 .. 30;
run_all($writer, q{SELECT pinpoint.watch('a', 'of a')}, q{SELECT pinpoint.unwatch('a')});
$position = $asks->value('SELECT pinpoint.position()');
is((changed($asks, $position, 'of a'))[0], 'of a', 'a table that is no longer watched feeds no channel');

done_testing();
