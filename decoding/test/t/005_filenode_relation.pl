# pg_filenode_relation() with and without the library.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use DecodingTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main', conf => "max_prepared_transactions = 10\nallow_system_table_mods = on");
$node->safe_psql('postgres', 'CREATE PUBLICATION everything FOR ALL TABLES');
system_or_bail('psql', '--no-psqlrc', '--quiet', '--output=/dev/null',
	'--dbname=' . $node->connstr('postgres'), "--file=$FindBin::RealBin/../workload.sql");
$node->safe_psql(
	'postgres', q{
	CREATE TABLE one (a int);
	CREATE TABLE two (a int);
	CREATE DATABASE other});

# Statements in one session each, that a stock server and one with the library
# are to answer alike, errors included.  These only read:
my %reading = (
	'every relation that has a file, twice' => q{
		SELECT reltablespace, oid::regclass, relpersistence,
		       pg_filenode_relation(reltablespace, pg_relation_filenode(oid))::regclass
		  FROM pg_class WHERE pg_relation_filenode(oid) IS NOT NULL ORDER BY oid;
		SELECT reltablespace, oid::regclass,
		       pg_filenode_relation(reltablespace, pg_relation_filenode(oid))::regclass
		  FROM pg_class WHERE pg_relation_filenode(oid) IS NOT NULL ORDER BY oid DESC;},

	"every relation's file in every tablespace" => q{
		SELECT t.oid, c.oid::regclass, pg_filenode_relation(t.oid, pg_relation_filenode(c.oid))::regclass
		  FROM pg_class c, (SELECT oid FROM pg_tablespace UNION SELECT 0) t
		 WHERE pg_relation_filenode(c.oid) IS NOT NULL ORDER BY t.oid, c.oid;},

	'numbers that may or may not be a relation' => q{
		SELECT t, n, pg_filenode_relation(t::oid, n::oid)::regclass
		  FROM generate_series(0, 20000) n, (VALUES (0), (1663), (1664), (99)) t (t)
		 ORDER BY t, n;
		SELECT pg_filenode_relation(0, 0), pg_filenode_relation(1664, 0), pg_filenode_relation(NULL, 1);});

# And these change files, so that every time the numbers are others; they print
# none.
my %changing = (
	'DDL between the look-ups' => q{
		BEGIN;
		SELECT pg_relation_filenode('one') AS one_1, pg_relation_filenode('two') AS two_1 \gset
		SELECT pg_filenode_relation(0, :one_1)::regclass, pg_filenode_relation(0, :two_1)::regclass;
		SAVEPOINT s;
		TRUNCATE one;
		SELECT pg_relation_filenode('one') AS one_2 \gset
		SELECT pg_filenode_relation(0, :one_1)::regclass, pg_filenode_relation(0, :one_2)::regclass;
		DROP TABLE two;
		SELECT pg_filenode_relation(0, :two_1)::regclass;
		ROLLBACK TO s;
		SELECT pg_filenode_relation(0, :one_1)::regclass, pg_filenode_relation(0, :one_2)::regclass,
		       pg_filenode_relation(0, :two_1)::regclass;
		ALTER TABLE one ADD COLUMN b int DEFAULT random();
		SELECT pg_relation_filenode('one') AS one_3 \gset
		SELECT pg_filenode_relation(0, :one_1)::regclass, pg_filenode_relation(0, :one_2)::regclass,
		       pg_filenode_relation(0, :one_3)::regclass;
		ALTER TABLE one RENAME TO three;
		SELECT pg_filenode_relation(0, :one_3)::regclass;
		CREATE TABLE four ();
		SELECT pg_filenode_relation(0, pg_relation_filenode('four'))::regclass;
		ROLLBACK;
		SELECT pg_filenode_relation(0, :one_1)::regclass, pg_filenode_relation(0, :one_2)::regclass,
		       pg_filenode_relation(0, :one_3)::regclass;},

	'catalogs that get new files' => q{
		SELECT pg_filenode_relation(0, pg_relation_filenode('pg_class'))::regclass;
		VACUUM FULL pg_class;
		SELECT pg_filenode_relation(0, pg_relation_filenode('pg_class'))::regclass;
		VACUUM FULL pg_database;
		SELECT pg_filenode_relation(1664, pg_relation_filenode('pg_database'))::regclass,
		       pg_filenode_relation(0, pg_relation_filenode('pg_database'))::regclass;
		REINDEX TABLE pg_attribute;
		SELECT pg_filenode_relation(0, pg_relation_filenode('pg_attribute_relid_attnum_index'))::regclass;},

	'relations that claim the same file' => q{
		BEGIN;
		UPDATE pg_class SET relfilenode = 4000000000 WHERE oid IN ('one'::regclass, 'two'::regclass);
		SAVEPOINT s;
		SELECT pg_filenode_relation(0, 4000000000);
		ROLLBACK TO s;
		SELECT pg_filenode_relation(0, 4000000000);
		ROLLBACK;
		SELECT pg_filenode_relation(0, 4000000000);},

	'a temporary relation that has the number of a permanent one' => q{
		CREATE TEMP TABLE mine ();
		BEGIN;
		UPDATE pg_class SET relfilenode = 4000000000 WHERE oid IN ('one'::regclass, 'mine'::regclass);
		SAVEPOINT s;
		SELECT pg_filenode_relation(0, 4000000000)::regclass;
		ROLLBACK TO s;
		UPDATE pg_class SET relfilenode = 4000000001 WHERE oid = 'one'::regclass;
		SELECT pg_filenode_relation(0, 4000000000)::regclass, pg_filenode_relation(0, 4000000001)::regclass;
		ROLLBACK;},

	'another database' => q{
		\c other
		CREATE TABLE theirs ();
		SELECT oid::regclass, pg_filenode_relation(reltablespace, pg_relation_filenode(oid))::regclass
		  FROM pg_class WHERE pg_relation_filenode(oid) IS NOT NULL ORDER BY oid;
		DROP TABLE theirs;});

sub answers
{
	my %sessions = @_;
	my %answers;
	foreach my $name (sort keys %sessions)
	{
		my ($rc, $stdout, $stderr) = $node->psql('postgres', $sessions{$name}, on_error_stop => 0);
		$answers{$name} = "$stdout\n$stderr";
	}
	return %answers;
}

my %stock = answers(%reading);
with_library($node);
my %library = (answers(%reading), answers(%changing));
$node->safe_psql('postgres', 'CREATE EXTENSION pg_pinpoint_decoding');
my $lookups = stat_server($node)->{lookups};
without_library($node);
%stock = (%stock, answers(%changing));
is($library{$_}, $stock{$_}, $_) foreach sort keys %stock;

# The sessions did what their names say.
cmp_ok(length $stock{'every relation that has a file, twice'}, '>', 20_000, 'there were relations to look up');
my $what = $node->safe_psql('postgres', 'SHOW server_version_num') >= 160000 ? 'relfilenumber' : 'relfilenode';
is(() = $library{'relations that claim the same file'} =~ /ERROR:  unexpected duplicate for tablespace 0, $what 4000000000/g,
	2, 'relations that claim the same file are an error each time');
like($library{'DDL between the look-ups'}, qr/^one\|two\n\|one\n\none\|\|two\n\|\|one\nthree\nfour\none\|\|$/m,
	'DDL between the look-ups is seen');
cmp_ok($lookups, '>', 80_000, 'it was the library that looked them up');

$node->stop;
done_testing();
