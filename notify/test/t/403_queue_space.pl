# The space of the queue is used again wherever it comes free: a NOTIFY fails only
# when the queue is full, whatever the positions of its listeners.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node = new_node('main', conf => "pinpoint.queue_size = 1MB\npinpoint.queue_memory = 64kB");
my $observer  = connect_to($node);
my $sender    = connect_to($node);
my @listeners = map { connect_to($node) } 1 .. 3;
my @sent      = (0) x @listeners;    # notifications since a listener began its transaction
$_->run('LISTEN a') for @listeners;

my $seed = $ENV{PINPOINT_TEST_SEED} || 4;
note "PINPOINT_TEST_SEED=$seed";
srand $seed;

# While a listener is in a transaction, it keeps what is sent.
sub begin
{
	my ($i) = @_;
	$listeners[$i]->run('BEGIN');
	$sent[$i] = 0;
	return;
}

sub catch_up
{
	my ($i) = @_;
	$listeners[$i]->run('COMMIT');
	$listeners[$i]->wait_for($sent[$i]) if $sent[$i] > 0;
	wait_until_idle($observer, $listeners[$i]->pid) or die 'the listener does not come to an end';
	$sent[$i] = 0;
	return;
}

my $total    = 0;
my $failures = 0;
my @used_at_failure;
my @is_behind = (0) x @listeners;
for my $step (1 .. 400)
{
	# Listeners fall behind at different moments, and catch up in any order.
	my $i = int rand @listeners;
	if (!$is_behind[$i])
	{
		begin($i);
		$is_behind[$i] = 1;
	}
	elsif (rand() < 0.1)
	{
		catch_up($i);
		$is_behind[$i] = 0;
	}

	# Of different sizes, so that what comes free does not just fit.
	my $size   = 100 + int rand 7900;
	my $result = $sender->query("SELECT count(pg_notify('a', g || repeat('x', $size))) FROM generate_series(1, 10) AS g");
	if (my $error = $result->error)
	{
		die "$error->{C}: $error->{M}" if $error->{C} ne '54000';
		push @used_at_failure, stat_queue($observer)->{used_bytes};

		# Only the one that is furthest behind can make room.
		my ($furthest) = sort { $sent[$b] <=> $sent[$a] } grep { $is_behind[$_] } 0 .. $#listeners;
		catch_up($furthest);
		$is_behind[$furthest] = 0;
		next;
	}
	$total += 10;
	for my $j (0 .. $#listeners)
	{
		if ($is_behind[$j]) { $sent[$j] += 10; }
		else                { $listeners[$j]->wait_for(10); }
	}
}
$is_behind[$_] && catch_up($_) for 0 .. $#listeners;

cmp_ok($total, '>', 500, 'there were many notifications');
cmp_ok(scalar @used_at_failure, '>', 3, 'the queue was full some times');
my $size = stat_queue($observer)->{size_bytes};
is_deeply([ grep { $_ < 0.9 * $size } @used_at_failure ],
	[], 'and not before it was: 10 x 8 kB did not fit any more');
ok(wait_until(sub { stat_queue($observer)->{used_bytes} == 0 }), 'in the end it is empty');

done_testing();
