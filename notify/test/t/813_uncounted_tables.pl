# Watched tables whose changes PostgreSQL does not count: another table access method,
# foreign tables, hypertables of TimescaleDB.
#
# Needs: postgres_fdw

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $library = compile_uncounted();
my $node    = new_node('main', conf => "max_prepared_transactions = 2\nfsync = off");
my $user    = getpwuid($>);
my ($owner, $writer, $other, $listener) = connect_many($node, 4);

# The channels that statements of a session notify, each once per transaction.
sub channels_of
{
	my ($session, @statements) = @_;
	$session->run($_) foreach @statements;
	$other->run('NOTIFY fence');
	return join ' ', sort map { $_->{channel} } $listener->notifications_until('fence', '');
}

# Whether statements of the writer notify exactly these channels.
sub notifies
{
	my ($channels, @statements) = @_;
	is(channels_of($writer, @statements), $channels, join('; ', @statements) . ($channels eq '' ? ': silent' : ": $channels"));
	return;
}

# ---- the first such table of the database

$listener->run("LISTEN $_") foreach qw(c h p inh m n first x fence);
channels_of($owner, 'CREATE TABLE first (id int)', q{SELECT pinpoint.watch('first')});
notifies('first', 'INSERT INTO first VALUES (1)');
notifies('', 'DELETE FROM first WHERE false');
$owner->run("CREATE FUNCTION uncounted_handler(internal) RETURNS table_am_handler LANGUAGE c AS '$library'");
$owner->run('CREATE ACCESS METHOD uncounted TYPE TABLE HANDLER uncounted_handler');
channels_of($owner, 'ALTER TABLE first SET ACCESS METHOD uncounted');
notifies('first', 'DELETE FROM first');
channels_of($owner, 'DROP TABLE first', 'DROP ACCESS METHOD uncounted');

$owner->run($_) foreach split /\n\n/, <<"EOS";
CREATE ACCESS METHOD uncounted TYPE TABLE HANDLER uncounted_handler

CREATE TABLE c (id int PRIMARY KEY, v int) USING uncounted

CREATE TABLE h (id int PRIMARY KEY, v int)

CREATE TABLE p (id int, v int) PARTITION BY LIST (id)

CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1) USING uncounted

CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)

CREATE EXTENSION postgres_fdw

CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '${\ $node->host}', port '${\ $node->port}', dbname 'postgres')

CREATE USER MAPPING FOR CURRENT_USER SERVER elsewhere OPTIONS (user '$user')

CREATE TABLE remote (id int, v int)

CREATE FOREIGN TABLE p3 PARTITION OF p FOR VALUES IN (3) SERVER elsewhere OPTIONS (table_name 'remote')

CREATE TABLE inh (id int, v int)

CREATE FOREIGN TABLE inh1 () INHERITS (inh) SERVER elsewhere OPTIONS (table_name 'remote')

SELECT pinpoint.watch(t) FROM unnest('{c,h,p,inh}'::regclass[]) AS t
EOS
channels_of($owner);

# ---- how changes are noticed

sub source_of
{
	my ($table) = @_;
	return $owner->value("SELECT source FROM pinpoint.watched WHERE relation = '$table'::regclass");
}
is(source_of('c'), 'locks', 'the source of a table of another access method');
is(source_of('h'), 'counts', '... of a heap table');
is(source_of('p'), 'locks', '... of a table with an uncounted partition');
is(source_of('inh'), 'locks', '... of a table with a foreign child');

is($owner->value('SELECT pinpoint.change_source(1)'), 'counts', '... of no table');
$writer->run($_) foreach 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT 1';
channels_of($owner, 'DROP TABLE inh CASCADE');
is($writer->value(q{SELECT count(source) FROM pinpoint.watched WHERE channel = 'inh'}), 1, '... of a table that was dropped');
$writer->run('COMMIT');
channels_of($owner, 'CREATE TABLE inh (id int, v int)',
	q{CREATE FOREIGN TABLE inh1 () INHERITS (inh) SERVER elsewhere OPTIONS (table_name 'remote')}, q{SELECT pinpoint.watch('inh')});

