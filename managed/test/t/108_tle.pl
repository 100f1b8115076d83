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
