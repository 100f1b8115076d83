# The extension: its objects, the equality of an updated and a fresh extension, and that
# its checks cannot be circumvented.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Copy qw(copy);

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node  = new_node('main');
my $admin = connect_to($node);
$admin->run('CREATE ROLE someone LOGIN');

# Everything about the extension in a database, as text: its members with owners
# and privileges, its place, and the definitions of its views and functions.
my $contents = q{
	SELECT m.line FROM pg_extension AS e, LATERAL (
		SELECT format('extension in %s', e.extnamespace::regnamespace)
		UNION ALL
		SELECT format('%s depends on %s', pg_describe_object(classid, objid, objsubid),
		              pg_describe_object(refclassid, refobjid, refobjsubid))
		  FROM pg_depend WHERE classid = 'pg_extension'::regclass AND objid = e.oid
		UNION ALL
		SELECT format('member %s', pg_describe_object(d.classid, d.objid, d.objsubid))
		  FROM pg_depend AS d
		 WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
		UNION ALL
		SELECT format('schema %s, owner %s, privileges %s', n.nspname, n.nspowner::regrole, n.nspacl)
		  FROM pg_namespace AS n WHERE n.nspname = 'pinpoint'
		UNION ALL
		SELECT format('%s, owner %s, privileges %s, %s, %s', p.oid::regprocedure, p.proowner::regrole,
		              p.proacl, pg_get_functiondef(p.oid), obj_description(p.oid, 'pg_proc'))
		  FROM pg_proc AS p WHERE p.pronamespace = 'pinpoint'::regnamespace
		UNION ALL
		SELECT format('%s, owner %s, privileges %s, %s, %s', c.oid::regclass, c.relowner::regrole,
		              c.relacl, pg_get_viewdef(c.oid), obj_description(c.oid, 'pg_class'))
		  FROM pg_class AS c WHERE c.relnamespace = 'pinpoint'::regnamespace
		UNION ALL
		SELECT format('initially %s: %s', pg_describe_object(i.classoid, i.objoid, i.objsubid), i.initprivs)
		  FROM pg_init_privs AS i JOIN pg_depend AS d
		    ON (d.classid, d.objid, d.deptype) = (i.classoid, i.objoid, 'e')
		 WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
	) AS m(line)
	WHERE e.extname = 'pg_pinpoint' ORDER BY m.line COLLATE "C"};

sub contents
{
	my ($dbname) = @_;
	my $session = connect_to($node, dbname => $dbname);
	my @lines = map { $_->[0] } @{ $session->run($contents)->rows };
	$session->close;
	return \@lines;
}

sub in_database
{
	my ($dbname, $sql, %params) = @_;
	my $session = connect_to($node, dbname => $dbname, %params);
	my $result = $session->query($sql);
	$session->close;
	return $result;
}

# ---- every version can be updated to the newest

# The numbers of a version, in a form that sorts
sub sortable { return join '.', map { sprintf '%05d', $_ } split /\./, $_[0]; }

my $newest = $admin->value(
	q{SELECT default_version FROM pg_available_extensions WHERE name = 'pg_pinpoint'});
my @versions = sort { sortable($a) cmp sortable($b) } map { $_->[0] } @{
	$admin->run(q{SELECT version FROM pg_available_extension_versions WHERE name = 'pg_pinpoint'})->rows };
is($versions[-1], $newest, "the newest of the versions @versions is the default");

$admin->run('CREATE DATABASE fresh');
in_database('fresh', 'CREATE EXTENSION pg_pinpoint');
my $fresh = contents('fresh');
cmp_ok(scalar @$fresh, '>', 15, 'a fresh extension has contents');
ok(scalar(grep { $_ eq 'member schema pinpoint' } @$fresh), 'its schema among them');

