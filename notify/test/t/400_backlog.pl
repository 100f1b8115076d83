# A listener that falls behind: what the queue keeps for it, what a full queue
# does, and that nothing is lost, repeated or out of order.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $full = 'too many notifications in the NOTIFY queue';

my $node     = new_node('main', conf => 'pinpoint.queue_size = 64kB');
my $observer = connect_to($node);
my $sender   = connect_to($node);
my $prompt   = connect_to($node);
my $slow     = connect_to($node);
$_->run('LISTEN a') for $prompt, $slow;
$observer->run('CREATE TABLE sent (n int)');

# Sends numbered notifications, each with its row, until the queue is full; the
# prompt listener's client reads meanwhile.
# Returns how many were committed, and the result of the one that failed.
sub fill
{
	my ($prefix) = @_;
	for my $n (0 .. 1000)
	{
		my $result = $sender->query(
			"INSERT INTO sent VALUES ($n);"
			  . " SELECT pg_notify('a', '$prefix $n ' || repeat('x', 2000))");
		return ($n, $result) if $result->error;
		$prompt->receive_available;

		# The prompt listener is to be further ahead than the slow one.
		wait_until_idle($observer, $prompt->pid)
		  or die 'the prompt listener is not prompt'
		  if $n == 0;
	}
	die 'the queue did not become full';
}

sub is_empty
{
	return wait_until(sub { stat_queue($observer)->{used_bytes} == 0 });
}

