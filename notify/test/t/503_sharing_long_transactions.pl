# A session in a long transaction shares a channel.  Sessions that are in none come first,
# also when they have something to read already.  What is assigned to it nevertheless is
# reassigned when another session is ready, and each notification arrives once.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# The waker wakes up often.
my $node = new_node('main', conf => 'pinpoint.heartbeat_interval = 100ms');
my ($observer, $sender) = connect_many($node, 2);
my ($long, $other, $third) = connect_many($node, 3,
	options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1');
$_->run('LISTEN c') for $long, $other;

sub sleeps { my ($session) = @_; return wait_until(sub { is_asleep($session) }); }

# The payloads that a session has been told.
sub told { my ($session) = @_; $session->query(''); return [ map { $_->{payload} } $session->take_notifications ]; }

# ---- one that has something to read comes before one in a transaction

# A session that has not read for a second is reminded, and then comes last.  So this is
# done again if it has taken too long.
my (@states, @told);
wait_until(
	sub {
		$long->run('BEGIN');
		sleeps($other) or die 'it does not wait for its client';
		my $began = time;
		kill 'STOP', $other->pid or die "could not stop a session: $!";
		$sender->run("NOTIFY c, '$_'") for 1 .. 10;
		@states = map { stat_listener($observer, $_->pid)->{state} } $other, $long;
		my $in_time = time - $began < 0.8;
		kill 'CONT', $other->pid;
		$long->run('COMMIT');
		@told = map { told($_) } $other, $long;
		return $in_time;
	}) or die 'it takes too long';
is($states[0], 'signalled', 'one session has something to read');
is($states[1], 'idle', 'and still gets what follows, and not the one in a transaction');
is_deeply($told[0], [ 1 .. 10 ], 'all of it');
is_deeply($told[1], [], 'the other one gets nothing');

# ---- all are in transactions, and one of them stays in it

my $count = 1_000;
$_->run('BEGIN') for $long, $other;
$sender->run("DO \$\$ BEGIN FOR i IN 1 .. $count LOOP PERFORM pg_notify('c', i::text); COMMIT; END LOOP; END \$\$");
is(stat_listener($observer, $_->pid)->{state}, 'signalled', 'sessions in transactions have something to read')
  for $long, $other;
$other->run('COMMIT');
is_deeply(
	[ sort { $a <=> $b } map { $_->{payload} } $other->wait_for($count) ],
	[ 1 .. $count ],
	"when one is ready, it gets all $count, and those of the session that stays in its transaction");
$long->run('COMMIT');
is_deeply(told($long), [], 'which does not get them again');
is_deeply(told($other), [], 'nor does the first one');

# ---- the transaction ends, or the session leaves the channel, while its notifications are reassigned

$count = 3_000;
foreach my $way ('COMMIT', 'UNLISTEN')
{
	$third->run('LISTEN c');
	$_->run('BEGIN') for $long, $other, $third;
	$sender->run("DO \$\$ BEGIN FOR i IN 1 .. $count LOOP PERFORM pg_notify('c', i::text); COMMIT; END LOOP; END \$\$");
	my $reassigned = 'SELECT sum(reassigned) FROM pinpoint.stat_notify';
	my $before     = $observer->value($reassigned);
	$other->run('COMMIT');
	wait_until(sub { $observer->value($reassigned) > $before }) or die 'nothing is reassigned';
	my @sessions = ($other, $third);
	$long->run($way eq 'COMMIT' ? 'COMMIT' : 'UNLISTEN c; COMMIT');
	push @sessions, $long if $way eq 'COMMIT';
	$third->run('COMMIT');
	my @told;
	ok( wait_until(
			sub {
				push @told, map { @{ told($_) } } @sessions;
				return @told >= $count && !grep { stat_listener($observer, $_->pid)->{state} ne 'idle' } @sessions;
			}),
		"$way: all notifications arrive");
	push @told, map { @{ told($_) } } @sessions;
	is_deeply([ sort { $a <=> $b } @told ], [ 1 .. $count ], "$way: each once");
	$third->run('UNLISTEN c');
}

$_->close for $long, $other, $third;
server_is_clean($observer, 'nothing is left');

done_testing();
