# A notification on a shared channel goes to a session that can read it at once, if
# there is one.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

# Without a waker, only senders reassign what a session that stays in its transaction has, and not before a second.
my $node = new_node('main', conf => 'pinpoint.waker = off');
my ($observer, $sender) = connect_many($node, 2);

sub sharers
{
	my ($count) = @_;
	my @sessions = connect_many($node, $count,
		options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1');
	$_->run('LISTEN c') for @sessions;
	return @sessions;
}

sub close_all
{
	$_->close for @_;
	wait_until(sub { $observer->value('SELECT count(*) FROM pinpoint.stat_channels') == 0 }) or die 'channels stay';
	return;
}

# Until a session has read everything, and is in no transaction any more.
sub wait_until_ready
{
	my ($session) = @_;
	my $pid = $session->pid;
	return wait_until_idle($observer, $pid) && wait_until(
		sub {
			$observer->value("SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND state = 'idle' AND xact_start IS NULL");
		});
}

# ---- what a leaving session leaves behind

# Two that could have it: one is in a transaction, and has not come so far in the
# queue; the other has read past it, and is idle.
my ($leaves, $busy, $idle) = sharers(3);
$idle->run('LISTEN fence');
$_->run('BEGIN') for $leaves, $busy, $idle;
$sender->run("NOTIFY c, '$_'") for 1 .. 3;
$idle->run('COMMIT');
$sender->run(q(NOTIFY fence));
my @before = grep { $_->{channel} eq 'c' } $idle->notifications_until('fence', '');
is(scalar @before, 1, 'each gets its part');
wait_until_ready($idle) or die 'it is not idle';
$leaves->close;
wait_until(sub { !stat_listener($observer, $leaves->pid) }) or die 'it stays';
my @more = eval { $idle->wait_for(1) };
is(scalar @more, 1, 'the idle session gets the part of the one that leaves, though it has read past it');
$busy->run('COMMIT');
is(scalar(() = $busy->take_notifications), 1, 'the one in a transaction does not');
close_all($busy, $idle);

# ---- a session that publishes, and is in its next transaction at once

$observer->run(<<'SQL');
CREATE PROCEDURE work(n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP
		PERFORM pg_notify('c', 'job ' || i);
		COMMIT;
	END LOOP;
	PERFORM pg_advisory_lock(1);
END $$;
SQL

# Each is the publisher in turn, as otherwise it may just not be its turn.
foreach my $case (
	[ 'a procedure',      'CALL work(1)',                                     'SELECT 1' ],
	[ 'COMMIT AND CHAIN', q(BEGIN; NOTIFY c, 'job 1'; COMMIT AND CHAIN),      'COMMIT' ],
	[ 'COMMIT AND CHAIN with a deferred trigger', q(BEGIN; INSERT INTO t VALUES (1); COMMIT AND CHAIN), 'COMMIT' ])
{
	my ($what, $publish, $end) = @$case;
	if ($what =~ /trigger/)
	{
		$observer->run(<<'SQL');
CREATE TABLE t (i int);
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NOTIFY c, 'job 1'; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER tr AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION f();
SQL
	}
	my @both = sharers(2);
	foreach my $round (1 .. 2)
	{
		my ($publisher, $other) = $round == 1 ? @both : reverse @both;
		foreach my $turn (1 .. 2)
		{
			wait_until_ready($_) for @both;
			$observer->run('SELECT pg_advisory_lock(1)');
			$publisher->send_query($publish);
			my ($job) = eval { $other->wait_for(1) };
			is($job && as_text($job), 'c/job 1', "$what: an idle session gets the job ($round.$turn)");
			$observer->run('SELECT pg_advisory_unlock(1)');
			$publisher->result;
			$publisher->run('SELECT pg_advisory_unlock_all()') if $what eq 'a procedure';
			$publisher->run($end);
			is(scalar(() = $publisher->take_notifications), 0, 'the one that sent it does not');
		}
	}
	close_all(@both);
}

# If all are busy the publisher may get it like the others.
my ($only) = sharers(1);
$only->run(q(CALL work(3)));
is_deeply(all_as_text($only->wait_for(3)), [ map { "c/job $_" } 1 .. 3 ],
	'a procedure of the only session gets its own jobs when it ends');
close_all($only);

# A plain NOTIFY leaves its session idle.
my ($self) = sharers(1);
my ($other) = sharers(1);
$other->run('BEGIN');
$self->run(q(NOTIFY c, 'own'));
is_deeply(all_as_text($self->wait_for(1)), ['c/own'], 'a session that is idle after its NOTIFY counts as idle');
$other->run('COMMIT');
close_all($self, $other);

server_is_clean($observer, 'nothing is left');

done_testing();
