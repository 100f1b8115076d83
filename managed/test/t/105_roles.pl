# Several roles: what they may do, and what they cannot make the owner of the schema do.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use ManagedTest;
use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = managed_node('main');
my $owner = app($node);
$node->safe_psql('postgres', 'CREATE ROLE other LOGIN');
$node->safe_psql('managed', 'CREATE SCHEMA theirs AUTHORIZATION other; GRANT USAGE ON SCHEMA theirs TO app');
run_all($owner, 'CREATE TABLE t (id int)', 'CREATE TABLE parent (id int)', 'CREATE TABLE child () INHERITS (parent)',
	"SELECT pinpoint.watch('t'), pinpoint.watch('parent')", 'GRANT INSERT, SELECT ON t TO other');
my $other = app($node, user => 'other');

sub error_of
{
	my ($session, $statement) = @_;
	my $error = $session->query($statement)->error;
	return $error ? $error->{C} : 'none';
}

# ---- Privileges

is(error_of($other, $_), '42501', $_) foreach split /\n/, <<'EOS';
SELECT * FROM pinpoint.written
INSERT INTO pinpoint.written VALUES ('t', '1', 't')
DELETE FROM pinpoint.written
TRUNCATE pinpoint.written
SELECT pinpoint.clean('t', 't')
SELECT pinpoint.add_change('t', 'i')
SELECT pinpoint.watch('t')
SELECT pinpoint.unwatch('t')
SELECT * FROM pinpoint.channels_of('SELECT * FROM parent')
CREATE FUNCTION pinpoint.written_since(text) RETURNS text LANGUAGE sql AS 'SELECT 1::text'
CREATE OR REPLACE FUNCTION pinpoint.changed() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'
EOS
is($node->safe_psql('managed', q{SELECT string_agg(oid::regprocedure::text, ', ') FROM pg_proc WHERE pronamespace = 'pinpoint'::regnamespace
	AND prosecdef AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)}), '', 'a function with the privileges of its owner has a search_path');
is($node->safe_psql('managed', q{SELECT count(*) FROM pg_class WHERE relnamespace = 'pinpoint'::regnamespace AND relkind = 'r'
	AND relacl IS NOT NULL}), 0, 'nobody has privileges on tables');

# Another role changes a table, asks, listens, waits, and watches its own tables.
my $position = $other->value('SELECT pinpoint.position()');
run_all($other, 'INSERT INTO t VALUES (1)');
is((changed($other, $position, 't', 'parent'))[0], 't', 'another role changes a table, and asks');
run_all($other, "SELECT pinpoint.listen('t')", 'CREATE TABLE theirs.own (id int) PARTITION BY LIST (id)',
	'CREATE TABLE theirs.own1 PARTITION OF theirs.own FOR VALUES IN (1)', "SELECT pinpoint.watch('theirs.own', 'own')");
is(changes($other, $other, [ 't', 'own' ], 'INSERT INTO theirs.own1 VALUES (1)'), 'own', 'it watches its own table');
is($owner->value("SELECT string_agg(relation::text, ' ' ORDER BY relation::text) FROM pinpoint.watched"), 'parent t theirs.own', 'which all can see');
is($other->value("SELECT changed FROM pinpoint.changed_since(NULL, 't')"), '{t}', 'NULL');
run_all($other, 'BEGIN READ ONLY');
is($other->value('SELECT pinpoint.position() IS NOT NULL'), 't', 'a read-only transaction');
run_all($other, 'COMMIT');

# The owner of the schema cannot create triggers on the new partition of another role. It needs none.
run_all($other, 'CREATE TABLE theirs.own2 PARTITION OF theirs.own FOR VALUES IN (2)');
run_all($owner, "SELECT changed FROM pinpoint.changed_since(NULL, 'own')");
is(changes($owner, $other, [ 't', 'own' ], 'INSERT INTO theirs.own2 VALUES (2)'), 'own', 'a new partition of another role');
is($owner->value("SELECT rows FROM pinpoint.tree WHERE relid = 'theirs.own2'::regclass"), 'A', 'has a trigger for each row');
run_all($other, "SELECT pinpoint.watch('theirs.own', 'own')");
is($owner->value("SELECT rows FROM pinpoint.tree WHERE relid = 'theirs.own2'::regclass"), 'R', 'until its owner calls watch()');

# A table of another role with the same channel does not prevent anything.
run_all($other, 'CREATE TABLE theirs.p (id int)', "SELECT pinpoint.watch('theirs.p', 't')", 'CREATE TABLE theirs.c () INHERITS (theirs.p)');
$position = $owner->value('SELECT pinpoint.position()');
is((changed($owner, $position, 't'))[0], 't', 'a child of another role without triggers');
run_all($owner, "SELECT pinpoint.watch('t')", "SELECT pinpoint.unwatch('t')", "SELECT pinpoint.watch('t')");
run_all($other, 'DROP TABLE theirs.p CASCADE');

