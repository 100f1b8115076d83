# A slow commit has held back many notifications.  When it ends, no session publishes more
# than a part of them: the waker publishes the rest.  Nothing is left in any case, and the
# order is that of the commits.  110_stopped_waker.pl has a waker that does not run.  Here,
# nobody does its work while it is stopped, which takes a planted fault.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node    = new_node('main', max_connections => 100, conf => has_faults() ? 'pinpoint.debug_fault = no_reserve' : '');
my $library = compile_interference();
my ($observer, $listener, $innocent, $slow, $waker);
my $count = 5_000;

# Sessions of a server that has just started.
sub connect_all
{
	($observer, $listener, $innocent, $slow) = connect_many($node, 4);
	$listener->run('LISTEN a');
	$slow->run("LOAD '$library'");
	return;
}

sub release
{
	open_gate();
	is($slow->result->error, undef, 'the slow commit succeeds');
	$slow->run(q{SET interference.pause = 'nowhere'});
	return;
}

sub all_arrive
{
	my ($name, @more) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @expected = ('slow', 1 .. $count, @more);
	is_deeply([ map { $_->{payload} } $listener->wait_for(scalar @expected) ], \@expected, $name);
	is(stat_queue($observer)->{held_back}, 0, 'nothing is left');
	return;
}

connect_all();
SKIP:
{
	skip 'no fault can be planted: the server was built without assertions', 12 unless has_faults();

	# ---- nobody publishes all of it

	$waker = stop_waker($observer);
	is(hold_back($observer, $slow, $count), $count, "$count transactions are held back");
	release();
	my $left = stat_queue($observer)->{held_back};
	cmp_ok($left, '>', $count - 500, "the slow session has left $left of them to the waker");
	my $before = stat_queue($observer)->{published_by_others};
	$innocent->run(q(NOTIFY a, 'innocent'));
	my $part = stat_queue($observer)->{published_by_others} - $before;
	cmp_ok($part, '<', 500, "another session that notifies publishes $part");
	cmp_ok($part, '>', 0, 'so that the number of those that wait does not grow');
	kill 'CONT', $waker;
	all_arrive('the waker publishes the rest, in the order of the commits', 'innocent');

	# ---- the waker is terminated

	$waker = stop_waker($observer);
	hold_back($observer, $slow, $count);
	release();
	cmp_ok(stat_queue($observer)->{held_back}, '>', 0, 'some are left to the waker');
	is($observer->value("SELECT pg_terminate_backend($waker)"), 't', 'it is terminated');
	kill 'CONT', $waker;
	all_arrive('before it ends, it publishes the rest');
}

# ---- the slow session is terminated

wait_until(sub { $observer->value(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker'}) })
  or die 'there is no waker';
hold_back($observer, $slow, $count);
$observer->run('SELECT pg_terminate_backend(' . $slow->pid . ')');
open_gate();
all_arrive('the slow session is terminated: all the same');

SKIP:
{
	skip 'no fault can be planted: the server was built without assertions', 7 unless has_faults();

	# ---- a limit of work, not of transactions

	my @crowd = connect_many($node, 40);
	my $listen = join ';', map { "LISTEN wide$_" } 1 .. 64;
	foreach my $session (@crowd)
	{
		$session->run($listen);
		$session->run('BEGIN');
	}
	$slow = connect_to($node);
	$slow->run("LOAD '$library'");
	$waker = stop_waker($observer);
	my $wide = 50;
	is( hold_back(
			$observer, $slow, $wide,
			others => "DO \$\$ BEGIN FOR i IN 1 .. $wide LOOP PERFORM pg_notify('wide' || j, i::text) FROM generate_series(1, 64) j;"
			  . ' COMMIT; END LOOP; END $$'),
		$wide, "$wide transactions with 64 channels and 40 listeners on each are held back");
	release();
	my $left = stat_queue($observer)->{held_back};
	cmp_ok($left, '>=', $wide - 4, "the slow session has left $left of them");
	kill 'CONT', $waker;
	ok(wait_until(sub { stat_queue($observer)->{held_back} == 0 }), 'until the waker publishes them');
	is(as_text($listener->wait_for(1)), 'a/slow', 'after the slow one');
	$_->run('COMMIT') for @crowd;
	my $wrong = grep {
		my @got = map { $_->{payload} } $_->take_notifications;
		"@got" ne join ' ', map { ($_) x 64 } 1 .. $wide;
	} @crowd;
	is($wrong, 0, 'all listeners get all of them, in order');
	$_->close for @crowd, $slow;
}
$_->close for $innocent, $listener;
server_is_clean($observer, 'nothing is left');
$observer->close;

# ---- without a waker

$node->append_conf('postgresql.conf', 'pinpoint.waker = off');
$node->restart;
connect_all();
is(hold_back($observer, $slow, $count), $count, 'without a waker');
release();
is(stat_queue($observer)->{held_back}, 0, 'the slow session publishes all, and no other one needs to notify');
all_arrive('in the order of the commits');
is(hold_back($observer, $slow, $count), $count, 'again');
$observer->run('SELECT pg_terminate_backend(' . $slow->pid . ')');
open_gate();
all_arrive('also when it is terminated');

# ---- the slow commit fails, after its announcement

# The library pauses after pg_pinpoint, which has announced the commit by then.
$_->close for $observer, $innocent, $listener, $slow;
$node->append_conf('postgresql.conf', "shared_preload_libraries = '$library, pg_pinpoint'");
$node->restart;
connect_all();
begin_and_pause($observer, $slow, 'pre_commit', q(BEGIN; SELECT pg_current_xact_id(); NOTIFY a, 'fails'; COMMIT));
$innocent->run(q(BEGIN; SELECT pg_current_xact_id(); NOTIFY a, 'held back'; COMMIT));
is(stat_queue($observer)->{held_back}, 1, 'a commit that is announced holds back others');
$observer->run('SELECT pg_terminate_backend(' . $slow->pid . ')');
open_gate();
is(as_text($listener->wait_for(1)), 'a/held back', 'when it fails, it publishes what it has held back');

$_->close for $innocent, $listener;
server_is_clean($observer, 'nothing is left');

done_testing();
