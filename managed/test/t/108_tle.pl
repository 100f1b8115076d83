# The extension of pg_tle that managed/tle installs.
#
# Needs: pg_tle

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use ManagedTest;
use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', preload => 'pg_tle', extension => 0);
$node->safe_psql('postgres', 'CREATE ROLE app LOGIN');
$node->safe_psql('postgres', 'CREATE DATABASE managed OWNER app');
$node->safe_psql('managed', 'CREATE EXTENSION pg_tle; GRANT pgtle_admin TO app');
my $script = "${PostgreSQL::Test::Utils::tmp_check}/tle.sql";
my ($text) = run_command(["$FindBin::RealBin/../../tle"]);
append_to_file($script, $text);
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-U', 'app', '-f', $script, 'managed' ], 'the script installs the extension');
my $session = app($node);
run_all($session, 'CREATE EXTENSION pinpoint_sql', 'CREATE TABLE t (id int)', "SELECT pinpoint.watch('t')");
is(changes($session, $session, [ 't', 'u' ], 'INSERT INTO t VALUES (1)'), 't u', 'it works');

# The rows of changes are no part of a dump.
my $dump = PostgreSQL::Test::Utils::tempdir . '/dump';
$node->command_ok([ 'pg_dump', '-U', 'app', '-Fc', '-f', $dump, 'managed' ], 'pg_dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored OWNER app');
$node->safe_psql('restored', 'CREATE EXTENSION pg_tle');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-U', 'app', '-f', $script, 'restored' ], 'the extension for the restore');
$node->command_ok([ 'pg_restore', '-d', 'restored', $dump, '-U', 'app', '-L', list_without_tle($dump) ], 'pg_restore');
is($node->safe_psql('restored', 'SELECT relation, channel, source FROM pinpoint.watched'), 't|t|triggers', 'the table is watched');
is($node->safe_psql('restored', "SELECT count(*) FROM pinpoint.written WHERE source = 't'"), 0, 'without rows of changes');

isnt($session->query('DROP EXTENSION pinpoint_sql')->error, undef, 'DROP EXTENSION fails while tables are watched');
run_all($session, 'DROP EXTENSION pinpoint_sql CASCADE', 'INSERT INTO t VALUES (2)');
is($session->value('SELECT count(*) FROM pg_trigger'), 0, 'with CASCADE it removes the triggers');

# An update, which keeps the watched tables.
my $version = slurp_file("$FindBin::RealBin/../../../VERSION") =~ s/\s//gr;
my $before = "${PostgreSQL::Test::Utils::tmp_check}/before.sql";
append_to_file($before, $text =~ s/'pinpoint_sql', '\Q$version\E'/'pinpoint_sql', '0.9'/r);
my $update = "${PostgreSQL::Test::Utils::tmp_check}/update.sql";
append_to_file($update, (run_command([ "$FindBin::RealBin/../../tle", '0.9' ]))[0]);
$node->safe_psql('postgres', 'CREATE DATABASE updated OWNER app');
$node->safe_psql('updated', 'CREATE EXTENSION pg_tle');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-U', 'app', '-f', $before, 'updated' ], 'an older version');
my $updated = app($node, dbname => 'updated');
run_all($updated, 'CREATE EXTENSION pinpoint_sql', 'CREATE TABLE t (id int)', 'CREATE TABLE p (id int) PARTITION BY LIST (id)',
	'CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)', "SELECT pinpoint.watch('t'), pinpoint.watch('p', 'of p')",
	"CREATE TRIGGER r AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION pinpoint.notify_row('t:{id}')");
my $position = $updated->value('SELECT pinpoint.position()');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-U', 'app', '-f', $update, 'updated' ], 'the way to the new one');
run_all($updated, "ALTER EXTENSION pinpoint_sql UPDATE TO '$version'");
is($updated->value("SELECT extversion FROM pg_extension WHERE extname = 'pinpoint_sql'"), $version, 'it is updated');
is((changed($updated, $position, 't', 'of p'))[0], 't of p', 'positions from before are unknown');
is($updated->value("SELECT string_agg(concat_ws(' ', relation, channel, source), ', ' ORDER BY channel) FROM pinpoint.watched"),
	'p of p triggers, t t triggers', 'the tables are watched');
is(changes($updated, $updated, [ 't', 'of p', 't:1', 't:2' ], 'INSERT INTO t VALUES (1)', 'INSERT INTO p1 VALUES (1)'), 't of p t:1', 'changes count');
is($updated->value("SELECT count(*) FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = 'pinpoint.written'::regclass AND deptype = 'e'"), 1,
	'the new table belongs to the extension');

# What pg_restore should restore: without the objects of pg_tle itself, which exist.
sub list_without_tle
{
	my ($archive) = @_;
	my ($list) = run_command([ 'pg_restore', '-l', $archive ]);
	my $path = "$archive.list";
	append_to_file($path, join "\n", (grep { !/pgtle|pg_tle/ } split /\n/, $list), '');
	return $path;
}

done_testing();