# ---- a table access method that counts nothing

notifies('c', 'INSERT INTO c SELECT i, 0 FROM generate_series(1, 20) i');
notifies('c', 'UPDATE c SET v = v + 1 WHERE id = 1');
notifies('c', 'DELETE FROM c WHERE id = 1');
notifies('c', 'TRUNCATE c');
notifies('c', "COPY c FROM PROGRAM 'echo 1,1' WITH (FORMAT csv)");
notifies('c', 'WITH w AS (DELETE FROM c RETURNING id) SELECT count(*) FROM w');
notifies('c', 'DO $$ BEGIN INSERT INTO c VALUES (1, 1); END $$');
notifies('p', 'INSERT INTO p VALUES (1, 0)');
notifies('p', 'INSERT INTO p1 VALUES (1, 0)');
notifies('p', 'UPDATE p SET v = 1 WHERE id = 1');

# A transaction that reads, or locks rows or the table without a change, is silent.
notifies('', 'SELECT count(*) FROM c, p');
notifies('', 'BEGIN', 'SELECT FROM c FOR UPDATE', 'COMMIT');
notifies('', 'BEGIN', 'LOCK TABLE c IN SHARE UPDATE EXCLUSIVE MODE', 'COMMIT');
notifies('', 'BEGIN', 'LOCK TABLE c IN SHARE MODE', 'COMMIT');
notifies('', $_) foreach 'VACUUM c', 'ANALYZE c';
notifies('', 'BEGIN', 'INSERT INTO c VALUES (3, 1)', 'ROLLBACK');
notifies('', 'BEGIN', 'SAVEPOINT s', 'INSERT INTO c VALUES (3, 1)', 'ROLLBACK TO s', 'COMMIT');
notifies('h', 'BEGIN', 'INSERT INTO h VALUES (3, 1)', 'SAVEPOINT s', 'INSERT INTO c VALUES (3, 1)', 'ROLLBACK TO s', 'COMMIT');
notifies('c', 'BEGIN', 'SAVEPOINT s', 'INSERT INTO c VALUES (3, 1)', 'RELEASE s', 'COMMIT');

# Its locks tell it, so also without a change.
notifies('c', 'DELETE FROM c WHERE false');

# ---- heap tables: as before

notifies('', 'UPDATE h SET v = 1 WHERE false');
notifies('', 'DELETE FROM p2');
notifies('', 'BEGIN', 'LOCK TABLE h, p2', 'COMMIT');
notifies('', 'BEGIN', 'LOCK TABLE h IN ROW EXCLUSIVE MODE', 'COMMIT');
notifies('p', 'INSERT INTO p VALUES (2, 0)');
notifies('', 'UPDATE p2 SET v = 1 WHERE false');

# ---- a lock that another session has moved to the lock table

$writer->run('BEGIN');
$writer->run('INSERT INTO c VALUES (10, 1)');
$other->run($_) foreach 'BEGIN', q{SET LOCAL lock_timeout = '1ms'};
like($other->query('LOCK TABLE c')->error->{M}, qr/lock timeout/, 'another session waits for the table');
$other->run('ROLLBACK');
notifies('c', 'COMMIT');

# ---- more locks than fit into the fast path

$owner->run('CREATE SCHEMA many');
$owner->run("CREATE TABLE many.t$_ (id int) USING uncounted") foreach 1 .. 100;
$owner->run('CREATE VIEW many.all AS ' . join ' UNION ALL ', map { "SELECT id FROM many.t$_" } 1 .. 100);
channels_of($owner, q{SELECT pinpoint.watch('many.t' || i, 'm') FROM generate_series(1, 100) i});
notifies('m', 'DO $$ BEGIN FOR i IN 1 .. 100 LOOP EXECUTE format(\'DELETE FROM many.t%s\', i); END LOOP; END $$');
notifies('m', 'BEGIN', 'SELECT FROM many.all', 'INSERT INTO many.t7 VALUES (1)', 'COMMIT');
channels_of($owner, q{SELECT pinpoint.unwatch('many.t' || i) FROM generate_series(1, 100) i});