foreach my $version (grep { $_ ne $newest } @versions)
{
	# The old version of the extension works with the new library.
	my $dbname = 'from_' . $version =~ tr/./_/r;
	$admin->run("CREATE DATABASE $dbname");
	is(in_database($dbname, "CREATE EXTENSION pg_pinpoint VERSION '$version'")->error,
		undef, "version $version can be created");
	my $session = connect_to($node, dbname => $dbname);
	$session->run('LISTEN a');
	$session->run("NOTIFY a, 'statement'; SELECT pg_notify('a', 'function')");
	is_deeply(
		all_as_text($session->take_notifications),
		[ 'a/statement', 'a/function' ],
		'it works with the new library');
	is($session->value("SELECT transactions FROM pinpoint.stat_notify WHERE datname = '$dbname'"), 1, 'through the engine');
	is(stat_listener($session, $session->pid)->{channels}, 1, 'its views work');
	is($session->value('SELECT listeners FROM pinpoint.stat_channels'), 1, 'all of them');
	is($session->value('SELECT pg_notification_queue_usage() >= 0'), 't', 'and its functions');

	is($session->query('ALTER EXTENSION pg_pinpoint UPDATE')->error, undef, 'it can be updated');
	is_deeply(contents($dbname), $fresh, 'to the same as a fresh one');
	$session->run("NOTIFY a, 'updated'");
	is_deeply(all_as_text($session->take_notifications), ['a/updated'], 'and goes on working');
	$session->close;
}

# ---- default privileges

$admin->run('CREATE DATABASE guarded');
in_database('guarded', 'ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC; CREATE EXTENSION pg_pinpoint');
my $guarded = connect_to($node, dbname => 'guarded', user => 'someone');
$guarded->run(q{LISTEN a; SELECT pg_notify('a', 'x')});
is($guarded->value(q{SELECT transactions FROM pinpoint.stat_notify WHERE datname = 'guarded'}), 1, 'where functions are not for everybody, these are');
is($guarded->value('SELECT count(*) FROM pinpoint.stat_listeners, pinpoint.stat_queue WHERE pid = pg_backend_pid()'), 1, 'so the views are, too');
$guarded->close;
error_is(in_database('guarded', 'SELECT pinpoint.stat_reset()', user => 'someone'),
	'42501', 'permission denied for function stat_reset', undef, 'but not what is for superusers');

# ---- another function of that name is never called

$admin->run('CREATE DATABASE shadow');
my $shadow = connect_to($node, dbname => 'shadow');
$shadow->run(q{
	CREATE EXTENSION pg_pinpoint;
	CREATE TABLE called (by text);
	CREATE TABLE names (a varchar, b varchar);
	CREATE FUNCTION pinpoint.notify(varchar, varchar) RETURNS void LANGUAGE sql
		AS $$ INSERT INTO public.called VALUES (current_user) $$;
	PREPARE p (text) AS SELECT $1;
	LISTEN a});
$shadow->run(q{
	EXECUTE p(pg_notify('a'::varchar, 'execute'::varchar)::text)});
$shadow->run(q{COPY names FROM PROGRAM 'printf "a\\tcopy\\n"' WHERE pg_notify(a, b) IS NOT NULL});
is_deeply(all_as_text($shadow->take_notifications), [ 'a/execute', 'a/copy' ], 'EXECUTE and COPY notify');
is($shadow->value(q{SELECT transactions FROM pinpoint.stat_notify WHERE datname = 'shadow'}), 2, 'the way of pg_pinpoint');
is($shadow->value('SELECT count(*) FROM called'), 0, 'by its own functions');
$shadow->close;

# ---- the schema belongs to the extension

$admin->run('CREATE DATABASE early OWNER someone');
in_database('early', 'CREATE SCHEMA pinpoint', user => 'someone');
error_is(in_database('early', 'CREATE EXTENSION pg_pinpoint'),
	'42P06', 'schema "pinpoint" already exists',
	'Rename the schema with ALTER SCHEMA, or drop it, and execute CREATE EXTENSION again.',
	'a schema that somebody has made before is not taken, and a hint says what to do');
is(in_database('early', 'ALTER SCHEMA pinpoint RENAME TO theirs; CREATE EXTENSION pg_pinpoint')->error,
	undef, 'after that the extension can be created');
