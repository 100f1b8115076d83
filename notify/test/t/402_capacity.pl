# The queue filled to its brim while a listener sits in a transaction, and one
# transaction with very many notifications: everything arrives, in order, and
# memory stays bounded.
#
# By default in a small queue and with 200,000 notifications.  With
# PINPOINT_TEST_CAPACITY=full in the default settings, which means 8 GB and
# 5,000,000: that takes some minutes and 9 GB of disk, and the figures are shown.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $capacity = $ENV{PINPOINT_TEST_CAPACITY} // 'small';
die "PINPOINT_TEST_CAPACITY is \"small\" or \"full\"\n" if $capacity !~ /^(?:small|full)$/;
my $full = $capacity eq 'full';
my $many = $full ? 5_000_000 : 200_000;
my $node = new_node('main',
	conf => $full ? '' : "pinpoint.queue_size = 128MB\npinpoint.queue_memory = 1MB");
my $file = $node->data_dir . '/pg_notify/pg_pinpoint';
my ($observer, $sender, $prompt, $slow) = connect_many($node, 4);
$prompt->run('LISTEN others');
$slow->run('LISTEN a');

# A line of /proc/PID/status, in kB.
sub memory
{
	my ($session, $name) = @_;
	my ($kb) = slurp_file('/proc/' . $session->pid . '/status') =~ /^$name:\s+(\d+) kB$/m;
	return $kb;
}

# Shared memory that a session has touched, in kB, without the file of the queue: status counts
# the file with it if the data directory is on tmpfs.
sub shared_memory
{
	my ($session) = @_;
	my ($kb, $counts) = (0, 0);
	foreach my $line (split /\n/, slurp_file('/proc/' . $session->pid . '/smaps'))
	{
		$counts = $1 eq 's' && $line !~ m{/pg_notify/pg_pinpoint$}
		  if $line =~ /^[0-9a-f]+-[0-9a-f]+ ...([sp]) /;
		$kb += $1 if $counts && $line =~ /^Rss:\s+(\d+) kB$/;
	}
	return $kb;
}

sub disk_usage { return 512 * (stat $file)[12]; }