# ---- Attacks

# Objects that the owner's functions could find first.
run_all($other, split /\n/, <<'EOS');
CREATE TABLE theirs.caught (what text, who name)
CREATE FUNCTION theirs.catch(text) RETURNS void LANGUAGE sql AS 'INSERT INTO theirs.caught VALUES ($1, current_user)'
CREATE FUNCTION theirs.pg_notify(text, text) RETURNS void LANGUAGE sql AS $$ SELECT theirs.catch('pg_notify') $$
CREATE FUNCTION theirs.pg_current_snapshot() RETURNS pg_snapshot LANGUAGE sql AS $$ SELECT theirs.catch('snapshot'); SELECT '1:1:'::pg_snapshot $$
CREATE FUNCTION theirs.pg_visible_in_snapshot(xid8, pg_snapshot) RETURNS boolean LANGUAGE sql AS $$ SELECT theirs.catch('visible'); SELECT true $$
CREATE FUNCTION theirs.equal(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT theirs.catch('='); SELECT true $$
CREATE OPERATOR theirs.= (LEFTARG = text, RIGHTARG = text, FUNCTION = theirs.equal)
CREATE FUNCTION theirs.greater(xid8, xid8) RETURNS boolean LANGUAGE sql AS $$ SELECT theirs.catch('>='); SELECT false $$
CREATE OPERATOR theirs.>= (LEFTARG = xid8, RIGHTARG = xid8, FUNCTION = theirs.greater)
CREATE TEMP TABLE written (channel text, xid xid8, source "char", id text)
CREATE TEMP TABLE pg_trigger (oid oid)
SET search_path = theirs, pg_temp, pg_catalog, public
EOS
$position = $other->value('SELECT pinpoint.position()');
run_all($other, 'INSERT INTO public.t VALUES (2)', "SELECT pinpoint.notify('n', 'x')", "SELECT pinpoint.watch('theirs.own', 'own')");
is($other->value("SELECT pg_catalog.array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', 't', 'parent', 'n')"), 't n',
	'a search_path of the caller changes no answer');
$other->query("CALL pinpoint.wait('{t}', '$position', '1 s')");
is($node->safe_psql('managed', "SELECT count(*) FROM theirs.caught WHERE who <> 'other'"), 0, 'and makes nobody execute its functions');
run_all($other, 'RESET search_path', 'DROP TABLE pg_temp.written, pg_temp.pg_trigger');

# A trigger that only looks like one of those that are needed.
run_all($owner, 'CREATE TABLE child2 () INHERITS (parent)', 'GRANT TRIGGER ON child2 TO other');
run_all($other, "CREATE TRIGGER fake AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON child2 FOR EACH STATEMENT WHEN (false)"
	. " EXECUTE FUNCTION pinpoint.changed('parent', 'child')",
	"CREATE TRIGGER fake_rows AFTER INSERT OR UPDATE OR DELETE ON child2 FOR EACH ROW WHEN (false) EXECUTE FUNCTION pinpoint.changed('parent', 'rows')");
run_all($owner, "SELECT changed FROM pinpoint.changed_since(NULL, 'parent')");
is(changes($owner, $owner, ['parent'], 'INSERT INTO child2 VALUES (1)'), 'parent', 'triggers that never fire do not count');
is($owner->value("SELECT source FROM pinpoint.watched WHERE channel = 'parent'"), 'incomplete', 'which is shown');
run_all($owner, 'DROP TRIGGER fake ON child2', 'DROP TRIGGER fake_rows ON child2', "SELECT pinpoint.watch('parent')");
is($owner->value("SELECT source FROM pinpoint.watched WHERE channel = 'parent'"), 'triggers', 'watch() repairs it when they are dropped');

# Names that must be quoted, in all statements that are made.
sub literal
{
	my ($text) = @_;
	return "'" . $text =~ s/'/''/gr . "'";
}
my $table    = q{"od'd"."t""; DROP TABLE t; --"};
my $part     = q{"od'd"."p';"};
my $channel  = q{chan'nel"; %s \ {}};
my $template = q<x'"%s\{{{id}}}>;
run_all($owner, q{CREATE SCHEMA "od'd"}, "CREATE TABLE $table (id int) PARTITION BY LIST (id)",
	"CREATE TABLE $part PARTITION OF $table FOR VALUES IN (1)",
	'SELECT pinpoint.watch(' . literal($table) . ', ' . literal($channel) . ')',
	"CREATE TRIGGER r AFTER INSERT ON $part FOR EACH ROW EXECUTE FUNCTION pinpoint.notify_row(" . literal($template) . ')');
$position = $owner->value('SELECT pinpoint.position()');
run_all($owner, "INSERT INTO $part VALUES (1)");
my $odd = q<x'"%s\{1}>;
is($owner->value("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since(" . join(', ', map { literal($_) } $position, 't', $channel, $odd) . ')'),
	"$channel $odd", 'odd names');
is($owner->value('SELECT pinpoint.unwatch(' . literal($table) . ')'), 't', 'unwatch');
is($owner->value(q{SELECT count(*) FROM pinpoint.triggers WHERE function = 'changed' AND argument LIKE 'chan%'}), 0, 'drops all its triggers');

# A database in which all roles may create functions that fit better than those of PostgreSQL. The file is executed there, twice.
$node->safe_psql('postgres', 'CREATE DATABASE shared OWNER app');
$node->safe_psql('shared', 'GRANT CREATE ON SCHEMA public TO PUBLIC');
my $attacker = app($node, dbname => 'shared', user => 'other');
run_all($attacker, split /\n/, <<'EOS');
CREATE TABLE caught (who name)
GRANT INSERT ON caught TO PUBLIC
CREATE FUNCTION catch(text) RETURNS text LANGUAGE sql AS 'INSERT INTO public.caught VALUES (current_user); SELECT $1'
CREATE FUNCTION format(text, regclass, name) RETURNS text LANGUAGE sql AS $$ SELECT public.catch('SELECT 1') $$
CREATE FUNCTION concat_ws(text, oid, xid) RETURNS text LANGUAGE sql AS $$ SELECT public.catch('x') $$
EOS
install($node, dbname => 'shared');
my $shared = app($node, dbname => 'shared');
run_all($shared, 'CREATE TABLE t (id int)', "SELECT pinpoint.watch('t')", 'SELECT pinpoint.position()');
install($node, dbname => 'shared');
is($node->safe_psql('shared', "SELECT count(*) FROM caught WHERE who <> 'other'"), 0, 'the file does not find the functions of others');
is($shared->value('SELECT string_agg(relation::text, chr(32)) FROM pinpoint.watched'), 't', 'and keeps the watched table');
is($node->safe_psql('shared', q{SET search_path = public, "$user"; \i } . managed_file() . "\nSHOW search_path"), 'public, "$user"',
	'the search_path remains what it was');

# A schema of another role with the name of this one.
$node->safe_psql('postgres', 'CREATE DATABASE taken OWNER app; GRANT CREATE ON DATABASE taken TO other');
run_all(app($node, dbname => 'taken', user => 'other'), split /\n/, <<'EOS');
CREATE SCHEMA pinpoint
GRANT USAGE ON SCHEMA pinpoint TO PUBLIC
CREATE FUNCTION pinpoint.catch() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'executed by %', current_user; END $$
CREATE FUNCTION pinpoint.notify_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'
CREATE VIEW pinpoint.watched AS SELECT pinpoint.catch() AS relation, 'x' AS channel
GRANT SELECT ON pinpoint.watched TO PUBLIC
EOS
(undef, my $refused) = run_command([ 'psql', '-X', '-q', '-1', '-v', 'ON_ERROR_STOP=1', '-U', 'app', '-f', managed_file(), '-d', $node->connstr('taken') ]);
like($refused, qr/schema "pinpoint" already exists/, 'the file does not replace the schema of another role');

# Strings with backslashes.
my $old_strings = app($node);
SKIP:
{
	skip 'standard_conforming_strings is always on', 2 if $old_strings->query('SET standard_conforming_strings = off')->error;
	run_all($owner, 'CREATE TABLE strings (id int)', 'CREATE TRIGGER r AFTER INSERT ON strings FOR EACH ROW EXECUTE FUNCTION'
		. q{ pinpoint.notify_row('s_{id}{{}}\%')});
	$position = $old_strings->value('SELECT pinpoint.position()');
	run_all($old_strings, 'INSERT INTO strings VALUES (1)');
	is((changed($old_strings, $position, 't'))[0], '', 'standard_conforming_strings = off');
	is($owner->value("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', 't', 's_1{}\\%', 's_2{}\\%')"), 's_1{}\\%',
		'changes no channel');
}

# A superuser with session_replication_role = replica, as an apply worker.
$position = $owner->value('SELECT pinpoint.position()');
$node->safe_psql('managed', 'SET session_replication_role = replica; INSERT INTO t VALUES (9); INSERT INTO child VALUES (9)');
is((changed($owner, $position, 't', 'parent'))[0], 't parent', 'session_replication_role = replica');

# Default privileges without EXECUTE for PUBLIC.
$node->safe_psql('postgres', 'CREATE DATABASE strict OWNER app');
my $strict = app($node, dbname => 'strict');
run_all($strict, 'ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC');
install($node, dbname => 'strict');
is(app($node, dbname => 'strict', user => 'other')->value("SELECT changed FROM pinpoint.changed_since(NULL, 'x')"), '{x}',
	'another role can ask where functions have no privileges by default');

done_testing();
