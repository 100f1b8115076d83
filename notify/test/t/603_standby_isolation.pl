# Sessions that listen on a standby while others notify on the primary: the specs of
# test/standby, with sessions of the standby, which reach the primary by dblink.
# Needs: dblink

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Basename qw(basename dirname);
use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = "$FindBin::RealBin/../standby";
my $tester = dirname($ENV{PG_REGRESS} // die "PG_REGRESS is not set\n") . '/../isolation/isolationtester';
-x $tester or die "there is no $tester\n";

# ---- the servers

my $conf    = "max_connections = 50\nmax_prepared_transactions = 10";
my $primary = new_node('primary', init => { allows_streaming => 1 }, conf => "$conf\npinpoint.replicate = on");
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);

# A step waits with its snapshot for replay, which must not wait for the step.
$standby->append_conf('postgresql.conf', "hot_standby = on\nhot_standby_feedback = on\n$conf");
$standby->start;

$primary->safe_psql('postgres', q(CREATE DATABASE specs TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'));
$primary->safe_psql('specs',
	join "\n", 'CREATE EXTENSION dblink;',
	q(CREATE SERVER primary_server FOREIGN DATA WRAPPER dblink_fdw),
	sprintf(q(OPTIONS (host '%s', port '%s', dbname 'specs');), $primary->host, $primary->port),
	slurp_file("$folder/primary.sql"));

# From here on a COMMIT returns when the standby has replayed it.
$primary->append_conf('postgresql.conf',
	"synchronous_standby_names = 'standby'\nsynchronous_commit = remote_apply");
$primary->reload;
my $admin = connect_to($primary, dbname => 'specs');
wait_until(sub { $admin->value(q(SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND backend_xmin IS NOT NULL)) })
  or die 'the standby is not synchronous';
wait_until_commits_wait($primary, dbname => 'specs');
$primary->wait_for_catchup($standby);

# ---- the specs

# A step that hangs is to be shown before this test is given up.
$ENV{PGISOLATIONTIMEOUT} = $PostgreSQL::Test::Utils::timeout_default;

# What a spec prints is what is expected.
sub run_spec
{
	my ($name)   = @_;
	my $expected = "$folder/expected/$name.out";
	my $printed  = "$PostgreSQL::Test::Utils::tmp_check/$name.out";
	my ($output, $difference);
	my $ended = IPC::Run::run([ $tester, $standby->connstr('specs') ],
		'<', "$folder/specs/$name.spec", '>&', \$output);

	# Sessions of the primary by their names, as PIDs differ.
	my %session = map { @$_ } @{ $admin->run('SELECT pid, session FROM sender')->rows };
	$output =~ s/(?<= from )PID (\d+)$/exists $session{$1} ? "$session{$1} on the primary" : "PID $1"/gme;
	unlink $printed;
	append_to_file($printed, $output);
	my $same = IPC::Run::run([ 'diff', '-u', $expected, $printed ], '>&', \$difference);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($ended && $same, $name) or diag($difference);

	# It may leave the servers as no other spec expects them.
	die "$name did not end as it should\n" unless $ended;
	return;
}

my @specs = map { basename($_, '.spec') } sort glob "$folder/specs/*.spec";
is_deeply([ map { basename($_, '.out') } sort glob "$folder/expected/*.out" ],
	\@specs, 'each spec has its expected output');
run_spec($_) for @specs;

server_is_clean(connect_to($standby), 'nothing is left on the standby');

done_testing();
