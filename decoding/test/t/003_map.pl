# The relation-file map from inside: what stays remembered, what is forgotten,
# and that nothing is lost when memory runs out or an invalidation comes in at
# the wrong moment.  See test_map.c.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use DecodingTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $test = "$FindBin::RealBin/..";
my $node = new_server('main', conf => 'allow_system_table_mods = on');
my $module = compile('test_map.so', '-shared', '-fPIC', '-D_GNU_SOURCE', '-DPINPOINT_LIVE',
	'-Wno-sign-compare', "$test/test_map.c");

$node->safe_psql(
	'postgres', qq{
	CREATE FUNCTION map_lookup(oid, oid) RETURNS oid LANGUAGE c STRICT AS '$module';
	CREATE FUNCTION map_invalidate(oid) RETURNS void LANGUAGE c AS '$module';
	CREATE FUNCTION map_fail_at(int) RETURNS void LANGUAGE c AS '$module';
	CREATE FUNCTION map_disturb_lookup(oid) RETURNS void LANGUAGE c AS '$module';
	CREATE FUNCTION map_disturb_scan(oid) RETURNS void LANGUAGE c AS '$module';
	CREATE FUNCTION map_server_version(int) RETURNS void LANGUAGE c AS '$module';
	CREATE FUNCTION map_fill(int, int) RETURNS void LANGUAGE c AS '$module';
	CREATE FUNCTION map_check(OUT entries bigint, OUT negative bigint, OUT relations bigint, OUT empty bigint)
		LANGUAGE c AS '$module';
	CREATE FUNCTION map_compare(seed bigint, steps bigint, OUT entered bigint, OUT failed bigint,
		OUT invalidated bigint, OUT resets bigint, OUT largest bigint)
		LANGUAGE c AS '$module';
	CREATE FUNCTION look_up(regclass) RETURNS regclass LANGUAGE sql
		AS 'SELECT map_lookup((SELECT reltablespace FROM pg_class WHERE oid = \$1), pg_relation_filenode(\$1))::regclass';
	CREATE FUNCTION map_bytes() RETURNS bigint LANGUAGE sql
		AS \$\$SELECT coalesce(sum(total_bytes), 0)::bigint FROM pg_backend_memory_contexts
		       WHERE name LIKE 'Relfilenumber map%'\$\$;
	CREATE TABLESPACE elsewhere LOCATION '';
	CREATE TABLE one (a int);
	CREATE TABLE two (a int);
	CREATE TABLE there (a int) TABLESPACE elsewhere;});

# One session for a block of tests: the map is the session's own.
my $session;

sub new_session
{
	$session->quit if $session;
	$session = $node->background_psql('postgres', on_error_stop => 0);
	return;
}

sub sql { return $session->query_safe($_[0]); }

# entries|negative|relations|empty
sub check { return sql('SELECT * FROM map_check()'); }

# The error of a statement, without "ERROR:  ".
sub error_of
{
	my ($stdout, $rc) = $session->query($_[0]);
	my $error = $session->{stderr} =~ /ERROR:  (.*)/ ? $1 : '';
	$session->{stderr} = '';
	return $error;
}

# ---- look-ups

new_session();
is(sql(q{SELECT look_up('one')}), 'one', 'a table');
is(sql(q{SELECT look_up('one')}), 'one', 'and again');
is(check(), '1|0|1|0', 'one entry');
is(sql(q{SELECT map_lookup((SELECT dattablespace FROM pg_database WHERE datname = current_database()),
                           pg_relation_filenode('one'))::regclass}),
	'one', 'the default tablespace by its own OID');
is(check(), '1|0|1|0', 'is the same entry');
is(sql(q{SELECT look_up('there')}), 'there', 'a table in another tablespace');
is(sql(q{SELECT map_lookup(0, pg_relation_filenode('there'))}), '0', 'is nowhere else');
is(sql(q{SELECT look_up('pg_class')}), 'pg_class', 'a mapped catalog');
is(sql(q{SELECT look_up('pg_database')}), 'pg_database', 'a shared catalog');
is(sql(q{SELECT map_lookup(0, pg_relation_filenode('pg_database'))}), '0', 'is not in the database');
is(sql('SELECT map_lookup(1664, 4294967295), map_lookup(4711, 4711)'), '0|0', 'what does not exist');
is(check(), '8|4|4|0', 'eight entries, four of them negative');

# ---- invalidations

