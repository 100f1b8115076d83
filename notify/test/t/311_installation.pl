# What "make install" puts where, and the libraries in another place than the
# server's, as an extension that is mounted from an image is.  A build for another
# server than that of the objects compiles them again.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Basename qw(basename);
use File::Copy qw(copy);
use File::Find ();
use PinpointTest;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

my $source    = "$FindBin::RealBin/../../..";
my $tmp_check = $PostgreSQL::Test::Utils::tmp_check;
my %library   = (notify => 'pg_pinpoint', decoding => 'pg_pinpoint_decoding');

# Whatever make runs this test, the ones that it starts are on their own.
delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES DESTDIR)};

sub run_make
{
	my ($part, @arguments) = @_;
	my $output;
	my @command =
	  ('make', '-s', '-C', "$tmp_check/$part", 'PG_CONFIG=pg_config', 'with_llvm=no', 'COPT=-O0', @arguments);
	IPC::Run::run(\@command, '>&', \$output) or die "failed: @command\n$output\n";
	return;
}

# The files below a folder, from its path on.
sub files_below
{
	my ($folder) = @_;
	my @files;
	File::Find::find(
		{ no_chdir => 1, wanted => sub { push @files, substr $_, length $folder if -f } },
		$folder);
	return [ sort @files ];
}

sub pg_config
{
	my ($option) = @_;
	my $output;
	IPC::Run::run([ 'pg_config', $option ], '>', \$output) or die "could not run pg_config\n";
	chomp $output;
	return $output;
}

# The folder in which one of the files is.
sub folder_of
{
	my ($name, $folder) = @_;
	my ($file) = grep { basename($_) eq $name } @{ files_below($folder) };
	return $folder . ($file =~ s{/[^/]*$}{}r);
}

sub edit
{
	my ($path, $from, $to) = @_;
	my $text = slurp_file($path);
	$text =~ s/$from/$to/ or die "nothing in $path is $from\n";
	open my $file, '>', $path or die "$path: $!\n";
	print {$file} $text;
	close $file or die "$path: $!\n";
	return;
}

# ---- the files

my $root   = "$tmp_check/root";
my $elsewhere = "$tmp_check/elsewhere";
my @expected;
copy("$source/VERSION", $tmp_check) or die "VERSION: $!\n";
foreach my $part (sort keys %library)
{
	PostgreSQL::Test::RecursiveCopy::copypath("$source/$part", "$tmp_check/$part",
		filterfn => sub { $_[0] ne 'tmp_check' });
	push @expected, map { pg_config('--sharedir') . '/extension/' . basename($_) }
	  glob "$source/$part/*.sql $source/$part/*.control";
	push @expected, pg_config('--pkglibdir') . "/$library{$part}.so";
	run_make($part, 'install', "DESTDIR=$root");
}
is_deeply(files_below($root), [ sort @expected ],
	'DESTDIR gets the libraries, each SQL file and each control file, and nothing else');

run_make($_, 'uninstall', "DESTDIR=$root") foreach sort keys %library;
is_deeply(files_below($root), [], 'uninstall leaves no file');

# ---- the libraries from elsewhere, which PostgreSQL 18 and later can load

