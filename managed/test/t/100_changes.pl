# What counts as a change of a watched table, for positions and for sessions that listen.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use ManagedTest;
use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = managed_node('main', conf => "max_prepared_transactions = 5\nrestart_after_crash = on");
my ($asks, $writer, $listener) = map { app($node) } 1 .. 3;
run_all($writer, split /\n\n/, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v int)

CREATE TABLE refers (id int REFERENCES t ON DELETE CASCADE)

CREATE TABLE parts (id int, v int) PARTITION BY RANGE (id)

CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)

CREATE TABLE high PARTITION OF parts FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id)

CREATE TABLE high1 PARTITION OF high FOR VALUES FROM (100) TO (150)

CREATE TABLE parent (id int)

CREATE TABLE child () INHERITS (parent)

CREATE TABLE above (id int)

CREATE TABLE below () INHERITS (above)

CREATE TABLE left_parent (id int)

CREATE TABLE right_parent (id int)

CREATE TABLE of_both () INHERITS (left_parent, right_parent)

CREATE TABLE below_both () INHERITS (of_both)

CREATE TABLE whole (id int) PARTITION BY LIST (id)

CREATE TABLE part1 PARTITION OF whole FOR VALUES IN (1)

CREATE TABLE part2 PARTITION OF whole FOR VALUES IN (2)

CREATE VIEW v AS SELECT * FROM t

SELECT pinpoint.watch('t'), pinpoint.watch('refers'), pinpoint.watch('parts'), pinpoint.watch('parent')

SELECT pinpoint.watch('below'), pinpoint.watch('part1'), pinpoint.watch('left_parent')
EOS
my @all = qw(t refers parts parent below part1 left_parent);
run_all($listener, 'SELECT pinpoint.listen(' . join(', ', map { "'$_'" } @all) . ')');

# Which channels positions name, and which ones listeners receive.
sub both
{
	my ($expected, $name, @statements) = @_;
	my $told = changes($asks, $writer, \@all, @statements);
	# It changes the definition of the table for PostgreSQL.
	$told = $expected if $told eq "@all" && grep { /^TRUNCATE/ } @statements;
	is($told, $expected, $name);
	is(heard($listener, $writer, @all), $expected, "$name: listeners");
	return;
}

both('', 'nothing', 'SELECT 1');
both('t', 'INSERT', 'INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)');
both('t', 'UPDATE', 'UPDATE t SET v = 5 WHERE id = 1');
both('t', 'through a view', 'INSERT INTO v VALUES (4, 4)');
both('refers', 'another table', 'INSERT INTO refers VALUES (1), (2)');
both('t refers', 'a cascade', 'DELETE FROM t WHERE id = 1');
both('t', 'ON CONFLICT DO UPDATE', 'INSERT INTO t VALUES (2, 0) ON CONFLICT (id) DO UPDATE SET v = 9');
both('t', 'MERGE', 'MERGE INTO t USING (VALUES (2), (7)) AS x (id) ON t.id = x.id'
	. ' WHEN MATCHED THEN UPDATE SET v = 10 WHEN NOT MATCHED THEN INSERT VALUES (x.id, 0)');
both('t', 'a WITH clause', 'WITH w AS (UPDATE t SET v = 11 RETURNING id) SELECT count(*) FROM w');
both('t', 'COPY', "COPY t FROM PROGRAM 'true'") if $node->safe_psql('postgres', 'GRANT pg_execute_server_program TO app; SELECT 1');
both('t refers', 'TRUNCATE', 'TRUNCATE t CASCADE');
both('', 'a rollback', 'BEGIN', 'INSERT INTO t VALUES (20, 1)', 'ROLLBACK');
both('', 'a savepoint that is rolled back', 'BEGIN', 'SAVEPOINT s', 'INSERT INTO t VALUES (20, 1)', 'ROLLBACK TO s', 'COMMIT');
both('t', 'again after such a savepoint', 'BEGIN', 'SAVEPOINT s', 'INSERT INTO t VALUES (21, 1)', 'ROLLBACK TO s',
	'INSERT INTO t VALUES (21, 1)', 'COMMIT');
both('t parent', 'one savepoint of two', 'BEGIN', 'SAVEPOINT a', 'INSERT INTO t VALUES (22, 1)', 'RELEASE a', 'SAVEPOINT b',
	'INSERT INTO t VALUES (23, 1)', 'INSERT INTO refers VALUES (22)', 'ROLLBACK TO b', 'INSERT INTO parent VALUES (1)', 'COMMIT');
