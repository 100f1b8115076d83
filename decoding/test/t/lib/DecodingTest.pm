=pod

=head1 NAME

DecodingTest - what the TAP tests of pg_pinpoint_decoding share

=head1 DESCRIPTION

Servers with and without the library, logical decoding to files, and the C
programs beside this folder.

=cut

package DecodingTest;

use strict;
use warnings;

use Exporter 'import';
use FindBin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(
  $source
  new_server
  with_library
  without_library
  create_slot
  copy_slot
  peek
  receive
  start_receiving
  is_identical
  stat_server
  log_since
  has_link_time_optimization
  compile
);

# The folder with the library's source
our $source = "$FindBin::RealBin/../..";

# Interrupted tests stop their servers too: die() runs the END blocks of
# PostgreSQL::Test::Cluster, a signal's default action does not.
$SIG{INT} = $SIG{TERM} = sub { die "stopped by signal $_[0]\n" };

# A server that can decode, without the library unless preload says so.
# Parameters: preload, conf (more lines for postgresql.conf).
sub new_server
{
	my ($name, %params) = @_;
	my $node    = PostgreSQL::Test::Cluster->new($name);
	my $preload = $params{preload} // '';
	$node->init;
	$node->append_conf('postgresql.conf', join "\n",
		"shared_preload_libraries = '$preload'",
		'wal_level = logical',
		'max_wal_senders = 20',
		'max_replication_slots = 40',
		'max_prepared_transactions = 10',
		'log_statement = none',

		# Servers that run the same statements are to do the same.
		'autovacuum = off',
		'allow_in_place_tablespaces = on',
		$params{conf} // '',
		'');
	$node->start;
	return $node;
}

# Restart a server with the library, or without it.
sub with_library    { return _restart_with(shift, 'pg_pinpoint_decoding'); }
sub without_library { return _restart_with(shift, ''); }

sub _restart_with
{
	my ($node, $preload) = @_;
	$node->append_conf('postgresql.conf', "shared_preload_libraries = '$preload'");
	$node->restart;
	return;
}

sub create_slot
{
	my ($node, $slot, $plugin, $two_phase) = @_;
	$two_phase = $two_phase ? 'true' : 'false';
	$node->safe_psql('postgres',
		"SELECT pg_create_logical_replication_slot('$slot', '$plugin', false, $two_phase)");
	return;
}

sub copy_slot
{
	my ($node, $from, $to) = @_;
	$node->safe_psql('postgres', "SELECT pg_copy_logical_replication_slot('$from', '$to')");
	return;
}

# Decode what a slot has up to an LSN, in an SQL session, and leave it there.
# Returns the name of the file with LSN, transaction and data of each change.
sub peek
{
	my ($node, $slot, $file, $end, %options) = @_;
	my $path    = "$PostgreSQL::Test::Utils::tmp_check/$file";
	my $options = join ', ', map { "'$_', '$options{$_}'" } sort keys %options;
	my $output  = $node->safe_psql(
		'postgres', qq{
		SELECT lsn, xid, encode(data, 'escape')
		  FROM pg_logical_slot_peek_binary_changes('$slot', '$end', NULL, VARIADIC ARRAY[$options]::text[])});
	_write($path, $output);
	return $path;
}

# Decode what a slot has up to an LSN through a WAL sender, which moves the
# slot.  Returns the name of the file with what pg_recvlogical wrote.
sub receive
{
	my ($node, $slot, $file, $end, %options) = @_;
	my $path = "$PostgreSQL::Test::Utils::tmp_check/$file";
	PostgreSQL::Test::Utils::system_or_bail(
		_receive_command($node, $slot, $path, $end, %options));
	return $path;
}

# The same, while the server is being used.  Returns the handle of the process
# (see IPC::Run) and the name of the file.
sub start_receiving
{
	my ($node, $slot, $file, %options) = @_;
	my $path = "$PostgreSQL::Test::Utils::tmp_check/$file";
	my $handle = IPC::Run::start([ _receive_command($node, $slot, $path, undef, %options) ]);
	$node->poll_query_until('postgres',
		"SELECT active FROM pg_replication_slots WHERE slot_name = '$slot'")
	  or die "pg_recvlogical does not start\n";
	return ($handle, $path);
}

sub _receive_command
{
	my ($node, $slot, $path, $end, %options) = @_;
	return (
		'pg_recvlogical', '--start', '--no-loop',
		'--dbname', $node->connstr('postgres'),
		'--slot',   $slot,
		'--file',   $path,
		defined $end ? ('--endpos', $end) : (),
		map { ('--option', "$_=$options{$_}") } sort keys %options);
}

sub _write
{
	my ($path, $text) = @_;
	open my $file, '>', $path or die "$path: $!\n";
	print {$file} $text;
	close $file or die "$path: $!\n";
	return;
}

# Two files have the same bytes, and more than a few.
sub is_identical
{
	my ($got, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok(-s $expected, '>', 1000, "$name: there is something to compare");
	my ($stdout, $stderr) = ('', '');
	my $same = IPC::Run::run([ 'cmp', $got, $expected ], '>', \$stdout, '2>', \$stderr);
	ok($same, "$name: identical") or diag($stdout . $stderr);
	return;
}

# The row of pinpoint_decoding.stat_server as a hash.
sub stat_server
{
	my ($node) = @_;
	my @names = qw(active refused_because lookups hits entries negative_entries
	  invalidations resets standby_snapshots);
	my %row;
	@row{@names} = split /\|/, $node->safe_psql('postgres',
		'SELECT ' . join(', ', @names) . ' FROM pinpoint_decoding.stat_server'), -1;
	return \%row;
}

# What a server has written to its log since the last look.
my %log_position;

sub log_since
{
	my ($node) = @_;
	my $log = slurp_file($node->logfile, $log_position{ $node->name } // 0);
	$log_position{ $node->name } = -s $node->logfile;
	return $log;
}

# Was the server built with link-time optimization? Then the library leaves subscribers alone.
sub has_link_time_optimization
{
	my $cflags;
	IPC::Run::run([ 'pg_config', '--cflags' ], '>', \$cflags) or die "could not run pg_config\n";
	return $cflags =~ /-flto/;
}

# Compile C source to a program or module of this name and return its path.
# Options are the compiler's, and so are those in PINPOINT_TEST_CFLAGS.
sub compile
{
	my ($name, @options) = @_;
	my $path = "$PostgreSQL::Test::Utils::tmp_check/$name";
	my ($output, $include) = ('', '');
	IPC::Run::run([ 'pg_config', '--includedir-server' ], '>', \$include)
	  or die "could not run pg_config\n";
	chomp $include;
	my @command = (
		$ENV{CC} // 'cc', '-O2', '-Wall', '-Wextra', '-Werror',
		'-Wno-unused-parameter',
		"-I$source", "-I$include",
		split(' ', $ENV{PINPOINT_TEST_CFLAGS} // ''),
		@options, '-o', $path);
	IPC::Run::run(\@command, '>&', \$output)
	  or die "could not compile: @command\n$output\n";
	return $path;
}

1;
