# Loading the library: active, refused, and what the server is like then.
#
# Needs: test_decoding

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use DecodingTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $test = "$FindBin::RealBin/..";
my $node = new_server('main', conf => 'restart_after_crash = on');

# The look-up works: a table's own, a catalog's, a shared catalog's, and none.
my $look_up = q{
	SELECT pg_filenode_relation(0, pg_relation_filenode('here'))::regclass,
		   pg_filenode_relation(0, pg_relation_filenode('pg_class'))::regclass,
		   pg_filenode_relation(1664, pg_relation_filenode('pg_database'))::regclass,
		   pg_filenode_relation(0, 4294967295)};
my $found = 'here|pg_class|pg_database|';
$node->safe_psql('postgres', 'CREATE TABLE here ()');

# The memory of the postmaster's code: lines of /proc/PID/maps.
sub code_maps
{
	my $pid = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
	return grep { (split ' ')[1] =~ /x/ } split /\n/, slurp_file("/proc/$pid/maps");
}

# Code that belongs to no file (the kernel's own has a name).
sub pages_of_no_file
{
	my $pages = 0;
	foreach my $line (code_maps())
	{
		my ($range, $file) = (split ' ', $line)[ 0, 5 ];
		no warnings 'portable';
		my ($start, $end) = map { hex } split /-/, $range;
		$pages += ($end - $start) / POSIX::sysconf(POSIX::_SC_PAGESIZE())
		  unless defined $file;
	}
	return $pages;
}

# ---- not preloaded

# The row of stat_server when the library is not active.
sub inactive
{
	my ($reason) = @_;
	return { (map { $_ => '' } keys %{ stat_server($node) }), active => 'f', refused_because => $reason };
}

is($node->safe_psql('postgres', "LOAD 'pg_pinpoint_decoding'; $look_up"), $found, 'LOAD does nothing');
{
	local $ENV{PGOPTIONS} = '-c session_preload_libraries=pg_pinpoint_decoding';
	is($node->safe_psql('postgres', $look_up), $found, 'nor does session_preload_libraries');
}
$node->safe_psql('postgres', 'CREATE EXTENSION pg_pinpoint_decoding');
is_deeply(stat_server($node), inactive('not preloaded'), 'the view says that the library is not preloaded');
is($node->safe_psql('postgres', 'SELECT count(*) FROM pinpoint_decoding.stat_sessions'),
	0, 'and there are no sessions to show');
is($node->safe_psql('postgres', $look_up), $found, 'look-ups work');

# ---- active

log_since($node);
with_library($node);
my $function = $node->pg_version >= 16 ? 'RelidByRelfilenumber' : 'RelidByRelfilenode';
like(log_since($node),
	qr/LOG:  pg_pinpoint_decoding is active\n.*DETAIL:  The server's function $function is redirected/,
	'the server log says that it is active');
is($node->safe_psql('postgres', $look_up), $found, 'look-ups work');
is(stat_server($node)->{active}, 't', 'and so does the view');
is(stat_server($node)->{refused_because}, '', 'without a reason');
is($node->psql('postgres', "LOAD 'pg_pinpoint_decoding'"), 0, 'LOAD of the preloaded library does nothing');
is(scalar(grep { /^\S+ .w/ } code_maps()), 0, 'no code is writable');
like(pages_of_no_file(), has_link_time_optimization() ? qr/^[12]$/ : qr/^[3-6]$/,
	'one page of code for each function is of no file, or two if the function begins at the end of one');

# ---- what is counted

$node->safe_psql('postgres', 'CREATE ROLE someone LOGIN');
my $before  = stat_server($node);
my $session = $node->background_psql('postgres', extra_params => [ '-U', 'someone' ]);
my $pid     = $session->query_safe('SELECT pg_backend_pid()');
my $query   = "SELECT lookups, hits, entries, negative_entries, resets FROM pinpoint_decoding.stat_sessions WHERE pid = $pid";
is($session->query_safe($query), '', 'a session that looked up nothing has no row');
$session->query_safe($look_up);
is($session->query_safe($query), '4|0|4|1|0', 'four look-ups: four entries, a negative one among them');
$session->query_safe($look_up);
is($session->query_safe($query), '8|4|4|1|0', 'once again: hits');
my $now = stat_server($node);
is_deeply(
	[ map { $now->{$_} - $before->{$_} } qw(lookups hits entries negative_entries) ],
	[ 8, 4, 4, 1 ],
	"the server's numbers are those of its sessions");

# Others' invalidations arrive when a session starts its next transaction.
$node->safe_psql('postgres', 'CREATE TABLE elsewhere ()');
is($session->query_safe($query), '8|4|3|0|0', 'another relation takes the negative entries with it');
$node->safe_psql('postgres', 'ALTER TABLE here ADD COLUMN a int');
is($session->query_safe($query), '8|4|2|0|0', 'a relation takes its own entries with it');
$session->query_safe($look_up);
is($session->query_safe($query), '12|6|4|1|0', 'the next look-up finds it again');
my $invalidations = $session->query_safe('SELECT invalidations FROM pinpoint_decoding.stat_server');
cmp_ok($invalidations, '>', $before->{invalidations}, 'invalidations are counted');

$session->quit;
$node->poll_query_until('postgres',
	"SELECT count(*) = 0 FROM pinpoint_decoding.stat_sessions WHERE pid = $pid")
  or die 'the session does not end';
$now = stat_server($node);
is_deeply(
	[ map { $now->{$_} - $before->{$_} } qw(lookups hits entries negative_entries) ],
	[ 12, 6, 0, 0 ],
	'when the session has ended its look-ups still count, its entries do not');

