# A session that runs out of memory, at each place where LISTEN/NOTIFY needs
# some: it is told, nothing is left over, and nobody else notices.
#
# A limit on the address space, set from outside when the session is just where
# it should be, makes the next larger allocation fail.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main');
my ($observer, $sender, $witness) = connect_many($node, 3);
$witness->run('LISTEN a; LISTEN b');

# Lets the server process of a session have only so many kB more than now.
sub limit_memory
{
	my ($session, $kb) = @_;
	my ($size) = slurp_file('/proc/' . $session->pid . '/status') =~ /^VmSize:\s+(\d+) kB$/m;
	set_limit($session, ($size + $kb) * 1024);
	return;
}

sub lift_limit
{
	my ($session) = @_;
	set_limit($session, 'unlimited');
	return;
}

sub set_limit
{
	my ($session, $bytes) = @_;
	system_or_bail('prlimit', '--pid=' . $session->pid, "--as=$bytes:");
	return;
}

# A statement that waits until go() is called, to be put before what is to fail.
my $wait = 'PERFORM pg_advisory_xact_lock(1)';

# Waits until a session stands there.
sub wait_until_there
{
	my ($session) = @_;
	wait_until(
		sub {
			$observer->value(
				q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'}
				  . ' AND pid = ' . $session->pid);
		})
	  or die 'the session does not come to its advisory lock';
	return;
}

# Runs SQL that contains $wait, with so many kB from there on.
sub run_limited
{
	my ($session, $kb, $sql) = @_;
	$observer->run('SELECT pg_advisory_lock(1)');
	$session->send_query($sql);
	wait_until_there($session);
	limit_memory($session, $kb);
	$observer->run('SELECT pg_advisory_unlock(1)');
	my $result = $session->result;
	lift_limit($session);
	return $result;
}

# The others go on, and the session that failed too, if it is still there.
my $round = 0;
sub nobody_noticed
{
	my ($name, @sessions) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $queue = stat_queue($observer);
	is_deeply([ @$queue{qw(used_bytes batches in_flight held_back)} ],
		[ 0, 0, 0, 0 ], "$name: nothing is left in the queue");
	foreach my $session ($sender, @sessions)
	{
		$round++;
		$session->run("NOTIFY a, 'round $round'");
		is_deeply(all_as_text($witness->notifications_until('a', "round $round")),
			[], "$name: nothing arrived, and NOTIFY works");
	}
	return;
}

# ---- while a transaction collects its notifications

my $many = "PERFORM pg_notify('a', i || ' of many') FROM generate_series(1, 300000) i";
my $session = connect_to($node);
my $result  = run_limited($session, 2048, "DO \$\$ BEGIN $wait; $many; END \$\$");
error_is($result, '53200', 'out of memory', undef, 'too many notifications');
nobody_noticed('while they are collected', $session);

# ---- when a subtransaction hands them to its parent

# 20 of the parent's are enough for its hash table to be in use.
my $few = "PERFORM pg_notify('a', i || ' before') FROM generate_series(1, 20) i";
$result = run_limited($session, 1024, <<"EOS");
DO \$\$ BEGIN
	$few;
	BEGIN
		$many;
		$wait;
	EXCEPTION WHEN out_of_memory THEN
		PERFORM pg_notify('a', 'caught');
	END;
	PERFORM pg_notify('a', i || ' before') FROM generate_series(1, 21) i;
END \$\$
EOS
is($result->error, undef, 'a subtransaction that is too large fails, and is caught');
is_deeply(
	all_as_text($witness->wait_for(22)),
	[ (map { "a/$_ before" } 1 .. 20), 'a/caught', 'a/21 before' ],
	'what was sent outside of it arrives, without duplicates');
wait_until_idle($observer, $witness->pid);
nobody_noticed('in a subtransaction', $session);

# ---- in the last moment before commit

# The numbers that the channels get within their batch take memory there.
$observer->run(<<"EOS");
CREATE TABLE log (i int);
CREATE FUNCTION last_moment() RETURNS trigger LANGUAGE plpgsql AS
  \$\$ BEGIN $wait; RETURN NULL; END \$\$;
CREATE CONSTRAINT TRIGGER last_moment AFTER INSERT ON log
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION last_moment();
EOS
$result = run_limited($session, 128, <<'EOS');
BEGIN;
INSERT INTO log VALUES (1);
SELECT count(pg_notify('c' || i, '')) FROM generate_series(1, 250000) i;
NOTIFY a, 'not committed';
COMMIT;
EOS
error_is($result, '53200', 'out of memory', undef, 'a commit that needs too much');
is($result->status, 'I', 'which ends its transaction');
is($observer->value('SELECT count(*) FROM log'), 0, 'and rolls it back');
nobody_noticed('in pre-commit', $session);

