# One session with 10,000 channels.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $channels = 10_000;

my $node     = new_node('main');
my $observer = connect_to($node);
my $sender   = connect_to($node);

my @names = map { "channel_$_" } 1 .. $channels;

sub in_one_transaction
{
	my ($session, @statements) = @_;
	return $session->run(join ';', 'BEGIN', @statements, 'COMMIT');
}

# Each statement its own transaction, without waiting for each answer.
sub in_many_transactions
{
	my ($session, @statements) = @_;
	$session->send_statement($_)->send_sync for @statements;
	foreach my $statement (@statements)
	{
		my $error = $session->result->error or next;
		die "$error->{M} in: $statement";
	}
	return;
}

sub channel_count
{
	return $observer->value('SELECT count(*) FROM pinpoint.stat_channels');
}

foreach my $how ([ 'one transaction', \&in_one_transaction ],
	[ 'many transactions', \&in_many_transactions ])
{
	my ($in, $do) = @$how;
	my $listener = connect_to($node);

	$do->($listener, map { "LISTEN $_" } @names);
	is(stat_listener($observer, $listener->pid)->{channels},
		$channels, "LISTEN to $channels channels in $in");
	is(channel_count(), $channels, 'all are known');
	is($listener->value('SELECT count(*) FROM pg_listening_channels()'),
		$channels, 'also to PostgreSQL');

	# again: no new entry
	$do->($listener, map { "LISTEN $_" } @names[ 0 .. 99 ]);
	is(stat_listener($observer, $listener->pid)->{channels},
		$channels, 'LISTEN to some again changes nothing');

	my $before = stat_queue($observer)->{published};
	$do->($sender, map { "NOTIFY $_, 'x'" } @names);
	is_deeply(
		all_as_text($listener->wait_for($channels)),
		[ map { "$_/x" } @names ],
		"NOTIFY to all in $in: all arrive, in order");
	is(stat_queue($observer)->{published} - $before,
		$in eq 'one transaction' ? 1 : $channels,
		'one batch for each transaction');

	# The same in one statement, most of it duplicates.
	$sender->run(
		"SELECT pg_notify('channel_' || 1 + i % $channels, 'y') FROM generate_series(0, 3 * $channels - 1) i");
	is_deeply(
		all_as_text($listener->wait_for($channels)),
		[ map { "$_/y" } @names ],
		'duplicates among many are sent once, in the order of the first');

	# Half of them go, the other half still work.
	my @odd  = map { $names[ 2 * $_ ] } 0 .. $channels / 2 - 1;
	my @even = map { $names[ 2 * $_ + 1 ] } 0 .. $channels / 2 - 1;
	$do->($listener, map { "UNLISTEN $_" } @odd);
	is(channel_count(), $channels / 2, "UNLISTEN half of them in $in");
	in_one_transaction($sender, map { "NOTIFY $_, 'z'" } @names);
	$sender->run("NOTIFY $even[-1], 'end'");
	is_deeply(
		all_as_text($listener->notifications_until($even[-1], 'end')),
		[ map { "$_/z" } @even ],
		'the rest receive');

	if ($in eq 'one transaction')
	{
		$listener->run('UNLISTEN *');
		is(channel_count(), 0, 'UNLISTEN * leaves none');
		is(stat_listener($observer, $listener->pid), undef, 'and no listener');
		in_one_transaction($sender, map { "NOTIFY $_, 'unheard'" } @names);
		$listener->run("LISTEN fence");
		$sender->run("NOTIFY fence, 'end'");
		is_deeply(all_as_text($listener->notifications_until('fence', 'end')),
			[], 'nothing arrives any more');
		$listener->close;
	}
	else
	{
		$listener->hang_up;
	}
	server_is_clean($observer, 'its end leaves nothing');
}

# A LISTEN to all that does not commit.
my $undecided = connect_to($node);
$undecided->run('LISTEN stays');
$undecided->run(join ';', 'BEGIN', (map { "LISTEN $_" } @names), 'ROLLBACK');
is(channel_count(), 1, 'LISTEN to all, rolled back, leaves one');
is($undecided->query(join ';', 'BEGIN', (map { "LISTEN $_" } @names), 'UNLISTEN *', 'COMMIT')
	  ->error,
	undef, 'LISTEN to all and UNLISTEN * in one transaction');
is(channel_count(), 0, 'leaves none');
$undecided->close;
server_is_clean($observer, 'nothing is left');

done_testing();
