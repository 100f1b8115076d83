# Two servers, one stock and one with the library: the same statements at
# random, and the same decoded text.
#
# On both, one session runs the statements, and now and then looks up relations
# and decodes what it has done so far.  On the one with the library a WAL
# sender decodes meanwhile.
#
# PINPOINT_TEST_SEED and PINPOINT_TEST_STATEMENTS make it another test.  With some seeds,
# PostgreSQL itself fails, also without the library:
#
#	- "could not find pg_class entry", in 15 and 18;
#	- 15.18, streaming: a crash in ReorderBufferChangeMemoryUpdate(), when
#	  ReorderBufferToastReset() frees changes (seed 107, 5000 statements);
#	- 18.6: the assertion "txn->size == 0" of ReorderBufferReturnTXN() (seed 107, 5000
#	  statements).
#
# The decoded text can also differ by chance: where streaming begins depends on the moments
# when snapshots of running transactions are written, and what is decoded at once depends on
# what the WAL writer has flushed.
#
# Needs: test_decoding

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use DecodingTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RandomStatements;
use Test::More;

my $seed  = $ENV{PINPOINT_TEST_SEED}       // 4;
my $count = $ENV{PINPOINT_TEST_STATEMENTS} // 1000;
note("PINPOINT_TEST_SEED=$seed PINPOINT_TEST_STATEMENTS=$count");

# ---- two servers

my %conf = (conf => "logical_decoding_work_mem = 64kB");
my $stock   = new_server('stock', %conf);
my $library = new_server('library', preload => 'pg_pinpoint_decoding',
	conf => "$conf{conf}\npinpoint_decoding.standby_snapshot_interval = 10");

# From PostgreSQL 18 on, streaming what is rolled back may crash test_decoding:
# the server gives up a top-level transaction that was not streamed, and takes its
# subtransactions for streamed.  Test 004 streams all the same.
my $stream = $stock->pg_version < 18;

# ---- the statements

my $random = RandomStatements->new($seed, stream => $stream);
my $script = "$PostgreSQL::Test::Utils::tmp_check/statements.sql";
open my $file, '>', $script or die "$script: $!";
print {$file} "\\set ON_ERROR_ROLLBACK on\nSET client_min_messages = warning;\n";
print {$file} $random->next_statement, "\n" for 1 .. $count;
print {$file} $random->finish, "\n";
close $file;

foreach my $node ($stock, $library)
{
	$node->safe_psql('postgres', q{CREATE TABLESPACE elsewhere LOCATION ''});
	create_slot($node, 'walk',  'test_decoding');
	create_slot($node, 'live',  'test_decoding', 1);
	create_slot($node, 'later', 'test_decoding', 1);
	create_slot($node, 'later_still', 'test_decoding', 1);
}
# What a server's session prints, errors included
sub run_statements
{
	my ($node) = @_;
	my $output = '';
	IPC::Run::run(
		[
			'psql', '--no-psqlrc', '--quiet', '--no-align', '--tuples-only',
			'--dbname', $node->connstr('postgres'), '--file', $script
		],
		'>&', \$output);

	# A temporary schema has the session's number in its name.
	$output =~ s/pg_temp_\d+|pg_toast_\d+/pg_N/g;
	return $output;
}

my %options = ('include-xids' => 0, 'include-rewrites' => 1, 'skip-empty-xacts' => 1);
my ($receiver, $live) = start_receiving($library, 'live', 'library.live', %options);
my %printed = (stock => run_statements($stock), library => run_statements($library));
my %end = (stock => $stock->lsn('insert'), library => $library->lsn('insert'));

$library->poll_query_until('postgres',
	"SELECT confirmed_flush_lsn >= '$end{library}' FROM pg_replication_slots WHERE slot_name = 'live'")
  or die 'the WAL sender does not come to the end';
$receiver->signal('INT');
$receiver->finish;

# A WAL sender stops when it comes to a record behind the end.
$_->safe_psql('postgres', q{SELECT pg_logical_emit_message(false, 'random', 'behind the end')})
  foreach $stock, $library;

# ---- the same text

is($printed{library}, $printed{stock}, 'both servers print the same');
my $received = receive($stock, 'live', 'stock.live', $end{stock}, %options);
is_identical($live, $received, 'decoded while it happened, and on the stock server');

# ---- the same WAL, with and without the library: with transaction IDs

my @with_xids = ('include-xids' => 1, 'include-timestamp' => 1, 'include-rewrites' => 1,
	$stream ? ('stream-changes' => 1) : ());
my $with    = receive($library, 'later', 'library.later', $end{library}, @with_xids);
$library->safe_psql('postgres', 'CREATE EXTENSION pg_pinpoint_decoding');
my $stat = stat_server($library);
without_library($library);
my $without = receive($library, 'later_still', 'library.later_still', $end{library}, @with_xids);
is_identical($with, $without, 'decoded afterwards, and without the library');

# ---- and it was a test

my $errors = () = $printed{library} =~ /ERROR:/g;
note("$errors errors; " . join ', ', map { "$_ $stat->{$_}" } sort keys %$stat);
cmp_ok($errors, '<', $count / 5, 'most statements succeed');
my $text = slurp_file($live);
my %seen = map { $_ => scalar(() = $text =~ /$_/g) }
  ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'COMMIT', 'PREPARE TRANSACTION', 'COMMIT PREPARED');
note(join ', ', map { "$_ $seen{$_}" } sort keys %seen);
cmp_ok($seen{$_}, '>', 3, "there were: $_") foreach sort keys %seen;
cmp_ok($stat->{invalidations}, '>', 10 * $count, 'there were invalidations');
cmp_ok($stat->{hits}, '>', $count, 'there were hits');
cmp_ok($stat->{standby_snapshots}, '>', 3, 'snapshots were written in between');

$stock->stop;
$library->stop;
done_testing();
