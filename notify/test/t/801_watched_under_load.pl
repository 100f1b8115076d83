# Tables are watched, get other channels, become partitions and children and stop being
# that, at random, while others write to them.  Each committed transaction notifies the
# channels that the catalogs show while it has its locks.
#
# unwatch(), DETACH and NO INHERIT do not wait for writers, so an advisory lock keeps them
# apart here.  All else happens at any time.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $seed   = $ENV{PINPOINT_TEST_SEED} // int rand 2**31;
my $rounds = $ENV{PINPOINT_TEST_ROUNDS} // 150;
note("PINPOINT_TEST_SEED=$seed PINPOINT_TEST_ROUNDS=$rounds");

my $node = new_node('main', conf => "deadlock_timeout = 10ms\nfsync = off");
my ($admin, $listener, $owner, @writers) = connect_many($node, 7);
$admin->run($_) foreach split /\n\n/, <<'EOS';
CREATE TABLE parts (id int) PARTITION BY LIST (id)

CREATE TABLE p1 PARTITION OF parts FOR VALUES IN (1)

CREATE TABLE p2 (id int)

CREATE TABLE p3 (id int) PARTITION BY LIST (id)

CREATE TABLE p31 PARTITION OF p3 FOR VALUES IN (3)

CREATE TABLE parent ()

CREATE TABLE child (id int)

CREATE TABLE grandchild () INHERITS (child)

CREATE FUNCTION channels_of_table(name text) RETURNS SETOF name LANGUAGE sql VOLATILE AS $$
	WITH RECURSIVE a(relid) AS (
		SELECT name::regclass::oid UNION SELECT inhparent FROM pg_inherits, a WHERE inhrelid = a.relid)
	SELECT DISTINCT channel FROM pinpoint.watched, a WHERE relation = a.relid $$

CREATE PROCEDURE write(seed float, n int) LANGUAGE plpgsql AS $$
DECLARE
	leaves text[] := ARRAY['p1 1', 'p2 2', 'p31 3', 'child 4', 'grandchild 5'];
	leaf text[];
	expected name[];
BEGIN
	PERFORM setseed(seed);
	FOR i IN 1 .. n LOOP
		PERFORM pg_advisory_xact_lock_shared(1);
		expected := '{}';
		FOR j IN 1 .. 1 + floor(random() * 2) LOOP
			leaf := string_to_array(leaves[1 + floor(random() * 5)], ' ');
			BEGIN
				IF random() < 0.1 THEN
					EXECUTE format('TRUNCATE %I', leaf[1]);
				ELSE
					EXECUTE format('INSERT INTO %I VALUES (%s)', leaf[1], leaf[2]);
				END IF;
				IF random() < 0.2 THEN
					RAISE division_by_zero;
				END IF;
				expected := expected || ARRAY(SELECT channels_of_table(leaf[1]));
			EXCEPTION WHEN division_by_zero OR deadlock_detected THEN NULL;
			END;
		END LOOP;
		PERFORM pg_notify('transaction', array_to_string(i::text || expected::text[], ' '));
		COMMIT;
	END LOOP;
END $$

CREATE PROCEDURE change(seed float) LANGUAGE plpgsql AS $$
DECLARE
	tables text[] := ARRAY['parts', 'p1', 'p2', 'p3', 'p31', 'parent', 'child', 'grandchild'];
	relation text;
BEGIN
	PERFORM setseed(seed);
	LOOP
		relation := tables[1 + floor(random() * 8)];
		IF random() < 0.3 THEN
			PERFORM pg_advisory_xact_lock(1);
			CASE floor(random() * 4)
			WHEN 0 THEN PERFORM pinpoint.unwatch(relation);
			WHEN 1 THEN
				IF EXISTS (SELECT FROM pg_inherits WHERE inhrelid = 'p2'::regclass) THEN
					ALTER TABLE parts DETACH PARTITION p2;
				END IF;
			WHEN 2 THEN
				IF EXISTS (SELECT FROM pg_inherits WHERE inhrelid = 'p3'::regclass) THEN
					ALTER TABLE parts DETACH PARTITION p3;
				END IF;
			ELSE
				IF EXISTS (SELECT FROM pg_inherits WHERE inhrelid = 'child'::regclass) THEN
					ALTER TABLE child NO INHERIT parent;
				END IF;
			END CASE;
		ELSE
			BEGIN
				CASE floor(random() * 6)
				WHEN 0 THEN
					IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = 'p2'::regclass) THEN
						ALTER TABLE parts ATTACH PARTITION p2 FOR VALUES IN (2);
					END IF;
				WHEN 1 THEN
					IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = 'p3'::regclass) THEN
						ALTER TABLE parts ATTACH PARTITION p3 FOR VALUES IN (3);
					END IF;
				WHEN 2 THEN
					IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = 'child'::regclass) THEN
						ALTER TABLE child INHERIT parent;
					END IF;
				WHEN 3 THEN EXECUTE format('SECURITY LABEL FOR pinpoint ON TABLE %I IS %L', relation, 'c' || floor(random() * 4));
				ELSE PERFORM pinpoint.watch(relation, 'c' || floor(random() * 4));
				END CASE;
				IF random() < 0.1 THEN
					RAISE division_by_zero;
				END IF;
			EXCEPTION WHEN division_by_zero OR deadlock_detected THEN NULL;
			END;
		END IF;
		COMMIT;
	END LOOP;
END $$
EOS

$listener->run('LISTEN transaction; LISTEN done');
$listener->run("LISTEN c$_") for 0 .. 3;
my $number = 0;
$_->send_query(sprintf 'CALL write(%f, %d)', ($seed + ++$number) % 1000 / 1000, $rounds) for @writers;
$owner->send_query(sprintf 'CALL change(%f)', $seed % 1000 / 1000);
is($_->result->error, undef, 'a writer') for @writers;
$admin->run('SELECT pg_cancel_backend(' . $owner->pid . ')');
error_is($owner->result, '57014', 'canceling statement due to user request', undef, 'the tables have changed meanwhile');
$admin->run('NOTIFY done');

# The notifications of a transaction are adjacent, the explicit one first.
my @transactions;
foreach my $notification ($listener->notifications_until('done', ''))
{
	my ($channel, $pid) = @$notification{qw(channel pid)};
	if ($channel eq 'transaction')
	{
		push @transactions, { pid => $pid, payload => $notification->{payload}, received => {} };
	}
	elsif (@transactions && $transactions[-1]{pid} == $pid)
	{
		$transactions[-1]{received}{$channel} = 1;
	}
}
my ($watched, @missing) = (0);
foreach my $transaction (@transactions)
{
	my (undef, @expected) = split / /, $transaction->{payload};
	$watched++ if @expected;
	push @missing, "$transaction->{payload}: only " . join ' ', sort keys %{ $transaction->{received} }
	  if grep { !$transaction->{received}{$_} } @expected;
}
is(scalar @transactions, $rounds * @writers, 'all transactions notify');
is_deeply(\@missing, [], 'no notification is missing');
cmp_ok($watched, '>', $rounds, "$watched of them changed watched tables");

$_->close for $admin, $listener, $owner, @writers;
done_testing();
