# The queue agrees with a naive model of it, whatever the order of reservations,
# publications, withdrawals, pins and unpins: see test/fuzz/message_log_fuzz.c.

use strict;
use warnings;

use FindBin;

use IPC::Run;
use Test::More;

my $seed = $ENV{PINPOINT_TEST_SEED} || 1;
my $dir  = "$FindBin::RealBin/../fuzz";
my $output;
ok( IPC::Run::run([ 'make', '-s', '-C', $dir, 'message_log_model', 'PG_CONFIG=' . ($ENV{PG_CONFIG} // 'pg_config') ], '>&', \$output),
	'it compiles')
  or diag($output);
ok(IPC::Run::run([ "$dir/message_log_model", 2000, $seed ], '>&', \$output), "2,000 random inputs (PINPOINT_TEST_SEED=$seed)")
  or diag($output);
like($output, qr/^2000 inputs$/m, 'all of them');

done_testing();