sql(q{SELECT map_invalidate('two'::regclass)});
is(check(), '4|0|4|0', 'a relation that is not in the map takes the negative entries with it, no other');
sql(q{SELECT map_invalidate('one'::regclass)});
is(check(), '3|0|3|0', 'a relation that is there: one entry');
sql('SELECT map_invalidate(0)');
is(check(), '0|0|0|0', 'a reset takes all');
is(sql('SELECT map_bytes()'), 0, 'and the memory is given back');
sql('SELECT map_invalidate(0)');
sql(q{SELECT map_invalidate('one'::regclass)});
is(check(), '0|0|0|0', 'invalidations without a map');
is(sql(q{SELECT look_up('one')}), 'one', 'the map starts anew');

# A relation with several files, as decoding sees it
sql('BEGIN');
is(sql(q{SELECT look_up('two')}), 'two', 'a table before it is rewritten');
my $old = sql(q{SELECT pg_relation_filenode('two')});
sql('TRUNCATE two');
my $new = sql(q{SELECT pg_relation_filenode('two')});
isnt($new, $old, 'it has a new file');
is(sql("SELECT map_lookup(0, $old), map_lookup(0, $new)::regclass"), '0|two', 'the new file is the table');
sql('ROLLBACK');
is(sql("SELECT map_lookup(0, $old)::regclass, map_lookup(0, $new)"), 'two|0', 'rolled back, the old one is');
sql('SELECT map_invalidate(0), map_fill(1000, 5)');
is(check(), '5000|0|1000|0', 'relations with five files each');
sql('SELECT map_invalidate((3000000000 + 500)::oid)');
is(check(), '4995|0|999|0', 'a relation takes all its files with it');

# ---- real invalidations, also from the session's own DDL

new_session();
sql(q{SELECT look_up('one'), look_up('two'), look_up('there'), map_lookup(0, 4294967295)});
$node->safe_psql('postgres', 'ALTER TABLE one ADD COLUMN b int');
sql('SELECT 1');
is(check(), '2|0|2|0', "another session's ALTER TABLE");
sql('ALTER TABLE two ADD COLUMN b int');
is(check(), '1|0|1|0', "the session's own");
$old = sql(q{SELECT pg_relation_filenode('one')});
sql(q{SELECT look_up('one')});
sql('VACUUM FULL one');
is(sql("SELECT map_lookup(0, $old)"), 0, 'the file before VACUUM FULL is no relation');
is(sql(q{SELECT look_up('one')}), 'one', 'the file after is');
sql('VACUUM FULL pg_class');
is(sql(q{SELECT look_up('pg_class')}), 'pg_class', 'a mapped catalog after VACUUM FULL');

# A number that is asked for before there is a relation with it
my $next = sql(q{CREATE TABLE last (); SELECT pg_relation_filenode('last')});
sql("SELECT map_lookup(0, ($next + n)::oid) FROM generate_series(1, 20) n");
sql('CREATE TABLE later ()');
my $later = sql(q{SELECT pg_relation_filenode('later')});
cmp_ok($later, '<=', $next + 20, 'a relation gets a number that was asked for before');
is(sql("SELECT map_lookup(0, $later)::regclass"), 'later', 'and is found');

# ---- invalidations during the look-up

new_session();
foreach my $case ([ 'the relation itself', q{'one'::regclass} ], [ 'another', q{'two'::regclass} ], [ 'a reset', 0 ])
{
	my ($name, $relid) = @$case;
	sql('SELECT map_invalidate(0)');
	sql(q{SELECT look_up('two'), map_lookup(0, 4294967295)});
	sql("SELECT map_disturb_lookup($relid)");
	is(sql(q{SELECT look_up('one')}), 'one', "during a look-up: $name");
	is(check(), $name eq 'the relation itself' ? '2|0|2|0' : '1|0|1|0', 'the map has what it should');
	sql("SELECT map_disturb_lookup($relid)");
	is(sql('SELECT map_lookup(0, 4294967294)'), 0, "during a look-up of nothing: $name");
	like(check(), qr/^\d+\|1\|\d+\|0$/, 'which is remembered');
	is(sql(q{SELECT look_up('one')}), 'one', 'the answer stays right');
}

# In a session that has never looked up anything, and has no map
new_session();
sql('SELECT map_disturb_lookup(0)');
is(sql(q{SELECT look_up('one')}), 'one', 'a reset during the first look-up');
is(check(), '1|0|1|0', 'the entry is there');

# ---- memory runs out

