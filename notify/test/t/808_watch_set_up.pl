# Statements that applications execute each time they start: if nothing changes, they block
# nobody, wait for nobody and notify nothing.  If something changes, they can give up, and
# be repeated.  And what becomes of watch() if the table changes while it waits.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main');
my ($owner, $other, $writer, $listener) = connect_many($node, 4);
$owner->run($_) foreach split /\n\n/, <<'EOS';
CREATE ROLE app LOGIN

CREATE TABLE t (id int)

CREATE TABLE plain (id int)

CREATE TABLE parts (id int) PARTITION BY LIST (id)

CREATE TABLE parts1 PARTITION OF parts FOR VALUES IN (1)

CREATE TABLE dropped (id int) PARTITION BY LIST (id)

SELECT pinpoint.watch('t', 'c')
EOS
$listener->run('LISTEN c; LISTEN d; LISTEN fence');

# The notifications until now.
sub notified
{
	$listener->run('NOTIFY fence');
	return all_as_text($listener->notifications_until('fence', ''));
}

# Waits until a session waits for a lock.
sub wait_until_blocked
{
	my ($session) = @_;
	my $waits = 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $session->pid;
	wait_until(sub { ($listener->value($waits) // '') eq 'Lock' }) or die 'the session does not wait for a lock';
	return;
}

# The channel of a table, '' for none.
sub channel_of
{
	my ($table) = @_;
	return $listener->value("SELECT coalesce((SELECT channel FROM pinpoint.watched WHERE relation = '$table'::regclass), '')");
}

# ---- nothing changes

# A statement in a transaction that stays open: it does not wait, and leaves no lock on the
# table, while another transaction holds such a lock.  A session that has to wait fails.
sub changes_nothing
{
	my ($lock, $sql) = @_;
	my ($table) = $sql =~ /\b(t|plain)\b/;
	$writer->run("BEGIN; LOCK TABLE $table IN $lock MODE");
	$owner->run(q{BEGIN; SET LOCAL lock_timeout = '1s'});
	is($owner->query($sql)->error, undef, "$sql does not wait for $lock MODE");
	is($listener->value(
			"SELECT count(*) FROM pg_locks WHERE relation = '$table'::regclass AND pid = " . $owner->pid
			  . q{ AND mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock')}),
		0, 'and blocks no session that writes');
	$_->run('COMMIT') for $owner, $writer;
	return;
}
notified();
changes_nothing($_, q{SELECT pinpoint.watch('t', 'c')})
  for 'ROW EXCLUSIVE', 'SHARE UPDATE EXCLUSIVE', 'ACCESS EXCLUSIVE';
changes_nothing('ROW EXCLUSIVE', $_) for q{SELECT pinpoint.unwatch('plain')},
  q{SECURITY LABEL FOR pinpoint ON TABLE t IS 'c'}, q{SECURITY LABEL FOR pinpoint ON TABLE plain IS NULL};
changes_nothing($_, q{SELECT pinpoint.unwatch('plain')}) for 'SHARE UPDATE EXCLUSIVE', 'ACCESS EXCLUSIVE';
is_deeply(notified(), [], 'they notify nothing');
is(channel_of('t') . channel_of('plain'), 'c', 'and change nothing');
$owner->run(q{BEGIN; SELECT pinpoint.unwatch('plain')});
is($listener->value(q{SELECT count(*) FROM pg_locks WHERE relation = 'plain'::regclass}), 0, 'unwatch() leaves no lock');
$owner->run('COMMIT');

# ---- another transaction is changing the label

$other->run(q{BEGIN; SELECT pinpoint.unwatch('t')});
$owner->send_query(q{SELECT pinpoint.watch('t', 'c')});
wait_until_blocked($owner);
$other->run('COMMIT');
is($owner->result->error, undef, 'watch() waits for unwatch()');
is(channel_of('t'), 'c', 'and watches the table again');
is_deeply(notified(), [ 'c/', 'c/' ], 'both notify');

$other->run(q{BEGIN; SELECT pinpoint.unwatch('t')});
$owner->send_query(q{SELECT pinpoint.watch('t', 'c')});
wait_until_blocked($owner);
$other->run('ROLLBACK');
is($owner->result->error, undef, 'an unwatch() that is rolled back');
is_deeply(notified(), [], 'leaves nothing to notify');

$other->run(q{BEGIN; SELECT pinpoint.watch('plain', 'd')});
$owner->send_query(q{SELECT pinpoint.watch('plain', 'd')});
wait_until_blocked($owner);
$other->run('COMMIT');
is($owner->result->error, undef, 'two applications start');
is_deeply(notified(), ['d/'], 'one of them notifies');

$owner->run(q{BEGIN; SELECT pinpoint.unwatch('t'), pinpoint.watch('t', 'c'); COMMIT});
is(channel_of('t'), 'c', 'both in one transaction');
$owner->run(q{BEGIN; SELECT pinpoint.unwatch('t'); SAVEPOINT s});
is($owner->value(q{SELECT pinpoint.watch('t', 'c')}), 'c', 'a savepoint');
$owner->run('ROLLBACK TO s; COMMIT');
is(channel_of('t'), '', 'that is rolled back');
$owner->run(q{SELECT pinpoint.watch('t', 'c')});
is_deeply(notified(), [ ('c/') x 3 ], 'all of these notify');

# ---- the table changes while watch() waits

$other->run('BEGIN; DROP TABLE dropped');
$owner->send_query(q{SELECT pinpoint.watch('dropped')});
wait_until_blocked($owner);
$other->run('COMMIT');
is($owner->result->error->{C}, '42P01', 'the table is dropped');

# A session that no longer owns the table locks no partition.
$owner->run('ALTER TABLE parts OWNER TO app');
my $app = connect_to($node, user => 'app');
$writer->run('BEGIN; LOCK TABLE parts1 IN ROW EXCLUSIVE MODE');
$other->run('BEGIN; ALTER TABLE parts OWNER TO CURRENT_USER');
$app->send_query(q{SELECT pinpoint.watch('parts', 'd')});
wait_until_blocked($app);
$other->run('COMMIT');
is($app->result->error->{C}, '42501', 'the table has got another owner');
$writer->run('COMMIT');

# ---- lock_timeout

$writer->run('BEGIN; INSERT INTO t VALUES (1)');
my $migration = q{BEGIN; SET LOCAL lock_timeout = '100ms'; SELECT pinpoint.watch('t', 'd'); COMMIT};
is($owner->query($migration)->error->{C}, '55P03', 'watch() gives up');
$owner->run('ROLLBACK');
is(channel_of('t'), 'c', 'and has changed nothing');
is($other->query(q{SET lock_timeout = '1s'; INSERT INTO t VALUES (2)})->error, undef, 'others write');
$writer->run('COMMIT');
is_deeply(notified(), [ 'c/', 'c/' ], 'and notify');
is($owner->query($migration)->error, undef, 'it can be repeated');
is_deeply([ sort @{ notified() } ], [ 'c/', 'd/' ], 'and notifies both channels');
is(channel_of('t'), 'd', 'and watches the table');
$writer->run('BEGIN; INSERT INTO t VALUES (1)');
is($owner->query($migration)->error, undef, 'repeated once more, it waits for nobody');
$writer->run('COMMIT');

$_->close for $owner, $other, $writer, $listener, $app;
done_testing();