# ---- LISTEN

# The memory goes at different places: the table of this session, PostgreSQL's list
# of what to do, and, after the commit, its list of what it listens on.
my $channels = 20_000;
my $listens  = join ';', map { "LISTEN own_$_" } 1 .. $channels;
my ($before_commit, $after_commit) = (0, 0);

# PostgreSQL 19 keeps a table of channels of its own in dynamic shared memory, and allocates
# before the commit. Two of its errors when memory runs out are internal errors. If memory ran
# out while a session mapped a segment of that table, no later LISTEN of the session can map it.
my $is_19 = $node->pg_version >= '19devel';

sub cannot_attach
{
	my ($result) = @_;
	return $is_19 && $result->error && $result->error->{M} eq q(can't attach the same segment more than once);
}

sub expected_sqlstate
{
	my ($result) = @_;
	my $message = $result->error ? $result->error->{M} : '';
	return 'XX000' if cannot_attach($result) || $is_19 && $message eq 'failed to initialize hash table "Pending Listen Actions"';
	return '53200';
}

foreach my $kb (0, 512, 1024, 2048, map { 2048 + 256 * $_ } 1 .. 8)
{
	my $listener = connect_to($node);
	$listener->run('LISTEN b');
	$listener->run("BEGIN; $listens");
	limit_memory($listener, $kb);
	my $commit = $listener->query('COMMIT');
	lift_limit($listener);
	next if !$commit->error && $kb > 2048;
	is($commit->error->{C}, expected_sqlstate($commit), "LISTEN with $kb kB left fails");

	# PostgreSQL may have got to the middle of its list.
	my $listening = $listener->value('SELECT count(*) FROM pg_listening_channels()');
	$before_commit++ if $listening == 1;
	$after_commit++  if $listening > 1;
	is(stat_listener($observer, $listener->pid)->{channels},
		$listening, "the session listens on what PostgreSQL has in its list: $listening");
	is($observer->value("SELECT count(*) FROM pinpoint.stat_channels WHERE channel <> 'a'"),
		$listening, 'and the channel map has no other');
	nobody_noticed('LISTEN');
	$listener->take_notifications;

	my $listen = $listener->query($listens);
	if (!cannot_attach($listen))
	{
		is($listen->error, undef, 'with enough memory it works');
		is(stat_listener($observer, $listener->pid)->{channels}, $channels + 1, 'and it listens on all channels');
		$sender->run("NOTIFY own_$channels, 'now'");
		is(as_text($listener->wait_for(1)), "own_$channels/now", 'and it is woken');
	}
	$listener->close;
	wait_until(
		sub { $observer->value('SELECT count(*) FROM pinpoint.stat_channels') == 2 })
	  or die 'its channels stay';
}
cmp_ok($before_commit, '>=', 3, 'a LISTEN failed before its commit');
if ($is_19) { is($after_commit, 0, 'and none after it'); }
else { cmp_ok($after_commit, '>=', 1, q(and PostgreSQL's own after it)); }

# ---- delivery

# A batch with many channels takes memory to read, and there is no way to tell
# the listener what it missed but to end its session.
my $listener = connect_to($node);
$listener->run('LISTEN a');
$listener->run('BEGIN');
my $sent = 300_000;
$sender->run(
	"BEGIN; NOTIFY a, 'first'; COMMIT; BEGIN; NOTIFY a, 'second';"
	  . " SELECT count(pg_notify('c' || i, '')) FROM generate_series(1, $sent) i; COMMIT");
is_deeply(all_as_text($witness->wait_for(2)),
	[ 'a/first', 'a/second' ], 'others receive meanwhile');
limit_memory($listener, 256);
$listener->send_query('COMMIT');
my $end = $listener->receive_until('EOF');
my ($fatal) = grep { $_->{type} eq 'E' } $end->messages;
is_deeply([ $fatal && @{ $fatal->{fields} }{qw(S C)} ],
	[ 'FATAL', '53200' ], 'a listener without memory for its notifications ends');
is_deeply(all_as_text($listener->take_notifications),
	['a/first'], 'after what it could still be given');
wait_until(sub { !stat_listener($observer, $listener->pid) }) or die 'it stays a listener';
nobody_noticed('delivery');

$_->close for $session, $witness;
server_is_clean($observer, 'nothing is left');

done_testing();
