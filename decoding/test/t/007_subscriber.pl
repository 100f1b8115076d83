# Logical replication from a publisher with the library: the subscriber has
# the same data in the end, whatever was done to the tables meanwhile.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use DecodingTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = new_server('publisher', preload => 'pg_pinpoint_decoding',
	conf => 'logical_decoding_work_mem = 64kB');
my $subscriber = new_server('subscriber');

my $tables = 40;
foreach my $node ($publisher, $subscriber)
{
	$node->safe_psql('postgres', q{CREATE TABLESPACE elsewhere LOCATION ''});
	$node->safe_psql('postgres',
		join "\n", map { "CREATE TABLE t$_ (id int PRIMARY KEY, a text, b int, c int DEFAULT 1, d text);" } 1 .. $tables);
	$node->safe_psql(
		'postgres', q{
		CREATE TABLE parts (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);
		CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (1000);
		CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (1000) TO (100000);});
}

# On the publisher the tables begin with fewer columns, and get the rest later.
$publisher->safe_psql('postgres',
	join "\n", map { "ALTER TABLE t$_ DROP COLUMN b, DROP COLUMN c, DROP COLUMN d;" } 1 .. $tables);
$publisher->safe_psql('postgres', 'CREATE PUBLICATION everything FOR ALL TABLES');
$publisher->safe_psql('postgres', 'CREATE EXTENSION pg_pinpoint_decoding');

$subscriber->safe_psql('postgres',
	'CREATE SUBSCRIPTION sub CONNECTION \'' . $publisher->connstr . ' dbname=postgres\''
	  . ' PUBLICATION everything WITH (streaming = on, two_phase = on)');
$subscriber->wait_for_subscription_sync($publisher, 'sub');

# What a table has on a server
sub contents
{
	my ($node, $table, $columns) = @_;
	return $node->safe_psql('postgres', "SELECT $columns FROM $table ORDER BY id");
}

sub catch_up_and_compare
{
	my ($columns, $when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$publisher->wait_for_catchup('sub');
	my @different = grep { contents($publisher, $_, $columns) ne contents($subscriber, $_, $columns) }
	  (map { "t$_" } 1 .. $tables);
	is("@different", '', "the subscriber has the same data $when");
	is(contents($subscriber, 'parts', 'id, a'), contents($publisher, 'parts', 'id, a'), 'also in partitions');
	return;
}

# One SQL command for each table, in a transaction each
sub each_table
{
	my ($format) = @_;
	$publisher->safe_psql('postgres', join "\n", map { (my $sql = $format) =~ s/%s/$_/g; "$sql;" } 1 .. $tables);
	return;
}

# ---- while the subscriber follows

each_table(q{INSERT INTO t%s SELECT n, 'first' FROM generate_series(1, 20) n});
each_table('ALTER TABLE t%s ADD COLUMN b int');
each_table(q{INSERT INTO t%s SELECT n, 'second', n FROM generate_series(21, 30) n});
each_table('ALTER TABLE t%s ADD COLUMN c int DEFAULT 1');
each_table(q{UPDATE t%s SET a = 'third' WHERE id % 2 = 0});
each_table('VACUUM FULL t%s');
each_table(q{DELETE FROM t%s WHERE id % 3 = 0});
$publisher->safe_psql('postgres', q{INSERT INTO parts SELECT n, 'part' FROM generate_series(990, 1010) n});
catch_up_and_compare('id, a, b, c', 'after DDL between the changes');

# ---- while the subscriber is away, all that gives tables new files

$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
$publisher->poll_query_until('postgres', q{SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'sub'})
  or die 'the subscriber does not stop';

each_table(q{BEGIN; TRUNCATE t%s; INSERT INTO t%s SELECT n, 'new file', n FROM generate_series(1, 50) n;
	CLUSTER t%s USING t%s_pkey; UPDATE t%s SET a = 'newer file' WHERE id % 5 = 0; COMMIT});
each_table('ALTER TABLE t%s SET TABLESPACE elsewhere');
each_table(q{BEGIN; INSERT INTO t%s VALUES (100, 'kept'); SAVEPOINT s; ALTER TABLE t%s ALTER COLUMN id TYPE bigint;
	INSERT INTO t%s VALUES (101, 'lost'); ROLLBACK TO s; INSERT INTO t%s VALUES (102, 'kept'); COMMIT});
each_table(q{BEGIN; TRUNCATE t%s; INSERT INTO t%s VALUES (200, 'lost'); ROLLBACK});
each_table(q{ALTER TABLE t%s ADD COLUMN d text DEFAULT repeat(md5(random()::text), 200)});
each_table(q{UPDATE t%s SET d = repeat('d', 5000) WHERE id < 5});
each_table(q{INSERT INTO t%s (id, d) VALUES (103, repeat('e', 9000))});
each_table(q{BEGIN; INSERT INTO t%s (id, a) VALUES (104, 'prepared'); PREPARE TRANSACTION 'p%s'; COMMIT PREPARED 'p%s'});
$publisher->safe_psql('postgres', 'VACUUM FULL pg_class; VACUUM FULL pg_attribute');
each_table(q{UPDATE t%s SET a = 'after VACUUM FULL of catalogs' WHERE id = 1});
$publisher->safe_psql(
	'postgres', join "\n", 'BEGIN;',
	(map { "INSERT INTO t$_ (id, a) SELECT n, repeat('large', 50) FROM generate_series(1000, 1200) n;"
		  . " ALTER TABLE t$_ ALTER COLUMN b TYPE bigint; UPDATE t$_ SET a = 'streamed' WHERE id = 1100;" } 1 .. $tables),
	'COMMIT;');
$publisher->safe_psql(
	'postgres', q{
	BEGIN;
	ALTER TABLE parts DETACH PARTITION parts_2;
	ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (1000) TO (100000);
	UPDATE parts SET id = id + 1000 WHERE id < 995;
	COMMIT;
	VACUUM FULL parts;
	INSERT INTO parts VALUES (1, 'last'), (99999, 'last');});

# What the first ADD COLUMN with a default gave to rows that were there is not
# a change, and is not replicated.
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
catch_up_and_compare('id, a, b, c, CASE WHEN id < 5 OR id = 103 THEN d END', 'after it was away');

# ---- and the library had a part in it

my $stat = stat_server($publisher);
is($stat->{active}, 't', 'the library is active');
cmp_ok($stat->{lookups}, '>', 10_000, 'it looked up relations');
cmp_ok($stat->{invalidations}, '>', 10_000, 'there were invalidations');

# A worker may be there before the previous one, or the WAL sender of that one, has gone;
# it is started again.
my $active = qr/replication slot "\w+" is active for PID/;
unlike(
	slurp_file($subscriber->logfile),
	qr/ERROR:  (?!replication origin with ID \d+ is already active|could not start WAL streaming: ERROR:  $active|$active)/,
	'the subscriber met no error');
is( $publisher->safe_psql('postgres', q{
	SELECT count(*) FROM pinpoint_decoding.stat_sessions s
	  JOIN pg_stat_activity a USING (pid) WHERE a.backend_type = 'walsender' AND s.lookups > 0}),
	1, 'the WAL sender is among the sessions');

$subscriber->stop;
$publisher->stop;
done_testing();