# ---- the table, its storage or its parent changes

channels_of($owner, 'ALTER TABLE h SET ACCESS METHOD uncounted');
is(source_of('h'), 'locks', 'its source');
notifies('h', 'INSERT INTO h VALUES (20, 0)');
notifies('h', 'DELETE FROM h');
channels_of($owner, 'ALTER TABLE h SET ACCESS METHOD heap');
is(source_of('h'), 'counts', 'its source');
notifies('', 'DELETE FROM h');
notifies('h', 'INSERT INTO h VALUES (20, 0)');
notifies('p', 'BEGIN', 'CREATE TABLE p4 USING uncounted AS SELECT 4 AS id, 1 AS v', 'ALTER TABLE p ATTACH PARTITION p4 FOR VALUES IN (4)', 'COMMIT');
notifies('p', 'BEGIN', 'CREATE TABLE p5 (id int, v int) USING uncounted', 'SAVEPOINT s', 'INSERT INTO p5 VALUES (5, 1)', 'RELEASE s',
	'ALTER TABLE p5 SET ACCESS METHOD heap', 'ALTER TABLE p ATTACH PARTITION p5 FOR VALUES IN (5)', 'COMMIT');
channels_of($owner, 'DROP TABLE p5');
notifies('p', 'DELETE FROM p4');
channels_of($owner, 'ALTER TABLE p DETACH PARTITION p4');
notifies('', 'INSERT INTO p4 VALUES (4)');
channels_of($owner, 'ALTER TABLE p ATTACH PARTITION p4 FOR VALUES IN (4)');
notifies('p', 'INSERT INTO p4 VALUES (4)');

# ---- foreign tables

notifies('p', 'INSERT INTO p VALUES (3, 0)');
notifies('p', 'INSERT INTO p3 VALUES (3, 0)');
notifies('p', 'UPDATE p SET v = 1 WHERE id = 3');
notifies('inh', 'DELETE FROM inh1');
notifies('', 'BEGIN', 'INSERT INTO p VALUES (3, 0)', 'ROLLBACK');
notifies('', 'SELECT count(*) FROM p');
notifies('p', "ALTER FOREIGN TABLE p3 $_") foreach q{OPTIONS (ADD fetch_size '10')}, q{ALTER v OPTIONS (column_name 'v')};

# ---- prepared transactions

notifies('', 'BEGIN', 'INSERT INTO c VALUES (30, 1)', q{PREPARE TRANSACTION 'x'});
notifies('c', q{COMMIT PREPARED 'x'});
notifies('', 'BEGIN', 'EXPLAIN DELETE FROM p3', q{PREPARE TRANSACTION 'x'});
notifies('p', q{COMMIT PREPARED 'x'});

# ---- TimescaleDB: rows of a chunk in a table that inherits from nothing

$owner->run($_) foreach split /\n\n/, <<'EOS';
CREATE TABLE m (id int, v int)

CREATE TABLE chunk () INHERITS (m)

CREATE TABLE compressed_of_m (id int, v int[])

CREATE TABLE compressed_of_chunk (id int, v int[])
EOS