# The payloads without their filling.
sub numbers
{
	return [ map { $_->{payload} =~ s/ x+$//r } @_ ];
}

# ---- a listener in a transaction fills the queue

for my $round (1, 2)
{
	$observer->run('TRUNCATE sent');
	$slow->run('BEGIN');
	my ($count, $failure) = fill("round $round");
	cmp_ok($count, '>=', 20, 'most of 64 kB can be used');
	error_is($failure, '54000', $full, undef, 'a full queue fails the transaction');
	like($failure->error->{H}, qr/\b@{[ $slow->pid ]}\b/,
		'the hint names the listener that is behind');
	unlike($failure->error->{H}, qr/\b@{[ $prompt->pid ]}\b/,
		'and not the one that is not');
	is($failure->status, 'I', 'the session is out of the transaction');
	is($observer->value('SELECT count(*) FROM sent'),
		$count, 'and its row is rolled back');

	# every way to send fails alike, at the commit
	my $filling = 'x' x 4000;
	for my $sql (
		"NOTIFY a, '$filling'",
		"SELECT pg_notify('a', '$filling')",
		"BEGIN; NOTIFY a, '$filling'; COMMIT",
		"DO \$\$ BEGIN NOTIFY a, '$filling'; END \$\$")
	{
		my ($short) = $sql =~ /^(\w+)/;
		error_is($sender->query($sql), '54000', $full, undef, "$short fails");
	}
	$sender->run('BEGIN');
	is($sender->query("NOTIFY a, '$filling'")->error,
		undef, 'in a block NOTIFY itself does not fail');
	my $commit = $sender->query('COMMIT');
	error_is($commit, '54000', $full, undef, 'its COMMIT does');
	is($commit->status, 'I', 'which ends the block');

	is($sender->query('INSERT INTO sent VALUES (-1)')->error,
		undef, 'the session goes on');
	is_deeply(
		numbers($prompt->wait_for($count)),
		[ map { "round $round $_" } 0 .. $count - 1 ],
		'the other listener has everything that was committed');
	cmp_ok($observer->value('SELECT pg_notification_queue_usage()'),
		'>', 0.9, 'pg_notification_queue_usage() shows it');
	wait_until_idle($observer, $prompt->pid);
	is(stat_listener($observer, $prompt->pid)->{backlog_bytes},
		0, 'the prompt listener has no backlog');
	cmp_ok(stat_listener($observer, $slow->pid)->{backlog_bytes},
		'>', 50_000, 'the slow one has');

	my $end = $slow->query('COMMIT');
	is($end->types, 'C' . 'A' x $count . 'Z', 'when its transaction ends it gets all');
	is_deeply(
		numbers($end->notifications),
		[ map { "round $round $_" } 0 .. $count - 1 ],
		'in order');
	$slow->take_notifications;
	ok(is_empty(), 'the queue is empty again');
	is($observer->value('SELECT pg_notification_queue_usage()'),
		0, 'so says pg_notification_queue_usage()');

	$sender->run("NOTIFY a, 'after round $round'");
	is_deeply(all_as_text($_->notifications_until('a', "after round $round")),
		[], 'and NOTIFY works again')
	  for $prompt, $slow;
}

# ---- the hint names the one that is furthest behind

my $later = connect_to($node);
$later->run('LISTEN a');
$slow->run('BEGIN');
$sender->run("NOTIFY a, 'first'");
$later->wait_for(1);
wait_until_idle($observer, $later->pid);
$later->run('BEGIN');
my ($count, $failure) = fill('two behind');
like($failure->error->{H}, qr/\b@{[ $slow->pid ]}\b/,
	'of two listeners the one that is further behind is named');
is($slow->query('COMMIT')->types, 'C' . 'A' x ($count + 1) . 'Z', 'it catches up');
cmp_ok((fill('now the other'))[0], '<', 5, 'that frees little');
like($sender->query("SELECT pg_notify('a', repeat('x', 7000))")->error->{H},
	qr/\b@{[ $later->pid ]}\b/, 'now the other is named');
$later->close;
ok(is_empty(), 'it leaves, and the queue is empty');
$_->take_notifications for $prompt, $slow;
$sender->run("NOTIFY a, 'fence'");
$_->notifications_until('a', 'fence') for $prompt, $slow;

# ---- a channel nobody behind listens on, a session that notifies itself

$slow->run('BEGIN');
$sender->run('LISTEN own');
fill('other channel');
$slow->run('ROLLBACK');
is_empty() or die 'the queue is not empty';
my @own = map { $sender->run("SELECT pg_notify('own', repeat('x', 7000) || $_)")->notifications } 1 .. 50;
is(scalar @own, 50, 'a sender that reads its own notifications does not fill the queue');
$_->take_notifications for $prompt, $slow, $sender;
$sender->run('UNLISTEN own');

# A slow listener that stops listening keeps what was sent before its commit.
$slow->run('BEGIN');
fill('unlisten');
my $unlisten = $slow->query('UNLISTEN *; COMMIT');
is($unlisten->types, 'CCZ', 'a session that stops listening gets nothing more');
ok(is_empty(), 'and keeps nothing');
$slow->run('LISTEN a');
$sender->run("NOTIFY a, 'listening again'");
is_deeply(all_as_text($slow->notifications_until('a', 'listening again')),
	[], 'it can listen again');
$prompt->notifications_until('a', 'listening again');

# ---- one transaction that is too large by itself

my $too_large = $sender->query(
	"BEGIN; SELECT pg_notify('a', repeat('x', 7000) || i) FROM generate_series(1, 20) i; COMMIT");
error_is($too_large, '54000', $full, undef,
	'a transaction larger than the queue fails');
is(stat_queue($observer)->{used_bytes}, 0, 'and leaves nothing in it');
$sender->run("NOTIFY a, 'after the large one'");
is_deeply(all_as_text($_->notifications_until('a', 'after the large one')),
	[], 'nothing of it arrives')
  for $prompt, $slow;
$sender->run(
	"BEGIN; SELECT pg_notify('a', i || repeat(' x', 3000)) FROM generate_series(1, 8) i; COMMIT");
is_deeply(
	[ map { $_->{payload} =~ s/ .*//r } $slow->wait_for(8) ],
	[ 1 .. 8 ],
	'one of nearly its size is sent');
$prompt->wait_for(8);

# ---- the end of the queue's memory is passed many times

# Payloads of random sizes, and listeners that are slow at random, each in its
# own way.  The seed is printed, and can be given, to have the same run again.
my $seed = $ENV{PINPOINT_TEST_SEED} // 20260101;
srand $seed;
note("PINPOINT_TEST_SEED=$seed");

my @readers = ($prompt, $slow, connect_many($node, 3));
$_->run('LISTEN a') for @readers;
my %in_block;
my (@sent, $refused);
while (@sent < 3000)
{
	# one transaction of one to five notifications
	my @batch = map {
		my $number = @sent + $_;
		my $size = rand() < 0.1 ? int(rand 7900) : int(rand 400);
		"$number " . chr(ord('a') + $number % 26) x $size;
	} 0 .. int rand 5;
	my $result = $sender->query(join '; ', map { "NOTIFY a, '$_'" } @batch);
	if ($result->error)
	{
		$result->error->{C} eq '54000' or die $result->error->{M};
		$refused++;

		# The one that is named must go on, or nothing ever will.
		my $hint = $result->error->{H};
		my ($behind) = grep { $hint =~ /\b@{[ $_->pid ]}\b/ } @readers
		  or die "the hint names no listener: $hint";
		if (delete $in_block{ $behind->pid })
		{
			$behind->run('COMMIT');
		}
		else
		{
			# Just late.
			wait_until(
				sub {
					$behind->receive_available;
					return stat_listener($observer, $behind->pid)->{state} eq 'idle';
				}) or die 'a listener outside a transaction does not read';
		}
		next;
	}
	push @sent, @batch;
	$_->receive_available for @readers;

	my $reader = $readers[ rand @readers ];
	if ($in_block{ $reader->pid })
	{
		next if rand() < 0.9;
		delete $in_block{ $reader->pid };
		$reader->run(rand() < 0.5 ? 'COMMIT' : 'ROLLBACK');
	}
	elsif (rand() < 0.2)
	{
		$reader->run('BEGIN');
		$in_block{ $reader->pid } = $reader;
	}
}
$_->run('COMMIT') for values %in_block;
cmp_ok($refused, '>', 0, 'the queue was full at times');
foreach my $reader (@readers)
{
	my @got = map { $_->{payload} } $reader->wait_for(scalar @sent);
	my ($first_wrong) = grep { $got[$_] ne $sent[$_] } 0 .. $#sent;
	is($first_wrong, undef, scalar @sent . ' notifications, complete and in order');
}
ok(is_empty(), 'the queue is empty at the end');
$sender->run("NOTIFY a, 'fence'");
is_deeply(all_as_text($_->notifications_until('a', 'fence')), [], 'and nothing came twice')
  for @readers;

$_->close for @readers;
server_is_clean($observer, 'nothing is left');

done_testing();