both('t', 'an exception block', "DO \$\$ BEGIN INSERT INTO t VALUES (24, 1);"
	. ' BEGIN INSERT INTO refers VALUES (24); PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END; END $$');

# ---- Partitions and children

both('parts', 'partitions, by the name of the table', 'INSERT INTO parts VALUES (1, 1), (101, 1)');
both('parts', 'a partition by its own name', 'INSERT INTO low VALUES (2, 1)');
both('parts', 'a partition of a partition', 'INSERT INTO high1 VALUES (102, 1)');
both('parts', 'a partitioned partition', 'UPDATE high SET v = 2');
both('parts', 'TRUNCATE of a partition', 'TRUNCATE high1');
both('parts', 'a row moves', 'UPDATE parts SET id = id + 100 WHERE id = 1');
both('parent', 'a child', 'INSERT INTO child VALUES (2)');
both('parent', 'a child through its parent', 'UPDATE parent SET id = 3');
both('below', 'only the child is watched, and is changed through its parent', 'INSERT INTO below VALUES (1)', 'UPDATE above SET id = 2');
both('', 'the parent only', 'INSERT INTO above VALUES (1)');
both('below', 'DELETE through the parent', 'DELETE FROM above');
foreach my $table (qw(of_both below_both))
{
	both('left_parent', "a table with two parents: $table", "INSERT INTO $table VALUES (1)");
	both('left_parent', "$table is changed through the parent that is not watched", 'UPDATE right_parent SET id = id + 1');
	both('left_parent', "$table: DELETE through that parent", 'DELETE FROM right_parent');
}
both('', 'the parent that is not watched', 'INSERT INTO right_parent VALUES (1)');
both('part1', 'only a partition is watched, and is changed through its table', 'INSERT INTO whole VALUES (1)');
both('', 'another partition', 'INSERT INTO whole VALUES (2)');
both('part1', 'a row moves away from it', 'UPDATE whole SET id = 2 WHERE id = 1', 'INSERT INTO whole VALUES (2)');
both('part1', 'TRUNCATE through its table', 'TRUNCATE whole');

# A new partition is exact at once, for listeners, too.
run_all($writer, 'CREATE TABLE later PARTITION OF parts FOR VALUES FROM (200) TO (300)');
my $position = $asks->value('SELECT pinpoint.position()');
run_all($writer, 'INSERT INTO later VALUES (201, 1)', "SELECT pg_notify('t', 'later')");
is(join(' ', map { $_->{channel} } grep { $_->{payload} eq '' } $listener->notifications_until('t', 'later')), 'parts',
	'a new partition, by its own name: listeners');
is((changed($asks, $position, @all))[0], 'parts', 'and positions');
is($asks->value("SELECT bool_and(armed) FROM pinpoint.tree"), 't', 'the question has created its triggers');
$asks->value('SELECT pinpoint.position()');
$listener->take_notifications;
both('parts', 'then it is as the others', 'INSERT INTO later VALUES (202, 1)');
both('parts', 'and TRUNCATE', 'TRUNCATE later');
is($writer->value("SELECT rows FROM pinpoint.tree WHERE relid = 'later'::regclass"), 'R', 'without a trigger for each row');

# A writer prevents the triggers of another one: that is no change.
my $holder = app($node);
run_all($writer, 'CREATE TABLE held PARTITION OF parts FOR VALUES FROM (400) TO (500)');
run_all($holder, 'BEGIN', 'INSERT INTO held VALUES (401, 1)');
$position = $asks->value('SELECT pinpoint.position()');
foreach (1 .. 3)
{
	(my $told, $position) = changed($asks, $position, @all);
	is($told, '', 'a new partition on which a writer prevents the triggers');
}
is(heard($listener, $writer, @all), '', 'nobody is told');
run_all($holder, 'COMMIT');
(undef, $position) = changed($asks, $position, @all);
changed($asks, $position, @all);
is($asks->value("SELECT bool_and(armed) FROM pinpoint.tree"), 't', 'then it gets them');
$listener->take_notifications;