my @allocations = ('the table of relations', 'the map', 'the relation', 'its entry');
foreach my $allocation (1 .. @allocations)
{
	new_session();
	sql("SELECT map_fail_at($allocation)");
	is(error_of(q{SELECT look_up('one')}), 'out of memory',
		"out of memory in a new session: $allocations[$allocation - 1]");

	# The relation comes before its entry.
	is(check(), $allocation == 4 ? '0|0|0|1' : '0|0|0|0', 'the map is in order');
	is(sql(q{SELECT look_up('one')}), 'one', 'the next look-up works');
	is(check(), '1|0|1|0', 'and is remembered');
	sql(q{SELECT map_invalidate('one'::regclass)});
	is(check(), '0|0|0|0', 'and forgotten');
}
sql('SELECT map_fail_at(1)');
is(error_of('SELECT map_lookup(0, 4294967295)'), 'out of memory', 'out of memory: a negative entry');
is(check(), '0|0|0|0', 'the map is in order');
sql('SELECT map_fail_at(2)');
is(error_of(q{SELECT look_up('one')}), 'out of memory', 'out of memory: the entry after the relation');
sql(q{SELECT map_invalidate('one'::regclass)});
is(check(), '0|0|0|0', 'a relation without entries is forgotten, too');

# After a reset the tables are made anew.
foreach my $allocation (1 .. @allocations)
{
	sql('SELECT map_invalidate(0)');
	sql("SELECT map_fail_at($allocation)");
	is(error_of(q{SELECT look_up('one')}), 'out of memory', "out of memory after a reset, allocation $allocation");
	sql('SELECT map_invalidate(0)');
	is(check(), '0|0|0|0', 'a reset then');
	is(sql(q{SELECT look_up('one')}), 'one', 'and a look-up');
}

# ---- duplicates, and temporary relations

new_session();
my $number = sql(q{SELECT pg_relation_filenode('one')});
sql(qq{BEGIN; UPDATE pg_class SET relfilenode = $number WHERE oid = 'two'::regclass});
my $what = $node->pg_version >= 16 ? 'relfilenumber' : 'relfilenode';
is(error_of("SELECT map_lookup(0, $number)"),
	"unexpected duplicate for tablespace 0, $what $number", 'a duplicate is an error');
sql('ROLLBACK');
is(check(), '0|0|0|0', 'nothing is remembered of it');
is(sql("SELECT map_lookup(0, $number)::regclass"), 'one', 'the next look-up works');

sql('CREATE TEMP TABLE mine ()');
sql(qq{BEGIN; UPDATE pg_class SET relfilenode = $number WHERE oid = 'mine'::regclass});
sql('SELECT map_invalidate(0)');
is(sql("SELECT map_lookup(0, $number)::regclass"), 'one', 'a temporary table with the same number is passed over');
my %last_before = (15 => 150014, 16 => 160010, 17 => 170006);
my $major = sql(q{SELECT current_setting('server_version_num')::int / 10000});
if (my $version = $last_before{$major})
{
	sql("SELECT map_invalidate(0), map_server_version($version)");
	is(error_of("SELECT map_lookup(0, $number)"),
		"unexpected duplicate for tablespace 0, $what $number",
		'minor releases before did not pass it over');
	sql('ROLLBACK; SELECT map_invalidate(0)');
	is(sql(q{SELECT look_up('mine')}), 'mine', 'but found temporary tables');
	sql("SELECT map_invalidate(0), map_server_version($version + 1)");
}
else
{
	sql('ROLLBACK; SELECT map_invalidate(0)');
}
is(sql(q{SELECT look_up('mine')}), '-', 'a temporary table is not found');

# ---- reading ahead

# A hundred tables with indexes and TOAST tables, made one after the other
$node->safe_psql('postgres', join "\n", map { "CREATE TABLE row_$_ (a int PRIMARY KEY, b text);" } 1 .. 100);

# Look up some of them in order; returns those that are not found.
sub look_up_row
{
	my ($first, $last) = @_;
	return sql("SELECT coalesce(string_agg(n::text, ' '), '') FROM generate_series($first, $last) n"
		  . " WHERE look_up(('row_' || n)::regclass)::text <> 'row_' || n");
}

sub entries { return (split /\|/, check())[0]; }

# The invalidations of the session's first use of a table are over and done with.
sub new_row_session
{
	new_session();
	look_up_row(1, 100);
	sql('SELECT map_invalidate(0)');
	return;
}

new_row_session();
is(look_up_row(1, 4), '', 'a few tables in a row');
is(entries(), 4, 'do not read ahead');
is(look_up_row(5, 5), '', 'one more');
my $ahead = entries();
cmp_ok($ahead, '>', 20, 'reads ahead');
is(look_up_row(6, 12), '', 'and those that follow are found');
is(entries(), $ahead, 'in the map');
is(look_up_row(13, 100), '', 'so are all');
my $row_entries = q{SELECT count(*) FROM pg_class WHERE relkind IN ('r', 't') AND relfilenode <> 0
	AND (relname LIKE 'row\_%' OR oid IN (SELECT reltoastrelid FROM pg_class WHERE relname LIKE 'row\_%'))};
