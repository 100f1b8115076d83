# No wakeup of pinpoint.wait() is lost.  Two sessions take turns, in which each can be
# notified at the moment in which it begins to wait.  Then sessions learn of changes only by
# pinpoint.wait(), and read again only what it names, while others write at random.  When
# the writers pause, all copies are equal to the table: a wakeup that is lost leaves a copy
# behind, as nobody times out.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

use constant { CHANNELS => 100, WAITERS => 40, WRITERS => 4 };

my $seed   = $ENV{PINPOINT_TEST_SEED} // int rand 2**31;
my $rounds = $ENV{PINPOINT_TEST_ROUNDS} // 8;
srand $seed;
note("PINPOINT_TEST_SEED=$seed PINPOINT_TEST_ROUNDS=$rounds");

my $node  = new_node('main', max_connections => WAITERS + WRITERS + 20, conf => 'fsync = off');
my $admin = connect_to($node);

# ---- two sessions

$admin->run(<<'SQL');
CREATE TABLE turn AS SELECT 0 AS number;
CREATE PROCEDURE take_turns(mine int, since text, turns int) LANGUAGE plpgsql AS $$
DECLARE
	changed text[];
	number int;
BEGIN
	LOOP
		SELECT turn.number INTO number FROM turn;
		EXIT WHEN number = turns;
		IF number % 2 = mine THEN
			UPDATE turn SET number = turn.number + 1;
			PERFORM pg_notify('turn of ' || 1 - mine, '');
			COMMIT;
			FOR j IN 1 .. random() * 6000 LOOP END LOOP;
		ELSE
			changed := ARRAY['turn of ' || mine];
			CALL pinpoint.wait(changed, since, NULL);
			COMMIT;
		END IF;
	END LOOP;
END $$;
SQL
my $position = $admin->value('SELECT pinpoint.position()');
my @players  = connect_many($node, 2);
$players[$_]->send_query("CALL take_turns($_, '$position', 2000)") foreach 0, 1;
ok( wait_until(
		sub {
			$admin->value(q{SELECT count(*) = 2 FROM pg_stat_activity WHERE state = 'idle' AND query LIKE 'CALL take_turns%'}) eq 't';
		}), 'two sessions take 2000 turns');
$_->hang_up foreach @players;

# ---- many sessions

$admin->run('CREATE TABLE items (channel text PRIMARY KEY, value int)');
$admin->run(q{INSERT INTO items SELECT 'c' || i, 0 FROM generate_series(1, } . CHANNELS . ') AS i');
$admin->run('CREATE TABLE copies (waiter int, channel text, value int, PRIMARY KEY (waiter, channel)) WITH (fillfactor = 50)');
$admin->run(<<'SQL');
CREATE PROCEDURE follow(me int) LANGUAGE plpgsql AS $$
DECLARE
	mine text[] := (SELECT array_agg(channel) FROM copies WHERE waiter = me);
	changed text[];
	pos text;
BEGIN
	LOOP
		COMMIT;
		changed := mine;
		CALL pinpoint.wait(changed, pos, NULL);
		UPDATE copies SET value = items.value FROM items
		 WHERE copies.waiter = me AND copies.channel = ANY (changed) AND items.channel = copies.channel;
	END LOOP;
END $$;
SQL

# Most transactions have few channels, some have many, some use PostgreSQL's own queue,
# and some roll back.
$admin->run(<<'SQL');
CREATE PROCEDURE work(seed float, n int) LANGUAGE plpgsql AS $$
DECLARE
	c text[];
BEGIN
	PERFORM setseed(seed);
	FOR i IN 1 .. n LOOP
		SELECT array_agg(channel ORDER BY channel) INTO c FROM items
		 WHERE random() < CASE WHEN random() < 0.01 THEN 0.9 ELSE 0.02 END;
		BEGIN
			UPDATE items SET value = value + 1 WHERE channel = ANY (c);
			PERFORM set_config('pinpoint.enabled', CASE WHEN random() < 0.01 THEN 'off' ELSE 'on' END, true);
			PERFORM pg_notify(x, '') FROM unnest(c) AS x;
			PERFORM pg_notify('other', '');
			IF random() < 0.1 THEN RAISE division_by_zero; END IF;
		EXCEPTION WHEN division_by_zero OR deadlock_detected THEN NULL;
		END;
		COMMIT;
		IF random() < 0.2 THEN PERFORM pg_sleep(random() / 100); END IF;
	END LOOP;
END $$;
SQL

# Most sessions wait for few channels, every tenth for all: more than 64.
$admin->run(sprintf q{INSERT INTO copies SELECT w, channel, -1 FROM generate_series(1, %d) AS w, items
	 WHERE w %% 10 = 0 OR hashtext(w || channel) %% 30 = 0 OR channel = 'c1'}, WAITERS);
my %waiters = map { $_ => start($_) } 1 .. WAITERS;

sub start
{
	my ($number) = @_;
	my $session = connect_to($node);
	$session->send_query("CALL follow($number)");
	return $session;
}

sub differences
{
	return $admin->value('SELECT count(*) FROM copies JOIN items USING (channel) WHERE copies.value <> items.value');
}

foreach my $round (1 .. $rounds)
{
	my @writers = connect_many($node, WRITERS);
	$_->send_query('CALL work(' . rand() . ', 60)') foreach @writers;

	# A few waiters are ended and begin again, and sometimes the waker.
	foreach my $number (map { 1 + int rand WAITERS } 1 .. 3)
	{
		$admin->run('SELECT pg_terminate_backend(' . $waiters{$number}->pid . ', 60000)');
		$waiters{$number} = start($number);
	}
	$admin->run(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker'})
	  if rand() < 0.3;
	$_->result foreach @writers;
	$_->close  foreach @writers;
	ok(wait_until(sub { differences() == 0 }), "round $round: all copies are equal to the table")
	  or last;
}
ok(wait_until(sub { $admin->value('SELECT count(*) FROM pinpoint.waiting') == WAITERS }), 'all sessions wait');

# ---- the waker has listeners to signal all the time, and wakes sessions that wait nevertheless

$_->hang_up foreach values %waiters;
ok(wait_until(sub { $admin->value('SELECT count(*) FROM pinpoint.waiting') == 0 }), 'and then none');
SKIP:
{
	skip 'no fault can be planted: the server was built without assertions', 3 unless has_faults();

	$node->append_conf('postgresql.conf', 'pinpoint.debug_fault = busy_waker');
	$node->reload;
	my $busy = q{SELECT wait_event IS NULL FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker'};
	ok(wait_until(sub { $admin->value('SHOW pinpoint.debug_fault') eq 'busy_waker' && ($admin->value($busy) // '') eq 't' }),
		'the waker is busy');
	my $begin   = $admin->value('SELECT pinpoint.position()');
	my @waiters = connect_many($node, 20);
	$_->send_query("CALL pinpoint.wait('{quiet}', '$begin', NULL)") foreach @waiters;
	ok(wait_until(sub { $admin->value('SELECT count(*) FROM pinpoint.waiting') == @waiters }), 'sessions wait');
	$admin->run('NOTIFY quiet');
	ok(wait_until(sub { $admin->value('SELECT count(*) FROM pinpoint.waiting') == 0 }), 'all sessions are woken');
}
$node->stop('fast');

done_testing();