my ($version) = pg_config('--version') =~ /^PostgreSQL (\d+)/;
if ($version >= 18)
{
	# Not "prefix=": some packages of PostgreSQL install into their own folders all the same.
	run_make($_, 'install', "DESTDIR=$elsewhere") foreach sort keys %library;
	is_deeply(
		[ sort map { basename($_) } @{ files_below($elsewhere) } ],
		[ sort map { basename($_) } @expected ],
		'the same files are installed elsewhere');

	my $control = folder_of('pg_pinpoint.control', $elsewhere);
	my $lib     = folder_of('pg_pinpoint.so',      $elsewhere);
	edit("$control/$_.control", qr/^comment = '.*'/m, "comment = 'from elsewhere'") foreach values %library;

	my $node = new_node(
		'main',
		preload => 'pg_pinpoint, pg_pinpoint_decoding',
		conf    => join "\n",
		"extension_control_path = '" . ($control =~ s{/extension$}{}r) . ':$system\'',
		"dynamic_library_path = '$lib:\$libdir'",
		'');
	my $session = connect_to($node);
	$session->run('CREATE EXTENSION pg_pinpoint_decoding');
	my $versions = $session->run(
		q{SELECT e.extname, e.extversion, obj_description(e.oid, 'pg_extension'), m.version, m.file_name
		    FROM pg_extension AS e JOIN pg_get_loaded_modules() AS m ON m.module_name = e.extname
		   WHERE e.extname LIKE 'pg_pinpoint%' ORDER BY 1})->rows;
	is_deeply([ map { "@$_[0, 2, 4]" } @$versions ],
		[ map { "$_ from elsewhere $_.so" } sort values %library ],
		'both extensions and both libraries are there, by name');
	chomp(my $release = slurp_file("$source/VERSION"));
	foreach my $row (@$versions)
	{
		my ($name, $extension, undef, $library) = @$row;
		is($library, $release, "the library $name has the version of the release");
		is($extension, $release =~ s/\.\d+$//r, "the extension $name has its first two numbers");
	}

	$session->run('LISTEN a');
	my $published = stat_queue($session)->{published};
	$session->run(q{SELECT pg_notify('a', 'b')});
	is_deeply(all_as_text($session->take_notifications), ['a/b'], 'a notification arrives');
	is(stat_queue($session)->{published} - $published, 1, 'through pg_pinpoint');

	# The functions' "$libdir/" has not brought another copy.
	my %mapped = map { $_ => 1 } slurp_file('/proc/' . $session->pid . '/maps') =~ m{(/\S*/pg_pinpoint\w*\.so)}g;
	is_deeply([ sort keys %mapped ], [ map { "$lib/$_.so" } sort values %library ],
		'one copy of each, the one from elsewhere');
	$session->close;
}

# ---- objects of another server or compiler are not installed

# A compiler that only notes its calls, and another server: the same one, by another description.
sub write_program
{
	my ($name, $text) = @_;
	append_to_file("$tmp_check/$name", "#!/bin/sh\n$text\n");
	chmod 0755, "$tmp_check/$name" or die "$name: $!\n";
	return "$tmp_check/$name";
}
my $calls    = "$tmp_check/calls";
my $compiler = write_program('compiler', <<~"END");
	if [ "\$1" = --version ]; then echo "no compiler"; exit; fi
	while [ "\$1" != -o ]; do shift; done
	echo "\$2" >>'$calls'
	: >"\$2"
	END
my $other = write_program('other_pg_config', 'pg_config "$@"; [ $# -gt 0 ] || echo "CONFIGURE = other"');

sub compiled
{
	my ($part, @arguments) = @_;
	unlink $calls;
	run_make($part, 'all', "CC=$compiler", @arguments);
	return -e $calls ? [ sort split /\n/, slurp_file($calls) ] : [];
}

foreach my $part (sort keys %library)
{
	my @objects = map { substr $_, 1 } grep { /\.o$/ } @{ files_below("$tmp_check/$part") };
	cmp_ok(scalar @objects, '>=', 5, "there are objects of $library{$part}");
	foreach (['compiler'], [ 'server', "PG_CONFIG=$other" ])
	{
		my ($what, @arguments) = @$_;
		is_deeply(compiled($part, @arguments), [ sort @objects, "$library{$part}.so" ],
			"for another $what, they are compiled again, and linked");
		is_deeply(compiled($part, @arguments), [], 'once');
	}

	my $output;
	ok(!IPC::Run::run([ 'make', '-s', '-C', "$tmp_check/$part", 'PG_CONFIG=/nowhere/pg_config' ], '>&', \$output),
		'without a server, nothing is built');
	like($output, qr{there is no PostgreSQL server with development files for PG_CONFIG=/nowhere/pg_config: },
		'and the message names PG_CONFIG');
}

done_testing();