# Rows are deleted from compressed tables only.
sub deletes_batches
{
	my ($channels, $table) = @_;
	$owner->run("INSERT INTO compressed_of_$table VALUES (1, '{1}'), (2, '{2}')");
	is(channels_of($writer, "DELETE FROM $table WHERE false"), $channels, "DELETE of batches of $table: '$channels'");
	is($owner->value("SELECT count(*) FROM compressed_of_$table"), 0, '... which are gone');
	return;
}
channels_of($owner, q{SELECT pinpoint.watch('m')});
channels_of($writer, 'INSERT INTO chunk VALUES (1, 1)');
deletes_batches('', 'm');
is(source_of('m'), 'counts', 'the source of a table with a child');
channels_of($owner, q{CREATE FUNCTION create_hypertable() RETURNS void LANGUAGE sql AS ''});
is(source_of('m'), 'counts', '... and in a database with a function that has the name of one of TimescaleDB');
channels_of($owner, 'BEGIN', q{INSERT INTO pg_extension VALUES (99999, 'timescaledb', 10, 11, false, '2.28.3')},
	'DROP FUNCTION create_hypertable()', 'COMMIT');
is(source_of('m'), 'locks', 'the source of a hypertable');
is($owner->value(q{SELECT pinpoint.change_source('chunk')}), 'locks', '... of its chunk');
deletes_batches('m', $_) foreach 'm', 'chunk';
notifies('m', 'INSERT INTO chunk VALUES (1, 1)');
notifies('', 'SELECT count(*) FROM m');
channels_of($owner, q{SELECT pinpoint.watch('chunk', 'x')});
notifies('m x', 'BEGIN', 'DELETE FROM chunk WHERE false', 'ALTER TABLE chunk NO INHERIT m', 'COMMIT');
notifies('x', 'DELETE FROM chunk');
channels_of($owner, q{SELECT pinpoint.unwatch('chunk')}, 'ALTER TABLE chunk INHERIT m');
notifies('', 'DELETE FROM h WHERE false');
channels_of($owner, 'CREATE TABLE n (id int, v int)', q{SELECT pinpoint.watch('n')});
notifies('', 'DELETE FROM n WHERE false');
channels_of($owner, 'ALTER TABLE chunk NO INHERIT m', 'ALTER TABLE chunk INHERIT n');
notifies('n', 'DELETE FROM n WHERE false');
notifies('', 'BEGIN', 'DROP EXTENSION timescaledb', 'DELETE FROM h WHERE false', 'ROLLBACK');
notifies('n', 'BEGIN', 'DELETE FROM n WHERE false', 'SAVEPOINT s', 'DROP EXTENSION timescaledb', 'COMMIT');
notifies('', 'DELETE FROM n WHERE false');
notifies('', 'DELETE FROM m WHERE false');

# ---- a table that the transaction made a counted one, or dropped

channels_of($owner, 'ALTER TABLE h SET ACCESS METHOD uncounted');
notifies('h', 'BEGIN', 'DELETE FROM h WHERE false', 'ALTER TABLE h SET ACCESS METHOD heap', 'COMMIT');
notifies('inh', 'BEGIN', 'DELETE FROM inh WHERE false', 'DROP FOREIGN TABLE inh1', 'COMMIT');
notifies('p', 'BEGIN', 'INSERT INTO p4 VALUES (4)', 'ALTER TABLE p DETACH PARTITION p4', 'COMMIT');

# ---- Citus: its tables cannot be watched

$owner->run($_) foreach split /\n\n/, <<'EOS';
CREATE FUNCTION citus_truncate_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'

CREATE TABLE dist (id int) PARTITION BY LIST (id)

CREATE TABLE dist1 PARTITION OF dist FOR VALUES IN (1)