# ---- resets: the session forgets everything

# Decoding by SQL begins with one, and ends with one.
create_slot($node, 'slot', 'test_decoding');
$session = $node->background_psql('postgres');
$pid     = $session->query_safe('SELECT pg_backend_pid()');
$query   = "SELECT lookups, hits, entries, resets FROM pinpoint_decoding.stat_sessions WHERE pid = $pid";
$session->query_safe($look_up);
is($session->query_safe($query), '4|0|4|0', 'four entries');
$session->query_safe(q{SELECT count(*) FROM pg_logical_slot_peek_changes('slot', NULL, NULL)});
like($session->query_safe($query), qr/^4\|0\|0\|[1-9]$/, 'decoding resets the map');
my ($resets) = $session->query_safe($query) =~ /(\d+)$/;
$session->query_safe(q{SELECT count(*) FROM pg_logical_slot_peek_changes('slot', NULL, NULL)});
cmp_ok(($session->query_safe($query) =~ /(\d+)$/)[0], '>', $resets, 'which counts also if there was no map');

# A session that has missed too many invalidations must forget all it knows.
# While it waits for a lock within a transaction, it looks at none.
my $file = 'SELECT pg_filenode_relation(0, pg_relation_filenode(\'here\'))::regclass';
$session->query_safe($file);
my $old_number = $session->query_safe(q{SELECT pg_relation_filenode('here')});
($resets) = $session->query_safe($query) =~ /(\d+)$/;
my $holder = $node->background_psql('postgres');
$holder->query_safe('SELECT pg_advisory_lock(1)');
$session->query_until(qr/waiting/, "\\echo waiting\nSELECT 'obtained' FROM pg_advisory_lock(1);\n");
$node->poll_query_until('postgres',
	"SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = $pid")
  or die 'the session does not wait';
$node->safe_psql('postgres', q{VACUUM FULL here});
$node->safe_psql('postgres', 'DO $$ BEGIN FOR i IN 1 .. 500 LOOP EXECUTE \'CREATE TABLE many (a int); DROP TABLE many\';'
	  . ' COMMIT; END LOOP; END $$');
$holder->query_safe('SELECT pg_advisory_unlock(1)');
$holder->quit;
$session->query_until(qr/obtained/, '');
is($session->query_safe($file), 'here', 'a session that fell behind finds a table with a new file');
is($session->query_safe("SELECT pg_filenode_relation(0, $old_number)"), '', 'and knows that the old one is no more');
cmp_ok(($session->query_safe($query) =~ /(\d+)$/)[0], '>', $resets, 'it had a reset');
$session->quit;

# ---- a server process crashes: shared memory starts anew, and all is well

$session = $node->background_psql('postgres');
$session->query_safe($look_up);
my $log_position = -s $node->logfile;
kill 'KILL', $session->query_safe('SELECT pg_backend_pid()');
$node->wait_for_log(qr/database system is ready to accept connections/, $log_position);
is(stat_server($node)->{lookups}, 0, 'after a crash restart counting starts anew');
is($node->safe_psql('postgres', $look_up), $found, 'look-ups work after a crash restart');
is(stat_server($node)->{lookups}, 4, 'and are counted');
eval { $session->quit };

# ---- refused for real: the server runs as if the library was not there

# Restart under "deny exec" (see deny.c).
my $deny = compile('deny', "$test/deny.c");
$node->stop;
log_since($node);
system_or_bail($deny, 'exec', 'pg_ctl', '--wait', '--silent',
	'--pgdata', $node->data_dir, '--log', $node->logfile, 'start');
$node->_update_pid(1);
like(log_since($node),
	qr/WARNING:  pg_pinpoint_decoding is not active: could not make memory executable: Operation not permitted\n.*DETAIL:  Logical decoding works as it does without the library\./,
	'refused: memory that may not become executable');
is($node->safe_psql('postgres', $look_up), $found, 'look-ups work');
is(pages_of_no_file(), 0, "all code is the files'");
is_deeply(stat_server($node), inactive('could not make memory executable: Operation not permitted'),
	'the view says why, and counts nothing');
is($node->safe_psql('postgres', 'SELECT count(*) FROM pinpoint_decoding.stat_sessions'),
	0, 'there are no sessions to show');
$node->stop;

# A library that starts a thread, loaded before us
my $thread = compile('thread_at_load.so', '-shared', '-fPIC', '-D_GNU_SOURCE',
	'-Wno-sign-compare', "$test/thread_at_load.c", '-pthread');
$node->append_conf('postgresql.conf', "shared_preload_libraries = '$thread, pg_pinpoint_decoding'");
$node->start;
like(log_since($node),
	qr/WARNING:  pg_pinpoint_decoding is not active: the process has 2 threads\n/,
	'refused: a second thread in the postmaster');
is(stat_server($node)->{refused_because}, 'the process has 2 threads', 'the view says why');
is($node->safe_psql('postgres', $look_up), $found, 'look-ups work');

# And the other way round, the thread comes too late to matter.
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_pinpoint_decoding, $thread'");
$node->restart;
is(stat_server($node)->{active}, 't', 'active, with a thread that starts later');
is($node->safe_psql('postgres', $look_up), $found, 'look-ups work');

# ---- and without the library nothing is left of it

without_library($node);
is(pages_of_no_file(), 0, "without the library all code is the files'");
is($node->safe_psql('postgres', $look_up), $found, 'look-ups work');
is_deeply(stat_server($node), inactive('not preloaded'), 'the view says why');

$node->stop;
done_testing();
