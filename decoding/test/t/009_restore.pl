# A database with the extension moves to a server that does not preload the
# library: as a dump, and by pg_upgrade.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use Cwd qw(getcwd);
use DecodingTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $old = new_server('old', preload => 'pg_pinpoint_decoding');
$old->safe_psql('postgres',
	'CREATE EXTENSION pg_pinpoint_decoding;'
	  . ' CREATE VIEW ours AS SELECT active, refused_because FROM pinpoint_decoding.stat_server');
is($old->safe_psql('postgres', 'SELECT * FROM ours'), 't|', 'the library is active on the old server');

# What the new server shows, and then with the library.
sub check_new
{
	my ($node, $how) = @_;
	is($node->safe_psql('postgres', 'SELECT * FROM ours'), 'f|not preloaded', "$how: the views are there");
	with_library($node);
	is($node->safe_psql('postgres', 'SELECT * FROM ours'), 't|', "$how: and then the library is preloaded");
	$node->stop;
	return;
}

# ---- a dump

my $dump = "$PostgreSQL::Test::Utils::tmp_check/dump.sql";
command_ok([ 'pg_dump', '--file', $dump, '--dbname', $old->connstr('postgres') ], 'the database is dumped');
my $restored = new_server('restored');
command_ok(
	[ 'psql', '--no-psqlrc', '--set', 'ON_ERROR_STOP=1', '--dbname', $restored->connstr('postgres'), '--file', $dump ],
	'and restored');
check_new($restored, 'restored');

# ---- pg_upgrade, which also checks that the new server can load all libraries

my $upgraded = PostgreSQL::Test::Cluster->new('upgraded');
$upgraded->init;
$old->stop;
my $bindir  = $old->config_data('--bindir');
my $started_in = getcwd();

# It writes to the current folder, and makes its sockets there.
chdir $upgraded->basedir or die $upgraded->basedir . ": $!";
command_ok(
	[
		'pg_upgrade', '--no-sync',
		'--old-bindir', $bindir, '--old-datadir', $old->data_dir, '--old-port', $old->port,
		'--new-bindir', $bindir, '--new-datadir', $upgraded->data_dir, '--new-port', $upgraded->port,
		'--socketdir', $upgraded->host
	],
	'pg_upgrade succeeds');
chdir $started_in or die "$started_in: $!";
$upgraded->start;
check_new($upgraded, 'upgraded');

done_testing();