CREATE TRIGGER truncate_trigger AFTER TRUNCATE ON dist1 EXECUTE FUNCTION citus_truncate_trigger()
EOS
foreach my $watch (q{SELECT pinpoint.watch('dist1')}, q{SECURITY LABEL FOR pinpoint ON TABLE dist1 IS 'x'},
	q{SELECT pinpoint.watch('dist')}, q{SECURITY LABEL FOR pinpoint ON TABLE dist IS 'x'})
{
	error_is($owner->query($watch), '0A000', 'cannot watch table "dist1", which Citus distributes',
		q{Watch the shards: SELECT run_command_on_shards('dist1', $$SELECT pinpoint.watch('%s', 'dist1')$$).}, $watch);
}
is($owner->value('SELECT count(*) FROM pinpoint.watched WHERE channel = $$x$$'), 0, 'no label is left');
channels_of($owner, 'DROP TRIGGER truncate_trigger ON dist1', q{SELECT pinpoint.watch('dist', 'x')},
	'CREATE TRIGGER truncate_trigger AFTER TRUNCATE ON dist1 EXECUTE FUNCTION citus_truncate_trigger()');
$node->psql('postgres', q{SELECT pinpoint.unwatch('dist')}, stdout => \my $was_watched, stderr => \my $shards);
is($was_watched, 't', 'a table that was distributed later: unwatch()');
is($shards =~ s/^psql:\S+ //r, <<'EOS' =~ s/\n$//r, 'it says that the shards keep their labels');
WARNING:  shards of table "dist1" can still be watched
HINT:  End this: SELECT run_command_on_shards('dist1', $$SELECT pinpoint.unwatch('%s')$$).
EOS
channels_of($owner);

# Nor become partitions or children of a watched table, but they can leave it.
my $refused = 'cannot watch table "dist1", which Citus distributes';
channels_of($owner, q{SELECT pinpoint.watch('inh')}, 'CREATE TABLE pdist (id int) PARTITION BY LIST (id)',
	'ALTER TABLE dist DETACH PARTITION dist1', q{SELECT pinpoint.watch('pdist', 'x')}, 'ALTER TABLE dist1 ADD v int');
error_is($owner->query('ALTER TABLE dist1 INHERIT inh'), '0A000', $refused, undef, 'INHERIT');
$owner->run('ALTER TABLE dist1 DROP v');
error_is($owner->query('ALTER TABLE pdist ATTACH PARTITION dist1 FOR VALUES IN (1)'), '0A000', $refused, undef, 'ATTACH PARTITION');
$owner->run($_) foreach q{SELECT pinpoint.unwatch('pdist')}, 'ALTER TABLE pdist ATTACH PARTITION dist1 FOR VALUES IN (1)',
  'DROP TRIGGER truncate_trigger ON dist1', q{SELECT pinpoint.watch('pdist', 'x')},
  'CREATE TRIGGER truncate_trigger AFTER TRUNCATE ON dist1 EXECUTE FUNCTION citus_truncate_trigger()';
channels_of($owner);
is(channels_of($owner, 'ALTER TABLE pdist DETACH PARTITION dist1'), 'x', 'DETACH PARTITION');

# Labels that take effect when the extension is created: a dump can be restored.
channels_of($owner, 'DROP EXTENSION pg_pinpoint CASCADE', q{SECURITY LABEL FOR pinpoint ON TABLE pdist IS 'x'},
	'ALTER TABLE pdist ATTACH PARTITION dist1 FOR VALUES IN (1)');
$node->psql('postgres', 'CREATE EXTENSION pg_pinpoint', stderr => \my $warning);
is($warning =~ s/^psql:\S+ //r, <<'EOS' =~ s/\n$//r, 'CREATE EXTENSION warns');
WARNING:  not all changes of watched table "pdist" are notified
DETAIL:  Citus distributes table "dist1". Its rows are changed in its shards, and by other nodes.
HINT:  Watch the shards: SELECT run_command_on_shards('dist1', $$SELECT pinpoint.watch('%s', 'dist1')$$).
EOS
is(source_of('pdist'), 'incomplete', 'the source of such a table');
channels_of($owner, 'ALTER TABLE pdist DETACH PARTITION dist1');
is(source_of('pdist'), 'counts', 'and after it has left');

$_->close foreach $writer, $other, $listener;
server_is_clean($owner, 'nothing is left');
done_testing();
