# The library compiles where its other tests do not run: without a warning, for
# another C library, and for a server that does not fork.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use DecodingTest;
use PostgreSQL::Test::Utils;
use Test::More;

my @files = glob "$source/*.c";
cmp_ok(scalar @files, '>=', 4, 'there are source files');

foreach my $build ([ 'EXEC_BACKEND', $ENV{CC} // 'cc', '-DEXEC_BACKEND' ], [ 'musl', 'musl-gcc' ])
{
	my ($name, $compiler, @options) = @$build;
  SKIP:
	{
		skip "$name: there is no $compiler", scalar @files
		  unless IPC::Run::run([ 'which', $compiler ], '>', '/dev/null', '2>&1');
		local $ENV{CC} = $compiler;
		foreach my $file (@files)
		{
			my ($object) = $file =~ m{([^/]+)\.c$};
			ok( eval {
					compile("$name.$object.o", '-c', '-fPIC', '-D_GNU_SOURCE', '-DPINPOINT_LIVE', '-DPINPOINT_VERSION="0"',
						'-Wno-sign-compare', @options, $file);
				},
				"$name: $object.c compiles") or diag($@);
		}
	}
}
done_testing();