# What a session has taken for itself; shared memory is not in it.
my %private;
sub watch_memory
{
	foreach my $pair ([ sender => $sender ], [ prompt => $prompt ], [ slow => $slow ])
	{
		my ($name, $session) = @$pair;
		my $kb = memory($session, 'RssAnon');
		$private{$name} = $kb if $kb > ($private{$name} // 0);
	}
	return;
}

# Figures are for those who asked for the full size; script/test shows what is
# "measured".
sub measured
{
	my ($text) = @_;
	note(($full ? 'measured: ' : '') . $text);
	return;
}

sub measured_time
{
	my ($text, $started) = @_;
	measured(sprintf '%s: %.1f s', $text, time - $started);
	return;
}

# ---- a listener in a transaction, and a queue that is full

# Each transaction is nearly 8 MB, every fourth for the other listener only.
my $per_batch    = $full ? 1000 : 100;
my $payload_size = 7900;
my $batch_size   = 80 + 16 + $per_batch * ($payload_size + 8);
my $queue        = stat_queue($observer);
my $batches      = int($queue->{size_bytes} / $batch_size);
measured("$batches transactions with $per_batch notifications of $payload_size bytes each");

# The next notification is this one, undamaged.
sub is_number
{
	my ($session, $number) = @_;
	my ($notification) = $session->wait_for(1);
	my $payload = $notification->{payload};
	return length $payload == $payload_size
	  && $payload =~ /\A$number x+\z/;
}

sub send_batch
{
	my ($batch) = @_;
	my $channel = $batch % 4 == 3 ? 'others' : 'a';
	my $first   = $batch * $per_batch;
	my $last    = $first + $per_batch - 1;
	return $sender->query("SELECT count(pg_notify('$channel',"
		  . " rpad(i || ' ', $payload_size, 'x'))) FROM generate_series($first, $last) i");
}

$slow->run('BEGIN');
my $started = time;
my (@errors, @wrong);
foreach my $batch (0 .. $batches - 1)
{
	my $error = send_batch($batch)->error;
	push @errors, "$batch: $error->{M}" if $error;
	watch_memory() if $batch % 16 == 0;
	next if $batch % 4 != 3;
	foreach my $number ($batch * $per_batch .. ($batch + 1) * $per_batch - 1)
	{
		push @wrong, $number if !is_number($prompt, $number);
	}
}
measured_time('sent, and a quarter of it received', $started);
is_deeply(\@errors, [], 'the queue takes as much as its size says');
is_deeply(\@wrong, [], 'what is for another listener arrives meanwhile');

$queue = stat_queue($observer);
measured("used $queue->{used_bytes} of $queue->{size_bytes} bytes, on disk " . disk_usage());
is($queue->{batches}, $batches, 'all transactions are kept');
cmp_ok($queue->{used_bytes}, '>', $queue->{size_bytes} - 2 * $batch_size, 'the queue is full');
my $backlog = stat_listener($observer, $slow->pid)->{backlog_bytes};
cmp_ok($backlog, '<=', $queue->{used_bytes}, 'for one listener');
cmp_ok($backlog, '>=', $queue->{used_bytes} - $batch_size, 'and for nothing else');
my $refused = send_batch($batches)->error // {};
is($refused->{C}, '54000', 'more is refused');
like($refused->{H}, qr/ PID @{[ $slow->pid ]}\./, 'and the hint names that listener');

$started = time;
@wrong   = ();
$slow->send_query('COMMIT');
is($slow->receive_until('C')->types, 'C', 'its transaction ends');
foreach my $batch (grep { $_ % 4 != 3 } 0 .. $batches - 1)
{
	foreach my $number ($batch * $per_batch .. ($batch + 1) * $per_batch - 1)
	{
		push @wrong, $number if !is_number($slow, $number);
	}
	watch_memory() if $batch % 16 == 0;
}
is($slow->receive_until('Z')->types, 'Z', 'and it receives what is for it,');
is_deeply(\@wrong, [], 'everything, in order');
measured_time('received by the slow listener', $started);
measured("private memory at most, in kB: $_ $private{$_}") for sort keys %private;
cmp_ok($private{$_}, '<', 100_000, "private memory of the $_ session is bounded")
  for sort keys %private;
my $shared = shared_memory($slow);
measured("shared memory touched by the slow listener, without the file: $shared kB");
cmp_ok($shared, '<', 1024 * 100, 'and so is shared memory');

ok(wait_until(sub { stat_queue($observer)->{used_bytes} == 0 && disk_usage() == 0 }),
	'the queue is empty, and the disk space given back');

# ---- one transaction with very many notifications

# A sender that has not seen the queue full: its peak is of this transaction.
$slow->run('LISTEN others');
$sender->close;
$sender  = connect_to($node);
$started = time;
is($sender->query("SELECT count(pg_notify('others', i::text)) FROM generate_series(1, $many) i")
	  ->error,
	undef, "a transaction with $many notifications");
measured_time('sent', $started);
measured('peak memory of the sender, shared memory included: '
	  . memory($sender, 'VmHWM') . ' kB, on disk ' . disk_usage());

# One after the other: the server process of the second waits for its client.
foreach my $session ($prompt, $slow)
{
	@wrong = ();
	foreach my $number (1 .. $many)
	{
		my ($notification) = $session->wait_for(1);
		push @wrong, $number if $notification->{payload} ne $number;
	}
	is_deeply(\@wrong, [], 'arrives, complete and in order');
	measured_time('since it was sent', $started);
	measured('private memory of the listener: ' . memory($session, 'RssAnon') . ' kB');
}
ok(wait_until(sub { stat_queue($observer)->{used_bytes} == 0 && disk_usage() == 0 }),
	'the queue is empty again');

$_->close for $prompt, $slow;
server_is_clean($observer, 'nothing is left');

done_testing();
