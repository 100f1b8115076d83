# The shared memory for channels: how much it is, and what happens when it is full.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node     = new_node('main', conf => 'pinpoint.channel_memory = 1MB');
my $observer = connect_to($node);
my $sender   = connect_to($node);
my $listener = connect_to($node);
my $witness  = connect_to($node);
$witness->run('LISTEN a');

is($observer->value('SHOW pinpoint.channel_memory'), '1MB', 'it can be set');

# Listens on ever more channels of a name until that fails.
sub fill
{
	my ($session, $name) = @_;
	my $channels = 0;
	while (1)
	{
		my $result = $session->query(
			join ';', map { "LISTEN ${name}_" . ($channels + $_) } 1 .. 50);
		return ($channels, $result) if $result->error;
		$channels += 50;
		die 'it is never full' if $channels > 100_000;
	}
}

my ($channels, $result) = fill($listener, 'c');
cmp_ok($channels, '>=', 1000, "$channels channels fit");
error_is($result, '53200', 'out of memory',
	'The shared memory for channels that sessions listen on is full. Increase "pinpoint.channel_memory".',
	'then LISTEN fails');
is($listener->value('SELECT count(*) FROM pg_listening_channels()'),
	$channels, 'and nothing else of its transaction remains');
is(stat_listener($observer, $listener->pid)->{channels}, $channels, 'in the engine, too');
is( $observer->value('SELECT count(*) FROM pinpoint.stat_channels'),
	$channels + 1, 'or in the map');

$sender->run("NOTIFY c_1, 'first'; NOTIFY c_$channels, 'last'; NOTIFY a, 'witness'");
is_deeply(
	all_as_text($listener->wait_for(2)),
	[ 'c_1/first', "c_$channels/last" ],
	'those that it listens on work');
is_deeply(all_as_text($witness->wait_for(1)), ['a/witness'], 'others, too');

# What is given back can be used again.
$listener->run('UNLISTEN *');
is($observer->value('SELECT count(*) FROM pinpoint.stat_channels'), 1, 'UNLISTEN empties the map');
($channels, $result) = fill($listener, 'd');
cmp_ok($channels, '>=', 1000, "and then $channels fit again");
$listener->close;
ok( wait_until(
		sub { $observer->value('SELECT count(*) FROM pinpoint.stat_channels') == 1 }),
	'as does the end of a session');
my @more = connect_many($node, 20);
$_->run('LISTEN e') for @more;
$sender->run("NOTIFY e, 'to all'");
is_deeply([ map { as_text($_->wait_for(1)) } @more ],
	[ ('e/to all') x @more ], 'there is room for others');

$_->close for @more, $witness;
server_is_clean($observer, 'nothing is left');

# ---- an error that nobody reads

my ($full, $stuck) = connect_many($node, 2);
($channels) = fill($full, 'f');
foreach my $i (1 .. 100)
{
	last if $full->query("LISTEN last_$i")->error;
}
ok(get_stuck_in_error($observer, $stuck, 'LISTEN too_much'), 'a LISTEN that fails, and a client that does not read');
$sender->run(join ';', map { "NOTIFY f_$_" } 1 .. $channels) for 1 .. 2;
$sender->run("NOTIFY f_$_, 'one by one'") for 1 .. 500;
$full->wait_for(2 * $channels + 500);
is($observer->value("SELECT count(*) FROM pinpoint.stat_channels WHERE channel LIKE 'f\\_%'"), $channels, 'it keeps no lock');
$_->close for $stuck, $full;
server_is_clean($observer, 'nothing is left');

# ---- how much it is if nobody says

$_->close for $observer, $sender;
$node->append_conf('postgresql.conf', 'pinpoint.channel_memory = -1');
$node->restart;
$observer = connect_to($node);
my $allocated =
  q{SELECT size FROM pg_shmem_allocations WHERE name = 'pg_pinpoint channel map'};
my $few = $observer->value($allocated);
cmp_ok($few, '>=', 16 * 1024 * 1024, 'at least 16 MB');
$observer->close;
$node->append_conf('postgresql.conf', 'max_connections = 550');
$node->restart;
$observer = connect_to($node);
is($observer->value($allocated) - $few, 500 * 32 * 1024, 'and 32 kB for each possible session');
is($observer->value('SHOW pinpoint.channel_memory'), '-1', 'as -1 asks for');

$observer->close;
my $log = -s $node->logfile;
$node->append_conf('postgresql.conf', 'pinpoint.channel_memory = 1023kB');
$node->restart;
ok($node->log_contains('"pinpoint.channel_memory" must be at least 1024 kB, or -1', $log),
	'too little is refused');

done_testing();
