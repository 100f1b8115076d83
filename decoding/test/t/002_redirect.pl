# Redirecting a function, tried on small programs.
#
# Each case compiles redirect_test.c and redirect.c as its own program.  What
# is refused must leave the program exactly as it was.
#
# All of it is done with each C library and CPU that there is a compiler for:
# the machine's own, musl, and on other machines aarch64, emulated.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use DecodingTest;
use IPC::Run;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;

my $test = "$FindBin::RealBin/..";

my $machine = (POSIX::uname())[4];
my @toolchains = (
	{ name => 'native', compiler => $ENV{CC} // 'cc', machine => $machine },
	{ name => 'musl', compiler => 'musl-gcc', machine => $machine });
push @toolchains,
  {
	name     => 'aarch64',
	compiler => 'aarch64-linux-gnu-gcc',
	machine  => 'aarch64',
	emulator => [ 'qemu-aarch64', '-L', '/usr/aarch64-linux-gnu' ],
	options  => [ '-DEMULATED', '-Wl,--wrap=readdir' ]
  } if $machine ne 'aarch64';

my $written = "the code of the function victim differs from the program's file:"
  . ' there may be a uprobe, a breakpoint or a patch';

my $toolchain;
my $number = 0;
my $deny   = compile('deny', "$test/deny.c");

foreach (@toolchains)
{
	$toolchain = $_;
  SKIP:
	{
		foreach my $program ($toolchain->{compiler}, ($toolchain->{emulator} // [])->[0] // ())
		{
			skip "$toolchain->{name}: there is no $program", 1
			  unless IPC::Run::run([ 'which', $program ], '>', '/dev/null', '2>&1');
		}
		local $ENV{CC} = $toolchain->{compiler};
		test_redirected();
		test_refused();
		if ($toolchain->{name} eq 'native')
		{
			test_uprobe();
			test_translated_error();
		}
		test_broken();
		test_link_time_optimization();
	}
}
done_testing();

# ---- Programs ----

# Compile and return the path.
sub compile_test
{
	return compile('redirect_' . ++$number, "$test/redirect_test.c",
		"$source/redirect.c", '-rdynamic', '-pthread', '-ldl', @{ $toolchain->{options} // [] }, @_);
}

# Run a program and return what it prints as a hash.  There may be a command
# before it that runs it.
sub run_test
{
	my $program = pop;
	my @command = (@_, @{ $toolchain->{emulator} // [] }, $program);
	my ($stdout, $stderr) = ('', '');
	IPC::Run::run(\@command, '>', \$stdout, '2>', \$stderr)
	  or die "@command failed: $stdout$stderr";
	my %result = map { /^(\w+) (.*)$/ ? ($1, $2) : () } split /\n/, $stdout;
	return \%result;
}

# The name of a test
sub with { return "$toolchain->{name}: $_[0]"; }

sub write_source
{
	my ($name, $text) = @_;
	my $path = "$PostgreSQL::Test::Utils::tmp_check/$name";
	open my $file, '>', $path or die "$path: $!";
	print {$file} $text;
	close $file or die "$path: $!";
	return $path;
}

# ---- Cases ----

sub test_redirected
{
	my $is_x86 = $toolchain->{machine} eq 'x86_64';
	foreach my $case (
		[ 'a plain function',                1, 'gone' ],
		[ 'position-dependent code',         1, 'gone', '-fno-pie', '-no-pie' ],
		[ 'position-independent code',       1, 'gone', '-fPIE',    '-pie' ],
		[ 'a function with a landing pad',   1, 'kept',
			$is_x86 ? '-fcf-protection=branch' : '-mbranch-protection=standard' ],
		[ 'a function that crosses a page',  2, 'gone', '-DSTRADDLE',
			'-fno-toplevel-reorder', '-falign-functions=1' ],
		[ 'code that is not optimized',      1, 'gone', '-O0' ],
		[ 'a program with a stack protector', 1, 'gone', '-fstack-protector-all' ],
		[ 'a program without the symbols that nobody needs', 1, 'gone', '-s' ],
		[ 'a function that counts as called once', 1, 'gone', '-DCALLERS=2', '-DEXPECTED=1' ])
	{
		my ($name, $pages, $pad, @options) = @$case;

		# Some distributions have landing pads by default.
		push @options, '-fcf-protection=none' if $is_x86 && $pad eq 'gone';

		# On aarch64 a landing pad for a signed return address becomes a plain one.
		$pad = 'gone' unless $is_x86;
		is_deeply(
			run_test(compile_test(@options)),
			{
				result     => 'redirected',
				reason     => 'none',
				direct     => 'replacement',
				pointer    => 'replacement',
				neighbours => 'work',
				memory     => 'changed',
				pages      => $pages,
				pad        => $pad
			},
			with("redirected: $name"));
	}
	return;
}

sub test_refused
{
	my $is_x86 = $toolchain->{machine} eq 'x86_64';
	my ($size, $length) = $is_x86 ? (6, 14) : (8, 16);
	my $eperm  = 'Operation not permitted';
	my $calls = sub {
		return "the program calls the function victim in $_[0] places instead of 2, as after link-time optimization";
	};

	my @no_exec =
	  $toolchain->{emulator} ? ([], '-DNO_EXEC', '-Wl,--wrap=mprotect') : ([ $deny, 'exec' ]);

	# A library that has the function that is asked for
	my $shared = compile("libvictim_$toolchain->{name}.so", '-shared', '-fPIC',
		write_source('victim.c', "int victim(int a, int b) { return a * 0 + b * 0 + 1003; }\n"));

	foreach my $case (
		[ 'too short a function', "the function victim has $size bytes, and the jump needs $length", [], '-DSHORT' ],
		[ 'no such function', 'the program has no function nobody', [], '-DNAME="nobody"' ],
		[ 'a variable', 'the symbol variable is not a function', [], '-DNAME="variable"' ],
		[ "a library's function", 'the function victim is not in the code of the program',
			[], '-DLIBRARY', $shared ],
		[ 'a function with a single caller', $calls->(1), [], '-DCALLERS=1' ],
		[ 'a function without callers',      $calls->(0), [], '-DCALLERS=0' ],
		[ 'a second thread', 'the process has 2 threads', [], '-DTHREAD' ],
		[ "a debugger's breakpoint on the page", $written, [], '-DBREAKPOINT' ],
		[ 'memory that may not become executable',
			"could not make memory executable: $eperm", @no_exec ],
		[ 'memory for the text of an error is missing', 'could not make memory executable: error ' . POSIX::EPERM,
			@no_exec, '-DNO_LOCALE', '-Wl,--wrap=newlocale' ],
		[ 'memory that may not be replaced',
			"could not replace the memory of the function victim: $eperm", [ $deny, 'move' ] ],
		[ 'a jump that does not work', 'the jump to the replacement does not work',
			[], '-DBAD_PROBE="first"' ])
	{
		my ($name, $reason, $wrapper, @options) = @$case;
		my $result = run_test(@$wrapper, compile_test(@options));
		is($result->{result}, 'refused', with("refused: $name"));
		is($result->{reason}, $reason, 'the reason is given');
		is_deeply(
			[ map { $_ // 'none' } @{$result}{qw(direct pointer neighbours memory pages pad)} ],
			[
				"@options" =~ /CALLERS=/ ? 'none' : 'original',
				'original',
				"@options" =~ /SHORT|LIBRARY/ ? 'none' : 'work',
				'unchanged', 0, 'kept'
			],
			'and the program is as before');
	}
	return;
}

# To the program a uprobe is invisible, unless it reads its own code.  Copied to
# a page that belongs to no file it would be an instruction that kills.
sub test_uprobe
{
	my $program = compile_test('-DUPROBE');
	my $result  = run_test($program);
  SKIP:
	{
		skip "$toolchain->{name}: the kernel lets this user set no uprobe: $result->{uprobe}", 3
		  unless $result->{uprobe} eq 'set';
		is($result->{result}, 'refused', with('refused: a uprobe on the page'));
		is($result->{reason}, $written, 'the reason is given');
		is_deeply([ @{$result}{qw(direct probed memory pages)} ],
			[ 'original', 'works', 'unchanged', 0 ], 'and the program is as before');
	}
	return;
}

# The reason goes to databases of any encoding, and so it is plain ASCII.
sub test_translated_error
{
	# A catalog of one message: see "The Format of GNU MO Files" in the manual of
	# gettext.
	my ($message, $translation) = ('Operation not permitted', 'verboten');
	my $strings = 28 + 2 * 8;
	my $catalog = pack('V7', 0x950412de, 0, 1, 28, 36, 0, $strings)
	  . pack('V4', length $message, $strings, length $translation, $strings + length($message) + 1)
	  . "$message\0$translation\0";
	my $folder = "$PostgreSQL::Test::Utils::tmp_check/locale";
	mkdir $_ or die "$_: $!" foreach $folder, "$folder/xx", "$folder/xx/LC_MESSAGES";
	write_source('locale/xx/LC_MESSAGES/libc.mo', $catalog);

	my $result = run_test($deny, 'exec', compile_test("-DCATALOGS=\"$folder\""));
  SKIP:
	{
		# Newer ones (glibc 2.43) do not in C.UTF-8, the one locale that is always there.
		skip "$toolchain->{name}: this C library translates nothing", 1
		  unless $result->{translation} eq $translation;
		is($result->{reason}, 'could not make memory executable: Operation not permitted',
			with("an error of the system is not translated"));
	}
	return;
}

# The check afterwards fails.
sub test_broken
{
	my $broken = run_test(compile_test('-DBAD_PROBE="second"'));
	is($broken->{result}, 'broken', with('a jump that stops working is not taken for a refusal'));
	is($broken->{reason}, 'the function victim does not jump to its replacement', 'the reason is given');
	return;
}

# The callers have the function in them, and the compiler itself shows what
# counting calls is good for.
sub test_link_time_optimization
{
	my $file = write_source('lto.c', <<'C');
#include <unistd.h>
int __attribute__((used)) victim(int a, int b)
{
	volatile int sum = a + (getppid() < 0);
	for (int i = 0; i < 3; i++)
		sum += b * i;
	return 1000 + (sum - 3 * b - a) + a + b;
}
C
	my @lto = ('-flto', '-DLTO', $file);
	is(run_test(compile_test('-O3', @lto))->{reason},
		'the program calls the function victim in 0 places instead of 2, as after link-time optimization',
		with('refused: callers that the function was inlined into'));
	is(run_test(compile_test('-fno-inline', '-fno-ipa-cp', @lto))->{result},
		'redirected', with('redirected: link-time optimization that left the calls alone'));
	return;
}
