# Snapshots of the running transactions, written to the WAL when many
# transactions have changed catalogs.
# Needs: test_decoding

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Copy qw(copy);

use DecodingTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $interval = 20;
my $node = new_server('main', preload => 'pg_pinpoint_decoding');
$node->safe_psql('postgres', 'CREATE EXTENSION pg_pinpoint_decoding; CREATE TABLE changed (a int)');

my $workers = q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint_decoding standby snapshots'};

# A number of transactions, each of which executes this.
sub transactions
{
	my ($number, $sql) = @_;
	$node->safe_psql('postgres', "$sql;\n" x $number);
	return;
}

# So many transactions as make one snapshot due, wherever the count stands
sub catalog_changes { return transactions($interval, q{COMMENT ON TABLE changed IS 'changed'}); }

sub snapshots { return stat_server($node)->{standby_snapshots}; }

# Wait until there are as many; if there are more it waits in vain.
sub snapshots_become
{
	my ($expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->poll_query_until('postgres', 'SELECT standby_snapshots FROM pinpoint_decoding.stat_server', $expected);
	is(snapshots(), $expected, $name);
	return;
}

# Wait until the worker has nothing to do: it sleeps.
sub wait_for_worker
{
	my $pid = $node->safe_psql('postgres', $workers =~ s/count\(\*\)/pid/r);
	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return if slurp_file("/proc/$pid/stat") =~ /^\d+ \(.*\) S/;
		usleep(100_000);
	}
	die 'the worker does not come to its end';
}

sub restart_with
{
	$node->append_conf('postgresql.conf', "$_\n") foreach @_;
	$node->restart;
	return;
}

# ---- off, as it is by default

is($node->safe_psql('postgres', 'SHOW pinpoint_decoding.standby_snapshot_interval'), '0', 'it is off by default');
is($node->safe_psql('postgres', $workers), 0, 'and then there is no worker');
create_slot($node, 'slot', 'test_decoding');
catalog_changes() for 1 .. 3;
is(snapshots(), 0, 'nor a snapshot');
$node->safe_psql('postgres', q{SELECT pg_drop_replication_slot('slot')});

# ---- on

restart_with("pinpoint_decoding.standby_snapshot_interval = $interval");
$node->poll_query_until('postgres', $workers, 1) or die 'the worker does not start';
catalog_changes() for 1 .. 5;
wait_for_worker();
is(snapshots(), 0, 'no snapshot where no slot is');

create_slot($node, 'slot', 'test_decoding');
my $start = $node->lsn('insert');
catalog_changes();
snapshots_become(1, 'enough changes: one snapshot');

transactions(10 * $interval, 'INSERT INTO changed VALUES (1)');
transactions($interval, q{BEGIN; COMMENT ON TABLE changed IS 'not changed'; ROLLBACK});
catalog_changes();
snapshots_become(2, 'changes of data do not count, nor do those that were rolled back');

transactions(1, "DO \$\$ BEGIN FOR i IN 1 .. $interval LOOP"
	  . q{ BEGIN EXECUTE 'COMMENT ON TABLE changed IS ''changed'''; EXCEPTION WHEN division_by_zero THEN END;}
	  . ' END LOOP; END $$');
snapshots_become(3, 'subtransactions count');

transactions($interval, q{BEGIN; COMMENT ON TABLE changed IS 'prepared'; PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'});
snapshots_become(4, 'prepared transactions count, once');

transactions(1, q{SELECT pg_switch_wal()});
my ($records, $errors) = ('', '');
IPC::Run::run(
	[ 'pg_waldump', '--path', $node->data_dir . '/pg_wal', '--rmgr', 'Standby', '--start', $start,
		'--end', $node->lsn('insert') ],
	'>', \$records, '2>', \$errors);
cmp_ok(scalar(() = $records =~ /RUNNING_XACTS/g), '>=', 4, 'the records are in the WAL')
  or diag($records . $errors);

# ---- the worker ends and comes back

my $ended = $node->safe_psql('postgres',
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint_decoding standby snapshots'});
$node->safe_psql('postgres', "SELECT pg_terminate_backend($ended)");
$node->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint_decoding standby snapshots' AND pid <> $ended")
  or die 'the worker does not come back';
catalog_changes();
snapshots_become(5, 'a worker that was ended comes back');

# ---- a server that nobody can decode from

$node->safe_psql('postgres',
	q{SELECT pg_drop_replication_slot('slot'); SELECT pg_create_physical_replication_slot('standby', true)});
restart_with('wal_level = replica');
$node->poll_query_until('postgres', $workers, 1) or die 'the worker does not start';
catalog_changes() for 1 .. 5;
wait_for_worker();
is(snapshots(), 0, 'no snapshot where the WAL cannot be decoded');
restart_with('wal_level = logical');
$node->poll_query_until('postgres', $workers, 1) or die 'the worker does not start';
catalog_changes();
snapshots_become(1, 'a physical slot counts, as a standby may decode');

# ---- the library is preloaded by its path, and another file of it is installed

my ($libdir) = run_command([ 'pg_config', '--pkglibdir' ]);
# Before PostgreSQL 17 a worker cannot be found by a long path.
my $copy = PostgreSQL::Test::Utils::tempdir_short() . '/pg_pinpoint_decoding_copy.so';
copy("$libdir/pg_pinpoint_decoding.so", $copy) or BAIL_OUT("cannot copy the library: $!");
restart_with("shared_preload_libraries = '$copy'");
$node->poll_query_until('postgres', $workers, 1) or die 'the worker does not start';
my (undef, undef, $refused) = $node->psql('postgres', 'SELECT * FROM pinpoint_decoding.stat_server');
like($refused, qr/pg_pinpoint_decoding was loaded from another file when the server started/, 'a second copy is refused');
my $worker = $node->safe_psql('postgres', $workers =~ s/count\(\*\)/pid/r);
catalog_changes();
wait_for_worker();
is($node->safe_psql('postgres', $workers =~ s/count\(\*\)/pid/r), $worker, 'its worker goes on');

$node->stop;
done_testing();