# A subtree that is attached.
run_all($writer, 'CREATE TABLE sub (id int, v int) PARTITION BY RANGE (id)',
	'CREATE TABLE sub1 PARTITION OF sub FOR VALUES FROM (300) TO (310)',
	'ALTER TABLE parts ATTACH PARTITION sub FOR VALUES FROM (300) TO (400)');
foreach my $table (qw(sub sub1))
{
	$position = $asks->value('SELECT pinpoint.position()');
	run_all($writer, "INSERT INTO $table VALUES (301, 1)");
	is((changed($asks, $position, @all))[0] =~ /parts/ ? 1 : 0, 1, "an attached subtree, by the name $table");
}
$asks->value("SELECT changed FROM pinpoint.changed_since(NULL, 'parts')");
$listener->take_notifications;
both('parts', 'the table that was attached', 'INSERT INTO sub VALUES (302, 1)');

# A child that is attached: told by positions until it has its triggers.
run_all($writer, 'CREATE TABLE child2 () INHERITS (parent)');
$position = $asks->value('SELECT pinpoint.position()');
is($writer->value("SELECT source FROM pinpoint.watched WHERE channel = 'parent'"), 'incomplete', 'a child without triggers is shown');
run_all($holder, 'BEGIN', 'INSERT INTO child2 VALUES (1)');
is((changed($asks, $position, 'parent', 't'))[0], 'parent', 'a writer prevents the triggers: its channel counts as changed');
run_all($holder, 'COMMIT');
is((changed($asks, $position, 'parent'))[0], 'parent', 'until they are there');
is($writer->value("SELECT source FROM pinpoint.watched WHERE channel = 'parent'"), 'triggers', 'which is shown');
$asks->value('SELECT pinpoint.position()');
$listener->take_notifications;
both('parent', 'the child', 'INSERT INTO child2 VALUES (2)');

# Tables that are below each other in very many ways.
run_all($writer, 'CREATE TABLE grid0a (id int)', 'CREATE TABLE grid0b (id int)', "SELECT pinpoint.watch('grid0a', 't')",
	map { my ($to, $from) = ($_, $_ - 1); map { "CREATE TABLE grid$to$_ () INHERITS (grid${from}a, grid${from}b)" } qw(a b) } 1 .. 40);
run_all($asks, "SET statement_timeout = '1 min'");
my $grid = $asks->query("SELECT count(*) FROM pinpoint.tree WHERE relid::regclass::text LIKE 'grid%'");
is($grid->error ? $grid->error->{M} : $grid->rows->[0][0], 81, 'each of these tables is read once');
run_all($asks, 'RESET statement_timeout');
run_all($writer, 'DROP TABLE grid0a, grid0b CASCADE');

# A table and a partition of it with the same channel, in both orders.
foreach my $order ([ 'same', 'same1' ], [ 'same1', 'same' ])
{
	run_all($writer, 'CREATE TABLE same (id int) PARTITION BY LIST (id)', 'CREATE TABLE same1 PARTITION OF same FOR VALUES IN (1)',
		'CREATE TABLE same2 PARTITION OF same FOR VALUES IN (2)', map { "SELECT pinpoint.watch('$_', 't')" } @$order);
	$asks->value("SELECT changed FROM pinpoint.changed_since(NULL, 't')");
	is($writer->value('SELECT bool_and(armed) FROM pinpoint.tree'), 't', "two tables with one channel: @$order");
	$listener->take_notifications;
	both('t', "$_ with the channel of another table", "INSERT INTO $_ VALUES (1)") foreach qw(same same1);
	both('t', 'another partition', 'INSERT INTO same2 VALUES (2)');
	run_all($writer, "SELECT pinpoint.unwatch('same')");
	$asks->value("SELECT changed FROM pinpoint.changed_since(NULL, 't')");
	$listener->take_notifications;
	both('t', "$_ is still watched", "INSERT INTO $_ VALUES (1)") foreach qw(same same1);
	both('', 'another partition is not', 'INSERT INTO same2 VALUES (2)');
	run_all($writer, "SELECT pinpoint.unwatch('same1')", "SELECT pinpoint.unwatch('same')");
	is($writer->value("SELECT count(*) FROM pg_trigger WHERE tgrelid IN ('same'::regclass, 'same1'::regclass, 'same2'::regclass)"), 0, 'no trigger remains');
	run_all($writer, 'DROP TABLE same');
	$asks->value('SELECT pinpoint.position()');
	$listener->take_notifications;
}

