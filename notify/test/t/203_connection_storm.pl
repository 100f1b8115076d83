# Sessions connect, listen and leave as fast as they can, in every way there is,
# and nothing leaks: no slot, no channel, no shared memory, no file descriptor.
#
# PINPOINT_TEST_STORM=SECONDS makes it longer (10 by default), and with 60 or
# more 2,000 sessions are there at a time instead of 200.
#
# Alone: the storm takes the whole machine from other tests

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PgWire;
use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my ($seconds, $width);

BEGIN
{
	$seconds = $ENV{PINPOINT_TEST_STORM} // 10;
	$width   = $seconds >= 60 ? 2000 : 200;
	allow_open_files($width + 200);
}

my $seed = $ENV{PINPOINT_TEST_SEED} // 20260105;
srand $seed;
note("PINPOINT_TEST_SEED=$seed PINPOINT_TEST_STORM=$seconds");

# Dynamic shared memory as files in the data directory, where those of this
# server can be told from others.
my $node = new_node('main',
	max_connections => $width + 50,
	conf            => 'dynamic_shared_memory_type = mmap');
my ($observer, $steady) = connect_many($node, 2);
$steady->run('LISTEN everyone; LISTEN steady');
my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;

sub count_files
{
	my ($pid) = @_;
	return scalar @{ [ glob "/proc/$pid/fd/*" ] };
}

# Processes of the server, also those that have just been started, or have nearly ended,
# which are in no view.
sub count_processes
{
	return scalar grep {
		my $stat = eval { slurp_file($_) } // '';
		$stat =~ /^\d+ \(.*\) \S (\d+) /s && $1 == $postmaster;
	} glob '/proc/[0-9]*/stat';
}

# Bytes of dynamic shared memory.
sub dynamic_memory
{
	my $bytes = 0;
	$bytes += -s $_ // 0 for glob $node->data_dir . '/pg_dynshmem/*';
	return $bytes;
}

sub resources
{
	return {
		'file descriptors of the postmaster'        => count_files($postmaster),
		'file descriptors of a session that stayed' => count_files($steady->pid),
		'sessions'      => $observer->value(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type <> 'io worker'}),
		'listeners'     => $observer->value('SELECT count(*) FROM pinpoint.stat_listeners'),
		'channels'      => $observer->value('SELECT count(*) FROM pinpoint.stat_channels'),
		map { $_ => stat_queue($observer)->{$_} } qw(used_bytes batches in_flight held_back file_bytes)
	};
}

# Some that do not even wait until they are connected, and then those that do,
# each with a life and an end of its own.
my $sessions = 0;
sub come_and_go
{
	my @unborn = map {
		PgWire->start(
			host   => $node->host,
			port   => $node->port,
			dbname => 'postgres',
			user   => scalar getpwuid($>))
	} 1 .. 20;
	my @sessions = connect_many($node, $width);
	foreach my $session (@sessions)
	{
		my $me   = $sessions++;
		my $kind = int rand 6;
		my $listen = "LISTEN own_$me; LISTEN everyone; LISTEN shared_" . $me % 50;
		$session->send_query(
			  $kind == 0 ? $listen
			: $kind == 1 ? "$listen; UNLISTEN *"
			: $kind == 2 ? "BEGIN; $listen; NOTIFY everyone, 'not committed'"
			: $kind == 3 ? "$listen; BEGIN; UNLISTEN everyone; LISTEN other_$me; NOTIFY own_$me"
			: $kind == 4 ? "$listen; NOTIFY everyone, 'from $me'"
			:              "BEGIN; $listen; ROLLBACK; LISTEN own_$me");

		# Half of them leave without waiting for the answer.
		$session->result if rand() < 0.5;
	}
	foreach my $session (@sessions, @unborn)
	{
		rand() < 0.5 ? $session->close : $session->hang_up;
	}

	# Those who did not wait may still be starting.
	wait_until(
		sub {
			$observer->value(
				q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'}) == 2
			  && $observer->value('SELECT count(*) FROM pg_stat_activity') == count_processes();
		})
	  or die 'sessions stay';
	$steady->run("NOTIFY everyone, 'round'");
	$steady->take_notifications;
	return;
}

# What is made once and kept: files are opened, and the channel map gets larger
# than it will ever be needed.
come_and_go();
my $greedy = connect_to($node);
$greedy->run(join ';', 'BEGIN', (map { "LISTEN greedy_$_" } 1 .. 5 * $width), 'COMMIT');
my $peak = dynamic_memory();
$greedy->close;
wait_until(sub { !stat_listener($observer, $greedy->pid) }) or die 'a listener stays';
come_and_go();
my $before = resources();

my $deadline = time + $seconds;
my $rounds   = 0;
do { come_and_go(); $rounds++ } while time < $deadline;

my $after = resources();
note("measured: $sessions sessions, $width at a time");
note("$_: $after->{$_}") for sort keys %$after;
note('bytes of dynamic shared memory: ' . dynamic_memory() . ", at most $peak");

is_deeply($after, $before, 'nothing leaks');
cmp_ok(dynamic_memory(), '<=', $peak, 'nor does dynamic shared memory grow');
cmp_ok($rounds, '>', 0, 'they came and went more than once');

$steady->run("NOTIFY steady, 'served'");
is(as_text($steady->wait_for(1)), 'steady/served', 'a session that stayed is served');
my @again = connect_many($node, $width);
$_->run('LISTEN again') for @again;
$steady->run("NOTIFY again, 'to all'");
is_deeply(
	[ grep { as_text($_->wait_for(1)) ne 'again/to all' } @again ],
	[], 'and so are as many new ones');

$_->close for @again, $steady;
server_is_clean($observer, 'nothing is left');

done_testing();