is(in_database('early', q{SELECT count(*) FROM pg_proc WHERE proname = 'pinpoint_check_schema'})->rows->[0][0],
	0, 'the function that checks is not kept');
error_is(in_database('fresh', 'DROP SCHEMA pinpoint'),
	'2BP01', 'cannot drop schema pinpoint because extension pg_pinpoint requires it',
	undef, 'the schema cannot be dropped by itself');
in_database('fresh', 'DROP EXTENSION pg_pinpoint');
is(in_database('fresh', q{SELECT count(*) FROM pg_namespace WHERE nspname = 'pinpoint'})->rows->[0][0],
	0, 'and goes with the extension');

# ---- the privilege to execute pg_notify() is what counts, by whatever name

$admin->run('REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC');
my $someone = connect_to($node, user => 'someone');
sub refused
{
	my ($sql, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return error_is($someone->query($sql),
		'42501', 'permission denied for function pg_notify', undef, $name);
}
refused(q{SELECT pg_notify('a', 'x')},       'pg_notify() without the privilege');
refused(q{SELECT pinpoint.notify('a', 'x')}, 'pinpoint.notify() without it');
$admin->run('ALTER SCHEMA pinpoint RENAME TO elsewhere');
refused(q{SELECT pg_notify('a', 'x')},        'pg_notify() when the schema has another name');
refused(q{SELECT elsewhere.notify('a', 'x')}, 'and the other function');
refused(q{SELECT elsewhere.notify('a', 'x') FROM generate_series(1, 2)}, 'for more than one row');
$admin->run('LISTEN a');
is($admin->query(q{NOTIFY a, 'statement'; SELECT pg_notify('a', 'function'), elsewhere.notify('a', 'other')})->error,
	undef, 'those who have it');
is_deeply(
	[ sort @{ all_as_text($admin->take_notifications) } ],
	[ 'a/function', 'a/other', 'a/statement' ],
	'can notify');
$admin->run('ALTER SCHEMA elsewhere RENAME TO pinpoint');
$admin->run('GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO someone');
is($someone->query(q{SELECT pinpoint.notify('a', 'granted')})->error, undef, 'once it is granted');

# The user may change between two rows of one call.
$admin->run('REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM someone');
$admin->run(
	q{CREATE FUNCTION become(text) RETURNS text LANGUAGE plpgsql AS
	  $$ BEGIN PERFORM set_config('role', $1, true); RETURN $1; END $$;
	  GRANT someone TO CURRENT_USER});
error_is(
	$admin->query(q{SELECT pinpoint.notify('a', become(r)) FROM (VALUES ('none'), ('someone')) AS v(r)}),
	'42501', 'permission denied for function pg_notify', undef, 'checked for each of them');
$someone->close;
$admin->run('GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO PUBLIC');

# ---- dump and restore

my $dump = "$PostgreSQL::Test::Utils::tmp_check/dump.sql";
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('postgres') ], 'pg_dump');
unlike(slurp_file($dump), qr/CREATE SCHEMA pinpoint/, 'the schema is not in a dump');
$admin->run('CREATE DATABASE restored');
$node->command_ok([ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $node->connstr('restored') ],
	'it can be restored');
is_deeply(contents('restored'), contents('postgres'), 'to the same');

# ---- another file of the library

# Before PostgreSQL 17 a worker cannot be found by a long path.
my $copy = PostgreSQL::Test::Utils::tempdir_short() . '/pg_pinpoint_copy.so';
my ($libdir) = run_command([ 'pg_config', '--pkglibdir' ]);
copy("$libdir/pg_pinpoint.so", $copy) or BAIL_OUT("cannot copy the library: $!");
my $by_path = new_node('by_path', preload => $copy, extension => 0);
my $visitor = connect_to($by_path);
my $waker   = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker'};
ok($by_path->poll_query_until('postgres', "SELECT EXISTS ($waker)"), 'preloaded by its path it has a waker');
error_is($visitor->query('CREATE EXTENSION pg_pinpoint'),
	'55000', 'pg_pinpoint was loaded from another file when the server started', undef,
	'and a second copy from another file is refused');
$visitor->close;

done_testing();
