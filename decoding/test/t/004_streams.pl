# The same WAL, decoded with and without the library: the same bytes.
#
# The workload runs on a stock server while slots keep its WAL.  Then the
# server is restarted, with and without the library, and each time everything
# is decoded: with test_decoding and pgoutput, through SQL functions and through
# a WAL sender, committed at the end, in two phases, and streamed.
#
# Needs: test_decoding

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use DecodingTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main', conf => 'logical_decoding_work_mem = 64kB');
$node->safe_psql('postgres', 'CREATE PUBLICATION everything FOR ALL TABLES');

create_slot($node, 'td',          'test_decoding');
create_slot($node, 'td_2pc',      'test_decoding', 1);
create_slot($node, 'pgoutput',     'pgoutput');
create_slot($node, 'pgoutput_2pc', 'pgoutput', 1);

my @test_decoding = ('include-timestamp' => 1, 'include-rewrites' => 1, 'skip-empty-xacts' => 0);
my @pgoutput = ('publication_names' => 'everything', 'messages' => 'true');

# name => slot, options
my %streams = (
	'test_decoding'           => [ 'td',       @test_decoding ],
	'test_decoding, streamed' => [ 'td',       @test_decoding, 'stream-changes' => 1 ],
	'test_decoding, in two phases, streamed' => [ 'td_2pc', @test_decoding, 'stream-changes' => 1 ],
	'pgoutput'                => [ 'pgoutput', @pgoutput, proto_version => 1 ],
	'pgoutput, binary, streamed' =>
	  [ 'pgoutput', @pgoutput, proto_version => 2, binary => 'true', streaming => 'on' ],
	'pgoutput, in two phases, streamed' =>
	  [ 'pgoutput_2pc', @pgoutput, proto_version => 3, streaming => 'on', two_phase => 'on' ]);

system_or_bail('psql', '--no-psqlrc', '--quiet', '--output=/dev/null',
	"--dbname=" . $node->connstr('postgres'), "--file=$FindBin::RealBin/../workload.sql");
my $end = $node->lsn('insert');

# Slots are moved by the clients that receive from them, so each time gets copies.
foreach my $time ('stock', 'library')
{
	my $number = 0;
	copy_slot($node, $streams{$_}[0], "${time}_" . ++$number) for sort keys %streams;
}

# A WAL sender stops when it comes to a record behind the end.
$node->safe_psql('postgres', q{SELECT pg_logical_emit_message(true, 'workload', 'behind the end')});

# Decode everything; returns files by name.
sub decode_all
{
	my ($time, $through_walsender) = @_;
	my %files;
	my $number = 0;
	foreach my $name (sort keys %streams)
	{
		my ($slot, @options) = @{ $streams{$name} };
		$number++;
		$files{"$name, by SQL"} = peek($node, $slot, "$time.$number.sql", $end, @options);
		$files{"$name, by a WAL sender"} =
		  receive($node, "${time}_$number", "$time.$number.walsender", $end, @options)
		  if $through_walsender;
	}
	return %files;
}

my %stock = decode_all('stock', 1);

# That two runs on stock agree says that the comparison means something.
$node->restart;
my %again = decode_all('again', 0);
is_identical($again{$_}, $stock{$_}, "stock again, $_") for sort keys %again;

with_library($node);
$node->safe_psql('postgres', 'CREATE EXTENSION pg_pinpoint_decoding');
my %library = decode_all('library', 1);
is_identical($library{$_}, $stock{$_}, $_) for sort keys %library;

# It was us, and decoding was no easy job.
my $stat = stat_server($node);
is($stat->{active}, 't', 'the library was active');
cmp_ok($stat->{lookups}, '>', 100_000, 'it looked up relations');
cmp_ok($stat->{hits}, '>', 100_000, 'most of them were in the map');
cmp_ok($stat->{lookups} - $stat->{hits}, '>', 1000, 'many were not');
cmp_ok($stat->{invalidations}, '>', 10_000, 'there were invalidations');
note(join ', ', map { "$_ $stat->{$_}" } sort keys %$stat);

# What was streamed and what was prepared is in the streams.
my $two_phases = slurp_file($library{'test_decoding, in two phases, streamed, by SQL'});
like($two_phases, qr/\Q$_\E/, "the workload has: $_")
  foreach 'opening a streamed block', 'committing streamed transaction',
  'aborting streamed (sub)transaction', 'preparing streamed transaction', "PREPARE TRANSACTION 'kept'",
  "COMMIT PREPARED 'kept'", "ROLLBACK PREPARED 'lost'", 'table public.plain: TRUNCATE',
  'seen when it is logged';
my $text = slurp_file($library{'test_decoding, by SQL'});
unlike($text, qr/unlogged row|temporary row/, 'nothing of unlogged and temporary tables');
like($text, qr/'the end'/, 'the last change is there');

$node->stop;
done_testing();