cmp_ok(entries(), '<=', sql($row_entries), 'no index is in the map');
is(sql(q{SELECT count(*) FROM generate_series(1, 100) n,
		  LATERAL (SELECT reltoastrelid AS toast FROM pg_class WHERE oid = ('row_' || n)::regclass) t
		  WHERE map_lookup(0, pg_relation_filenode(toast)) = toast}),
	100, 'TOAST tables are found');
is(look_up_row(100 - $_, 100 - $_), '', "backwards: $_") foreach 1 .. 3;

new_row_session();
look_up_row(1, 5);
sql(q{SELECT map_invalidate('row_7'::regclass)});
is(entries(), $ahead - 1, 'what was read ahead is forgotten like anything else');
sql('SELECT map_invalidate(0)');
is(check(), '0|0|0|0', 'and reset');

foreach my $relid (q{'row_9'::regclass}, q{'one'::regclass}, 0)
{
	new_row_session();
	look_up_row(1, 4);
	sql("SELECT map_disturb_scan($relid)");
	is(look_up_row(5, 5), '', "during the reading something changes: $relid");
	is(entries(), $relid eq '0' ? 1 : 5, 'nothing is read ahead');
	is(look_up_row(1, 100), '', 'all tables are found');
}

# A table that gets the number of another: an error for that number alone
new_row_session();
sql(q{BEGIN; UPDATE pg_class SET relfilenode = pg_relation_filenode('row_8') WHERE relname = 'row_60'});
sql('SELECT map_invalidate(0)');
look_up_row(1, 5);
my $twins = sql(q{SELECT relfilenode FROM pg_class WHERE relname = 'row_60'});
like(error_of(qq{SELECT map_lookup(0, $twins)}), qr/^unexpected duplicate /, 'a duplicate is not read ahead');
sql('ROLLBACK; SELECT map_invalidate(0)');

# The memory that runs out, runs out at an entry that nobody has asked for.
foreach my $allocation (1 .. 5)
{
	new_row_session();
	look_up_row(1, 4);
	sql("SELECT map_fail_at($allocation)");
	is(error_of(q{SELECT look_up('row_5')}), 'out of memory', "out of memory: $allocation");
	check();
	is(look_up_row(1, 100), '', 'all tables are found');
	check();
}

# Without the index there is no order to read ahead in.
{
	local $ENV{PGOPTIONS} = '-c ignore_system_indexes=on';
	new_row_session();
}
is(look_up_row(1, 10), '', 'without system indexes');
is(entries(), 10, 'nothing is read ahead');

# ---- memory

new_session();
sql('SELECT map_fill(1, 1)');
my $small = sql('SELECT map_bytes()');
sql('SELECT map_invalidate(0), map_fill(100000, 1)');
my $large = sql('SELECT map_bytes()');
cmp_ok($large / 100000, '<', 130, 'a relation takes less than 130 bytes');
diag(sprintf '%d bytes for an empty map, %.1f for each of 100,000 relations', $small, $large / 100000);
# Without a row for each of them: reading so many takes a busy machine minutes.
sql('DO $$BEGIN PERFORM map_invalidate(n::oid) FROM generate_series(3000000000, 3000100000) n; END$$');
is(check(), '0|0|0|0', 'all relations are forgotten one by one');
sql('SELECT map_fill(100000, 1)');
is(sql('SELECT map_bytes()'), $large, 'their memory is used again');
sql('SELECT map_invalidate(0)');
is(sql('SELECT map_bytes()'), 0, 'a reset gives it back');
is(sql(q{SELECT look_up('one')}), 'one', 'and the map goes on');

# ---- the same at random to this map and to a plain one

my $seed = $ENV{PINPOINT_TEST_SEED} // 4;
note("PINPOINT_TEST_SEED=$seed");
my ($entered, $failed, $invalidated, $resets, $largest) =
  split /\|/, sql("SELECT * FROM map_compare($seed, 20000)");
note("$entered entered, $failed out of memory, $invalidated invalidated, $resets resets, at most $largest entries");
cmp_ok($entered, '>', 5000, 'entries were made');
cmp_ok($failed, '>', 500, 'memory ran out');
cmp_ok($invalidated, '>', 1000, 'relations were forgotten');
cmp_ok($resets, '>', 5, 'the map was reset');
cmp_ok($largest, '>', 50, 'the map was not small');

$session->quit;
$node->stop;
done_testing();
