# Statements that change the rows of a watched table, and that wait while another session
# watches the table, or replaces it by a watched one.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main');
my ($admin, $migration, $waiting, $reader, $listener) = connect_many($node, 5);
$admin->run($_) foreach split /\n\n/, <<'EOS';
CREATE TABLE t (id int)

CREATE TABLE parts (id int) PARTITION BY LIST (id)

CREATE TABLE parts1 AS SELECT 1 AS id

CREATE TABLE secured (id int)

CREATE POLICY p ON secured USING (true)

SELECT pinpoint.watch('t', 'c'), pinpoint.watch('parts', 'p')
EOS
$listener->run('LISTEN c; LISTEN p; LISTEN s; LISTEN fence');

# The notifications of the waiting session until now.
sub notified
{
	$admin->run('NOTIFY fence');
	return all_as_text(grep { $_->{pid} == $waiting->pid } $listener->notifications_until('fence', ''));
}

# Waits until a session waits for a lock, and another condition is true.
sub wait_until_blocked
{
	my ($session, $condition) = @_;
	my $waits = q{SELECT wait_event_type = 'Lock'} . (defined $condition ? " AND $condition" : '')
	  . ' FROM pg_stat_activity WHERE pid = ' . $session->pid;
	wait_until(sub { ($admin->value($waits) // '') eq 't' }) or die 'the session does not wait for a lock';
	return;
}

# ---- ALTER TABLE ... ENABLE ROW LEVEL SECURITY

foreach my $form ('ENABLE', 'FORCE')
{
	$migration->run($_) for 'BEGIN', 'ALTER TABLE t RENAME TO old', 'CREATE TABLE t (id int)',
	  q{SELECT pinpoint.unwatch('old'), pinpoint.watch('t', 'c')};
	$waiting->send_query("ALTER TABLE t $form ROW LEVEL SECURITY");
	wait_until_blocked($waiting);
	$migration->run('COMMIT');
	is($waiting->result->error, undef, "$form ROW LEVEL SECURITY of the new table");
	is_deeply(notified(), ['c/'], 'notifies');
	$migration->run('DROP TABLE old');
}

# ---- DROP POLICY, which locks the table late

$migration->run(q{BEGIN; SELECT pinpoint.watch('secured', 's')});
$waiting->send_query('DROP POLICY p ON secured');
wait_until_blocked($waiting);
$migration->run('COMMIT');
is($waiting->result->error, undef, 'DROP POLICY of a table that is watched meanwhile');
is_deeply(notified(), ['s/'], 'notifies');

# ---- ALTER TABLE ... DETACH PARTITION CONCURRENTLY

# The second transaction waits for the reader, who waits for the migration on the partition
# before the first transaction can lock it.
$migration->run($_) for 'BEGIN', 'ALTER TABLE parts RENAME TO old', 'CREATE TABLE parts (id int) PARTITION BY LIST (id)',
  'ALTER TABLE parts ATTACH PARTITION parts1 FOR VALUES IN (1)',
  q{SELECT pinpoint.unwatch('old'), pinpoint.watch('parts', 'p')};
$waiting->send_query('ALTER TABLE parts DETACH PARTITION parts1 CONCURRENTLY');
wait_until_blocked($waiting);
$reader->send_query('BEGIN; LOCK TABLE parts1 IN ACCESS SHARE MODE');
wait_until_blocked($reader);
$migration->run('COMMIT');
is($reader->result->error, undef, 'a reader of the partition');
wait_until_blocked($waiting, q{EXISTS (SELECT FROM pg_inherits WHERE inhdetachpending)});
is($admin->value('SELECT count(*) FROM parts'), 0, 'the rows have left the new table');
is_deeply(notified(), ['p/'], 'which notifies');
my $position = $admin->value('SELECT pinpoint.position()');
$admin->run('SELECT pg_cancel_backend(' . $waiting->pid . ')');
is($waiting->result->error->{C}, '57014', 'the second transaction is cancelled');
is_deeply(notified(), [], 'and notifies nothing');
$reader->run('COMMIT');
is($waiting->query('ALTER TABLE parts DETACH PARTITION parts1 FINALIZE')->error, undef, 'FINALIZE');
is($admin->value("SELECT changed FROM pinpoint.changed_since('$position', 'p')"), '{}', 'changes no row of the table');

# The second transaction reads no labels.  So it does not wait for them, and cannot be
# cancelled there, which would leave a partition that is half detached.
$waiting->run('ALTER TABLE parts ATTACH PARTITION parts1 FOR VALUES IN (1)');
$reader->run('BEGIN; LOCK TABLE parts1 IN ACCESS SHARE MODE');
$waiting->send_query('ALTER TABLE parts DETACH PARTITION parts1 CONCURRENTLY');
wait_until_blocked($waiting, q{EXISTS (SELECT FROM pg_inherits WHERE inhdetachpending)});
$admin->run('BEGIN; LOCK TABLE pg_catalog.pg_seclabel IN ACCESS EXCLUSIVE MODE');
$reader->run('COMMIT');
my $state = q{SELECT CASE WHEN wait_event_type = 'Lock' THEN 'waits' ELSE state END FROM pg_stat_activity WHERE pid = }
  . $waiting->pid;
ok(wait_until(sub { $migration->value($state) eq 'idle' }), 'the second transaction does not wait for the labels');
$admin->run('COMMIT');
is($waiting->result->error, undef, 'DETACH CONCURRENTLY');
notified();

# The partition is none any more, also for a session that has changed it before.
$waiting->run($_) for 'ALTER TABLE parts ATTACH PARTITION parts1 FOR VALUES IN (1)', 'DELETE FROM parts1',
  'ALTER TABLE parts DETACH PARTITION parts1 CONCURRENTLY';
is_deeply(notified(), [ ('p/') x 3 ], 'ATTACH, DELETE, and DETACH CONCURRENTLY, which notifies once');
$waiting->run('INSERT INTO parts1 VALUES (1)');
is_deeply(notified(), [], 'then the partition is a table of its own');

# All other ways out of a partitioned table notify.
$waiting->run('ALTER TABLE parts ATTACH PARTITION parts1 FOR VALUES IN (1)');
notified();
$waiting->run('BEGIN; ALTER TABLE parts DETACH PARTITION parts1; COMMIT');
is_deeply(notified(), ['p/'], 'DETACH PARTITION');

$_->close for $admin, $migration, $waiting, $reader, $listener;
done_testing();