# ---- Definitions: positions tell them, listeners are not told

sub tells
{
	my ($name, @statements) = @_;
	like(changes($asks, $writer, \@all, @statements), qr/\bt\b/, $name);
	return;
}
tells('ADD COLUMN', 'ALTER TABLE t ADD w int');
tells('ALTER TYPE', 'ALTER TABLE t ALTER w TYPE bigint');
tells('RENAME COLUMN', 'ALTER TABLE t RENAME w TO x');
tells('a policy', 'CREATE POLICY p ON t USING (true)');
tells('row-level security', 'ALTER TABLE t ENABLE ROW LEVEL SECURITY');
tells('ALTER POLICY', 'ALTER POLICY p ON t USING (id > 0)');
tells('a trigger that was disabled meanwhile', 'ALTER TABLE t DISABLE TRIGGER USER', 'UPDATE t SET v = 77', 'ALTER TABLE t ENABLE TRIGGER USER');
is($writer->value("SELECT bool_and(armed) FROM pinpoint.tree"), 't', 'the question has repaired it');
run_all($writer, 'ALTER TABLE t DISABLE TRIGGER USER');
$asks->value("SELECT changed FROM pinpoint.changed_since(NULL, 't')");
is($writer->value("SELECT source FROM pinpoint.watched WHERE channel = 't'"), 'incomplete', 'a trigger that is disabled is shown');
is(changes($asks, $writer, [ 't', 'refers' ], 'SELECT 1'), 't', 'and its channel counts as changed');
run_all($writer, "SELECT pinpoint.watch('t')");
$asks->value("SELECT changed FROM pinpoint.changed_since(NULL, 't')");
$listener->take_notifications;
both('t', 'watch() repairs it', 'UPDATE t SET v = 78');
is(changes($asks, $writer, \@all, 'ANALYZE t', 'CREATE INDEX ON t (v)', 'VACUUM t'), '', 'ANALYZE, VACUUM and CREATE INDEX are no changes');
tells('DETACH', 'ALTER TABLE parts DETACH PARTITION low');
is(changes($asks, $writer, \@all, 'SELECT 1'), '', 'once');
both('parts', 'a partition that was detached tells too much', 'INSERT INTO low VALUES (3, 3)');
run_all($writer, 'ALTER TABLE parts ATTACH PARTITION low FOR VALUES FROM (0) TO (100)');
$asks->value("SELECT changed FROM pinpoint.changed_since(NULL, 'parts')");
$listener->take_notifications;
both('parts', 'until it is attached again', 'INSERT INTO low VALUES (4, 4)');
is($writer->value("SELECT count(*) FROM pinpoint.triggers WHERE relid = 'low'::regclass"), 2, 'with two triggers');
run_all($writer, 'ALTER TABLE t RENAME TO renamed');
$asks->value('SELECT pinpoint.position()');
both('t', 'a table keeps its channel when it is renamed', 'UPDATE renamed SET v = 79');
tells('DROP TABLE', 'DROP TABLE renamed CASCADE');
$position = $asks->value('SELECT pinpoint.position()');
is((changed($asks, $position, @all))[0], 't', 'nothing counts changes of the channel any more');
run_all($writer, 'CREATE TABLE t (id int)');
is((changed($asks, $position, @all))[0], 't', 'a table with the same name is not watched');
run_all($writer, "SELECT pinpoint.watch('t')");
$position = $asks->value('SELECT pinpoint.position()');
is((changed($asks, $position, @all))[0], '', 'until it is');

# ---- Transactions

run_all($writer, 'SET pinpoint.notify = off');
$position = $asks->value('SELECT pinpoint.position()');
run_all($writer, 'BEGIN', 'INSERT INTO t VALUES (1)', "PREPARE TRANSACTION 'p'");
my ($before, $during) = changed($asks, $position, 't');
is($before, '', 'a prepared transaction is no change');
run_all($writer, "COMMIT PREPARED 'p'");
is((changed($asks, $_, 't'))[0], 't', 'its commit is') foreach $position, $during;
run_all($writer, 'RESET pinpoint.notify');

