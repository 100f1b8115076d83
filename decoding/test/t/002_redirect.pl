# Redirecting a function, tried on small programs.
#
# Each case compiles redirect_test.c and redirect.c as its own program.  What
# is refused must leave the program exactly as it was.

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
my $protect =
  $machine eq 'x86_64' ? '-fcf-protection=branch' : '-mbranch-protection=standard';

# A library that has the function that is asked for.
my $library = "$PostgreSQL::Test::Utils::tmp_check/victim.c";
open my $file, '>', $library or die "$library: $!";
print {$file} 'int victim(int a, int b) { return a * 0 + b * 0 + 1003; }', "\n";
close $file;
my $shared = compile('libvictim.so', '-shared', '-fPIC', $library);

my $deny = compile('deny', "$test/deny.c");

# Run a program and return what it prints as a hash.
sub run_test
{
	my @command = @_;
	my ($stdout, $stderr) = ('', '');
	IPC::Run::run(\@command, '>', \$stdout, '2>', \$stderr)
	  or die "@command failed: $stdout$stderr";
	my %result = map { /^(\w+) (.*)$/ ? ($1, $2) : () } split /\n/, $stdout;
	return \%result;
}

my $number = 0;

sub compile_test
{
	return compile('redirect_' . ++$number, "$test/redirect_test.c",
		"$source/redirect.c", '-rdynamic', '-pthread', '-ldl', @_);
}

# ---- redirected

foreach my $case (
	[ 'a plain function',                1, 'gone' ],
	[ 'position-dependent code',         1, 'gone', '-fno-pie', '-no-pie' ],
	[ 'position-independent code',       1, 'gone', '-fPIE',    '-pie' ],
	[ 'a function with a landing pad',   1, 'kept', $protect ],
	[ 'a function that crosses a page',  2, 'gone', '-DSTRADDLE',
		'-fno-toplevel-reorder', '-falign-functions=1' ],
	[ 'code that is not optimized',      1, 'gone', '-O0' ],
	[ 'a program with a stack protector', 1, 'gone', '-fstack-protector-all' ],
	[ 'a function that counts as called once', 1, 'gone', '-DCALLERS=2', '-DEXPECTED=1' ])
{
	my ($name, $pages, $pad, @options) = @$case;

	# On aarch64 a landing pad for a signed return address becomes a plain one.
	$pad = 'gone' if $machine ne 'x86_64';
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
		"redirected: $name");
}

# ---- refused

my $length = $machine eq 'x86_64' ? 14 : 16;
my $eperm  = 'Operation not permitted';

foreach my $case (
	[ 'too short a function', "the function victim has " . ($machine eq 'x86_64' ? 6 : 8)
		  . " bytes, and the jump needs $length", [], '-DSHORT' ],
	[ 'no such function', 'the program has no function nobody', [], '-DNAME="nobody"' ],
	[ 'a variable', 'the symbol stdout is not a function', [], '-DNAME="stdout"', '-fno-pie', '-no-pie' ],
	[ "a library's function", 'the function victim is not in the code of the program',
		[], '-DLIBRARY', $shared ],
	[ 'a function with a single caller',
		'the program calls the function victim in 1 places instead of 2, as after link-time optimization',
		[], '-DCALLERS=1' ],
	[ 'a function without callers',
		'the program calls the function victim in 0 places instead of 2, as after link-time optimization',
		[], '-DCALLERS=0' ],
	[ 'a second thread', 'the process has 2 threads', [], '-DTHREAD' ],
	[ 'memory that may not become executable',
		"could not make memory executable: $eperm", [ $deny, 'exec' ] ],
	[ 'memory that may not be replaced',
		"could not replace the memory of the function victim: $eperm", [ $deny, 'move' ] ],
	[ 'a jump that does not work', 'the jump to the replacement does not work',
		[], '-DBAD_PROBE="first"' ])
{
	my ($name, $reason, $wrapper, @options) = @$case;
	my $result = run_test(@$wrapper, compile_test(@options));
	is($result->{result}, 'refused', "refused: $name");
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

# ---- broken: the check afterwards fails

my $broken = run_test(compile_test('-DBAD_PROBE="second"'));
is($broken->{result}, 'broken', 'a jump that stops working is not taken for a refusal');
is($broken->{reason}, 'the function victim does not jump to its replacement', 'the reason is given');

# ---- link-time optimization: the callers have the function in them, and the
# compiler itself shows what counting calls is good for

my $optimized = "$PostgreSQL::Test::Utils::tmp_check/lto.c";
open $file, '>', $optimized or die "$optimized: $!";
print {$file} <<'C';
#include <unistd.h>
int __attribute__((used)) victim(int a, int b)
{
	volatile int sum = a + (getppid() < 0);
	for (int i = 0; i < 3; i++)
		sum += b * i;
	return 1000 + (sum - 3 * b - a) + a + b;
}
C
close $file;
my @lto = ('-flto', '-DLTO', $optimized, "$test/redirect_test.c", "$source/redirect.c",
	'-rdynamic', '-pthread', '-ldl');
is(run_test(compile('lto_inlined', '-O3', @lto))->{reason},
	'the program calls the function victim in 0 places instead of 2, as after link-time optimization',
	'refused: callers that the function was inlined into');
is(run_test(compile('lto_called', '-fno-inline', '-fno-ipa-cp', @lto))->{result},
	'redirected', 'redirected: link-time optimization that left the calls alone');

done_testing();
