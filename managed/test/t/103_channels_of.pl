# pinpoint.channels_of() names the tables that the library names: for the queries of the library's own tests, and for queries from
# whose plan PostgreSQL removes tables. An error is possible, fewer tables are not.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use ManagedTest;
use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $library = new_node('library');
my $managed = managed_node('managed');
$library->safe_psql('postgres', 'CREATE DATABASE managed');
$library->safe_psql('managed', 'CREATE EXTENSION pg_pinpoint');
my @sessions = map { connect_to($_, dbname => 'managed') } $library, $managed;

# Execute a statement on both. Returns the first rows, or undef if the statement fails.
sub both
{
	my ($statement) = @_;
	return map { my $r = $_->query($statement); $r->error ? undef : ($r->rows->[0] // []) } @sessions;
}

# Compare the tables of one or several queries.
my $compared = 0;

sub same_tables
{
	my ($statement) = @_;
	my ($expected, $result) = both($statement);
	my $name = $statement =~ s/\s+/ /gr;
	if (!defined $expected)
	{
		is($result, undef, "an error: $name");
		return;
	}
	$compared++;
	is_deeply($result, $expected, $name);
	return;
}

# ---- The tests of the library

my $script = slurp_file("$FindBin::RealBin/../../../notify/test/sql/channels_of.sql");
$script =~ s/^(--|\\).*$//mg;
$script =~ s/pinpoint\.watch\('summary'\)/1/;    # a materialized view cannot be watched
foreach my $statement (map { s/^\s+//r } split /;\n/, $script)
{
	next unless $statement =~ /\S/;
	last if $statement =~ /^DROP TABLE/;
	if ($statement =~ /tables\('|channels_of\('/ && $statement !~ /'SELEC 1/) { same_tables($statement); }
	else { both($statement); }
}
cmp_ok($compared, '>=', 15, 'the queries of the tests were compared');

# ---- What a plan does not have

both($_) foreach split /\n/, <<'EOS';
RESET ROLE
CREATE TABLE wide (id int PRIMARY KEY, v int)
CREATE TABLE empty_parts (id int) PARTITION BY LIST (id)
CREATE TABLE checked (id int CHECK (id > 0))
CREATE VIEW removed AS SELECT o.id FROM orders o LEFT JOIN wide w ON w.id = o.id
CREATE VIEW never AS SELECT id FROM orders UNION ALL SELECT id FROM wide WHERE false
CREATE MATERIALIZED VIEW kept AS SELECT id FROM wide
CREATE FUNCTION nothing(i int) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT false'
SELECT pinpoint.watch('wide'), pinpoint.watch('empty_parts', 'e')
EOS
same_tables("SELECT tables('$_')") foreach grep { /\S/ } split /\n/, <<'EOS';
SELECT o.id FROM orders o LEFT JOIN wide w ON w.id = o.id
SELECT * FROM removed
SELECT * FROM never
SELECT * FROM (SELECT * FROM removed) r JOIN never USING (id)
SELECT id FROM orders UNION ALL SELECT id FROM empty_parts
SELECT id FROM orders UNION ALL SELECT id FROM wide WHERE 1 = 2
SELECT id FROM orders INTERSECT SELECT id FROM wide EXCEPT SELECT id FROM empty_parts
SELECT * FROM wide WHERE false
SELECT * FROM checked WHERE id < 0
SELECT * FROM checked WHERE nothing(id)
SELECT * FROM empty_parts
SELECT * FROM empty_parts WHERE id = 1
SELECT * FROM parts WHERE id = 7
SELECT * FROM parts WHERE id = $1
SELECT CASE WHEN false THEN (SELECT count(*) FROM wide) END
SELECT coalesce(1, (SELECT max(id) FROM wide))
SELECT 1 FROM orders LIMIT 0
SELECT a.id FROM wide a JOIN wide b USING (id)
SELECT * FROM kept
SELECT $1::int, $2 FROM orders WHERE id = ANY ($3::int[])
SELECT * FROM orders o WHERE EXISTS (SELECT FROM wide WHERE false) OR EXISTS (SELECT FROM items)
WITH unused AS (SELECT * FROM wide) SELECT id FROM orders
WITH RECURSIVE r (id) AS (SELECT id FROM items UNION ALL SELECT r.id + 1 FROM r JOIN wide ON wide.id = r.id) SELECT * FROM r
SELECT row_number() OVER (ORDER BY (SELECT max(id) FROM wide)) FROM orders
SELECT count(*) FILTER (WHERE id IN (SELECT id FROM wide)) FROM orders GROUP BY id HAVING max(id) > (SELECT min(id) FROM items)
SELECT * FROM orders TABLESAMPLE BERNOULLI ((SELECT 50 FROM wide LIMIT 1))
SELECT * FROM orders FOR UPDATE
SELECT string_agg(id::text, ''; '') FROM wide
SELECT 1 -- a comment
TABLE orders
VALUES ((SELECT max(id) FROM wide))
(SELECT id FROM wide) ORDER BY 1
SELECT * FROM pg_class LEFT JOIN pg_index ON indrelid = oid
EOS

# ---- One statement only

sub fails
{
	my ($query) = @_;
	my $error = $sessions[1]->query("SELECT * FROM pinpoint.channels_of(\$q\$$query\$q\$)")->error;
	is($error && $error->{C}, '0A000', "an error: $query");
	is($sessions[1]->value('SELECT count(*) FROM victim'), 1, 'nothing is executed');
	return;
}
run_all($sessions[1], 'CREATE TABLE victim AS SELECT 1 AS id');
fails($_) foreach grep { /\S/ } split /\n/, <<'EOS';
SELECT 1; DELETE FROM victim
SELECT 1) q; DELETE FROM victim; SELECT * FROM (SELECT 1
SELECT 1 AS a$b$ ; DELETE FROM victim; SELECT 1 AS a$b$
SELECT 1 /* ' */; DELETE FROM victim; SELECT ' */'
SELECT E'\') q; DELETE FROM victim; --'
DELETE FROM victim
EOS

# From 19 on, the setting is always on.
if (!$sessions[1]->query('SET standard_conforming_strings = off')->error)
{
	run_all($sessions[1], 'SET backslash_quote = on');
	fails(q{SELECT '\') q; DELETE FROM victim; --'});
	run_all($sessions[1], 'RESET standard_conforming_strings');
}
is($sessions[1]->value('SELECT count(*) FROM pg_prepared_statements'), 0, 'no prepared statement remains');

# A table that the transaction has used before could be one of the query, or not.
run_all($sessions[1], 'BEGIN', 'SELECT FROM victim');
my $error = $sessions[1]->query("SELECT * FROM pinpoint.channels_of('SELECT * FROM orders')")->error;
is($error->{C}, '0A000', 'a transaction that has used a table');
run_all($sessions[1], 'ROLLBACK', 'BEGIN');
is($sessions[1]->value("SELECT relation FROM pinpoint.channels_of('SELECT * FROM wide')"), 'wide', 'a transaction');
is($sessions[1]->value("SELECT relation FROM pinpoint.channels_of('SELECT * FROM wide')"), 'wide', 'that asks twice');
run_all($sessions[1], 'ROLLBACK');

done_testing();
