# Which minor releases of PostgreSQL are known to have a fault in its own queue, and
# what the server log says at start.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IPC::Run;
use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $program = "$PostgreSQL::Test::Utils::tmp_check/minor_release_test";
my $output;
ok(IPC::Run::run([ $ENV{CC} // 'cc', '-Wall', '-Werror', '-o', $program, "$FindBin::RealBin/../minor_release_test.c" ], '>&', \$output), 'it compiles')
  or diag($output);

my %fixed_in = (
	150000 => 150016, 150015 => 150016, 150016 => 0, 150020 => 0,
	160011 => 160012, 160012 => 0,
	170007 => 170008, 170008 => 0,
	180000 => 180002, 180001 => 180002, 180002 => 0,
	190000 => 0);
my @versions = sort keys %fixed_in;
ok(IPC::Run::run([ $program, @versions ], '>', \$output), 'it runs');
is($output, join('', map { "$_ $fixed_in{$_}\n" } @versions), 'versions with the fault, and where it is corrected');

my $node    = new_node('main');
my $session = connect_to($node);
my $version = $session->value('SHOW server_version_num');
ok(IPC::Run::run([ $program, $version ], '>', \$output), 'the version of this server');
my ($expected) = $output =~ /^\d+ (\d+)$/;
my $warnings = () = slurp_file($node->logfile) =~ /WARNING: .*has a bug in its own NOTIFY queue/g;
is($warnings, $expected ? 1 : 0, 'a warning at start if it has the fault, and only then');
$session->close;

done_testing();