# Positions that are taken in a transaction which changes tables before and after.
$position = run_all($writer, 'BEGIN', 'INSERT INTO t VALUES (2)', 'SELECT pinpoint.position()')->rows->[0][0];
run_all($asks, 'INSERT INTO parent VALUES (1)');        # a later transaction ends before
my $second = $writer->value('SELECT pinpoint.position()');
run_all($writer, 'INSERT INTO part1 VALUES (1)', 'COMMIT');
like((changed($asks, $position, @all))[0], qr/\bpart1\b/, 'a change of the transaction after its position');
like((changed($asks, $second, @all))[0], qr/\bpart1\b/, 'also if another one has ended meanwhile');

# And definitions.
run_all($writer, 'CREATE POLICY p ON t USING (true)', 'ALTER TABLE t ADD w int');
foreach my $twice ([ 'ALTER POLICY p ON t USING (id > 0)', 'ALTER POLICY p ON t USING (id > 1)' ],
	[ 'ALTER TABLE t RENAME w TO x', 'ALTER TABLE t RENAME x TO w' ], [ ('TRUNCATE t') x 2 ],
	[ 'ALTER TABLE t FORCE ROW LEVEL SECURITY', 'ALTER TABLE t NO FORCE ROW LEVEL SECURITY' ],
	[ ('ALTER TABLE t DISABLE TRIGGER USER; ALTER TABLE t ENABLE TRIGGER USER') x 2 ])
{
	$position = run_all($writer, 'BEGIN', $twice->[0], 'SELECT pinpoint.position()')->rows->[0][0];
	run_all($writer, $twice->[1], 'COMMIT');
	like((changed($asks, $position, @all))[0], qr/\bt\b/, "$twice->[1], in the transaction of the position");
	run_all($writer, "SELECT pinpoint.watch('t')");
}

# An old transaction ends late.
my $old = app($node);
run_all($old, 'BEGIN', 'INSERT INTO t VALUES (3)');
$position = $asks->value('SELECT pinpoint.position()');
run_all($writer, "INSERT INTO parent VALUES ($_)") foreach 1 .. 200;
run_all($old, 'COMMIT');
is((changed($asks, $position, 't', 'refers'))[0], 't', 'a transaction that began before the position, and ended after it');

# Rows are removed in passing, and are still known.
$position = $asks->value('SELECT pinpoint.position()');
run_all($writer, 'INSERT INTO t VALUES (4)');
run_all($writer, "INSERT INTO t VALUES ($_)") foreach 1 .. 1000;
cmp_ok($node->safe_psql('managed', "SELECT count(*) FROM pinpoint.written WHERE channel = 't'"), '<', 400, 'rows are removed');
is((changed($asks, $position, 't', 'refers'))[0], 't', 'a position from before still knows');

# ---- A crash

my ($known) = changed($asks, $asks->value('SELECT pinpoint.position()'), @all);
is($known, '', 'nothing has changed');
$position = $asks->value('SELECT pinpoint.position()');
run_all($writer, 'SET pinpoint.notify = off', 'BEGIN', 'INSERT INTO t VALUES (5)', "PREPARE TRANSACTION 'over the crash'");
$_->close foreach $asks, $writer, $listener, $old, $holder;
$node->stop('immediate');
$node->start;
($asks, $writer) = map { app($node) } 1 .. 2;
is((changed($asks, $position, @all))[0], "@all", 'after a crash, all channels have changed');
$position = $asks->value('SELECT pinpoint.position()');
my $after = (changed($asks, $position, @all))[0];
is($after, '', 'once');
run_all($writer, "COMMIT PREPARED 'over the crash'");
is((changed($asks, $position, @all))[0], "@all", 'the row of a prepared transaction is lost in the crash: all channels have changed');
$position = $asks->value('SELECT pinpoint.position()');
is((changed($asks, $position, @all))[0], '', 'once');

# The start of the server stays when a process ends it.
my $start = $asks->value('SELECT pg_postmaster_start_time()');
my $pid = $node->safe_psql('postgres', 'SELECT pid FROM pg_stat_activity WHERE backend_type = ' . "'walwriter'");
kill KILL => $pid or die "could not kill: $!";

# Until the postmaster notices, it still accepts sessions.  It ends all when it does.
$_->receive_until('EOF') foreach $asks, $writer;
ok(wait_until(sub { $asks = eval { app($node) } }), 'a process is killed, and the server starts anew');
$writer = app($node);
is($asks->value('SELECT pg_postmaster_start_time()'), $start, 'with the same time');
is((changed($asks, $position, @all))[0], "@all", 'all channels have changed');

done_testing();
