# Commits run side by side, and what they send arrives in their order.
#
# A standby that never answers holds up a commit after its commit record is
# written: a transaction that is in the midst of its commit for as long as the
# test wants.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node = new_node('main', init => { allows_streaming => 1 });

# These do not wait for the standby.
my %local    = (options => '-c synchronous_commit=local');
my $observer = connect_to($node, %local);
my $listener = connect_to($node, %local);
my $second   = connect_to($node, %local);
my $third    = connect_to($node, %local);

$observer->run('CREATE TABLE written (what text)');
$listener->run('LISTEN a');
$observer->run(q{ALTER SYSTEM SET synchronous_standby_names = 'nobody'});
$observer->run('SELECT pg_reload_conf()');

# Is a session in the midst of the commit of its last statement, in that it waits
# for the standby?
sub waits_for_standby
{
	my ($session) = @_;
	return $observer->value(
		q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = }
		  . $session->pid);
}

wait_until_commits_wait($node);

# A session in the midst of the commit of a transaction that notifies.
sub commit_and_wait
{
	my $session = connect_to($node);
	$session->send_query(
		"BEGIN; INSERT INTO written VALUES ('first'); NOTIFY a, 'first'; COMMIT");
	wait_until(sub { waits_for_standby($session) }) or die 'the commit does not wait';
	return $session;
}

sub counters
{
	my $queue = stat_queue($observer);
	return join ', ', map { "$_ $queue->{$_}" } qw(in_flight held_back);
}

my %release = (
	'its wait is cancelled'    => 'pg_cancel_backend',
	'its session is terminated' => 'pg_terminate_backend');
foreach my $what (sort keys %release)
{
	my $first = commit_and_wait();
	is(counters(), 'in_flight 1, held_back 0', 'a commit is under way');
	is($second->query("INSERT INTO written VALUES ('second'); NOTIFY a, 'second'")->error,
		undef, 'another transaction does not wait for it');
	is($third->query("NOTIFY a, 'third'")->error, undef, 'nor one that writes nothing');
	is($second->query("INSERT INTO written VALUES ('x'); NOTIFY a, 'fourth'")->error,
		undef, 'nor the next one of the same session');
	is($third->query("BEGIN; NOTIFY a, 'never'; ROLLBACK")->error, undef, 'nor a rollback');
	is(counters(), 'in_flight 1, held_back 3', 'but what they sent is held back');
	is($listener->query('')->types, 'IZ', 'nothing has reached the listener');

	my $by_others = stat_queue($observer)->{published_by_others};
	$observer->run("SELECT $release{$what}(" . $first->pid . ')');
	is_deeply(
		all_as_text($listener->wait_for(4)),
		[ 'a/first', 'a/second', 'a/third', 'a/fourth' ],
		"when $what, all arrive in the order of their commits");
	is(counters(), 'in_flight 0, held_back 0', 'nothing is left');
	is(stat_queue($observer)->{published_by_others} - $by_others,
		3, 'the first one has published those of the others');
	my $result = $first->result;
	is($result->status // 'gone', $what =~ /cancelled/ ? 'I' : 'gone', 'it has ended its command');
	$first->hang_up;
}

# Several at once, of which the first is released last; and one without a
# commit record of its own right behind the last one's record.
my @waiting = map { commit_and_wait() } 1 .. 3;
is(counters(), 'in_flight 3, held_back 0', 'three commits are under way');
$second->run("NOTIFY a, 'after'");
$third->run("INSERT INTO written VALUES ('last'); NOTIFY a, 'last'");
foreach my $i (2, 1)
{
	$observer->run('SELECT pg_cancel_backend(' . $waiting[$i]->pid . ')');
	$waiting[$i]->result;
}
is(counters(), 'in_flight 1, held_back 4', 'those that have ended are held back by the first');
is($listener->query('')->types, 'IZ', 'nothing has reached the listener');
$observer->run('SELECT pg_cancel_backend(' . $waiting[0]->pid . ')');
is_deeply(
	[ map { [ $_->{pid}, $_->{payload} ] } $listener->wait_for(5) ],
	[
		(map { [ $_->pid, 'first' ] } @waiting),
		[ $second->pid, 'after' ], [ $third->pid, 'last' ]
	],
	'all arrive in the order of their commits, in the names of their senders');
$waiting[0]->result;
$_->close for @waiting;

# With the fault planted that the order prevents, this test notices.
SKIP:
{
	skip 'no fault can be planted: the server was built without assertions', 2 unless has_faults();

	my $first = commit_and_wait();
	$second->run('SET pinpoint.debug_fault = arrival_order');
	$second->run("NOTIFY a, 'second'");
	$second->run('RESET pinpoint.debug_fault');
	is(as_text($listener->wait_for(1)), 'a/second', 'in order of arrival the second would be first');
	$observer->run('SELECT pg_cancel_backend(' . $first->pid . ')');
	is(as_text($listener->wait_for(1)), 'a/first', 'and the first second');
	$first->result;
	$first->close;
}

# ---- a commit that fails after it was announced

# PostgreSQL looks for serialization failures after the last moment at which a
# NOTIFY may fail.
my @skewed = connect_many($node, 2, %local);
$_->run('BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM written') for @skewed;
foreach my $i (0, 1)
{
	$skewed[$i]->run("INSERT INTO written VALUES ('skewed'); NOTIFY a, 'skewed $i'; LISTEN b");
}
is($skewed[0]->query('COMMIT')->error, undef, 'one of two transactions commits');
my $failure = $skewed[1]->query('COMMIT');
is($failure->error && $failure->error->{C}, '40001', 'the other fails in its commit');
is(counters(), 'in_flight 0, held_back 0', 'it holds back nobody');
is(stat_listener($observer, $skewed[1]->pid), undef, 'nor does it listen');
$skewed[1]->run("NOTIFY a, 'afterwards'");
is_deeply(
	all_as_text($listener->wait_for(2)),
	[ 'a/skewed 0', 'a/afterwards' ],
	'nor does its notification arrive');

$_->close for $listener, @skewed;
server_is_clean($observer, 'nothing is left');

done_testing();
