# Positions and watched tables on other servers: a standby and its promotion, logical replication, dump and restore, a copy of
# the database.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use ManagedTest;
use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = managed_node('main', init => { allows_streaming => 'logical' }, conf => 'max_prepared_transactions = 5');
my $session = app($node);
my @tables = split /\n/, <<'EOS';
CREATE TABLE t (id int PRIMARY KEY, v int)
CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)
CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)
CREATE TABLE parent (id int PRIMARY KEY)
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)
SELECT pinpoint.watch('t'), pinpoint.watch('parts', 'p'), pinpoint.watch('parent')
EOS
run_all($session, @tables, 'CREATE TABLE rows_of (id int)', 'CREATE TRIGGER r AFTER INSERT OR UPDATE OR DELETE ON rows_of'
	. q{ FOR EACH ROW EXECUTE FUNCTION pinpoint.notify_row('row:{id}')});
my @all = qw(t p parent);

# ---- Dump and restore

my $position = $session->value('SELECT pinpoint.position()');
is((changed($session, $position, @all, 'row:1'))[0], '', 'nothing has changed');
my $dump = PostgreSQL::Test::Utils::tempdir . '/dump';
$node->command_ok([ 'pg_dump', '-U', 'app', '-Fc', '-f', $dump, 'managed' ], 'pg_dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored OWNER app');
$node->command_ok([ 'pg_restore', '-U', 'app', '--exit-on-error', '-d', 'restored', $dump ], 'pg_restore');
my $restored = app($node, dbname => 'restored');
my $watched = q{SELECT string_agg(concat_ws(' ', relation, channel, source), ', ' ORDER BY relation::text) FROM pinpoint.watched};
is($restored->value($watched), 'parent parent triggers, parts p triggers, t t triggers', 'the same tables are watched');
is($restored->value('SELECT bool_and(armed) FROM pinpoint.tree'), 't', 'with all triggers');
is((changed($restored, $position, @all, 'row:1'))[0], "@all row:1", 'a position of the other database is not known');
$position = $restored->value('SELECT pinpoint.position()');
is((changed($restored, $position, @all, 'row:1'))[0], '', 'a new one is');
is(changes($restored, $restored, [ @all, 'row:1' ], 'INSERT INTO low VALUES (1, 1)', 'INSERT INTO rows_of VALUES (1)'), 'p row:1', 'changes count');

# Over the same database.
$position = $session->value('SELECT pinpoint.position()');
run_all($session, 'INSERT INTO t VALUES (1, 1)');
run_all($session, 'DROP SCHEMA pinpoint CASCADE', 'DROP SCHEMA public CASCADE', 'CREATE SCHEMA public');
$session->close;
$node->command_ok([ 'pg_restore', '-U', 'app', '--exit-on-error', '-d', 'managed', $dump ], 'restored over the same database');
$session = app($node);
is((changed($session, $position, @all))[0], "@all", 'a position from before is not known');

# Rows of a dump whose transactions are in the future of this server.
run_all($restored, 'SELECT 1');
$node->safe_psql('restored', "DELETE FROM pinpoint.written WHERE source = 'i'; INSERT INTO pinpoint.written VALUES ('t', '9000000000', 't')");
$position = $restored->value('SELECT pinpoint.position()');
is((changed($restored, $position, 't'))[0], '', 'they do not count as changes for ever');

$restored->close;
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE restored OWNER app');
my $copy = app($node, dbname => 'copy');
is((changed($copy, $position, @all))[0], "@all", 'a copy of the database does not know its positions');
is(changes($copy, $copy, \@all, 'INSERT INTO t VALUES (2, 2)'), 't', 'and counts by itself');

# ---- A standby

$session->close;
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$session = app($node);
run_all($session, 'SET pinpoint.notify = off', 'BEGIN', 'INSERT INTO t VALUES (5, 5)', "PREPARE TRANSACTION 'over the promotion'");
run_all($session, 'INSERT INTO t VALUES (3, 3)');
$position = $session->value('SELECT pinpoint.position()');
$node->wait_for_catchup($standby);
my $reader = app($standby);
my ($told, $there) = changed($reader, $position, @all);
is($told, "@all", 'on a standby, all channels have changed');
is((changed($reader, $there, @all))[0], "@all", 'always');
is($reader->run("CALL pinpoint.wait('{t,p}', '$there', '1 h')")->rows->[0][0], '{t,p}', 'wait() returns at once');
is(join(' ', map { $_->[0] } @{ run_all($reader, "SELECT channel FROM pinpoint.channels_of('SELECT FROM t LEFT JOIN low USING (id)') ORDER BY 1")->rows }),
	'p t', 'channels_of()');
is($reader->value($watched), 'parent parent triggers, parts p triggers, t t triggers', 'watched');
$node->stop;
$standby->promote;
is((changed($reader, $_, @all))[0], "@all", 'after the promotion, positions of both servers are unknown') foreach $position, $there;
$position = $reader->value('SELECT pinpoint.position()');
is((changed($reader, $position, @all))[0], '', 'new ones are known');
run_all($reader, "COMMIT PREPARED 'over the promotion'");
is((changed($reader, $position, @all))[0], "@all", 'until a transaction ends that was prepared before: its row is lost');
is(changes($reader, $reader, \@all, 'INSERT INTO parent VALUES (8)'), 'parent', 'changes count');

# ---- Logical replication: apply workers fire triggers for rows only

my $subscriber = managed_node('subscriber');
my $sub = app($subscriber);
run_all($sub, @tables);
$standby->safe_psql('managed', 'CREATE PUBLICATION pub FOR TABLE t, parts, low, parent, child');
$position = $sub->value('SELECT pinpoint.position()');
$subscriber->safe_psql('managed', "CREATE SUBSCRIPTION sub CONNECTION '" . $standby->connstr . " dbname=managed' PUBLICATION pub");
$subscriber->wait_for_subscription_sync($standby, 'sub', 'managed');
is((changed($sub, $position, @all))[0], 't p parent', 'the first copy of the tables') or diag $sub->value('SELECT count(*) FROM low');
my $listener = app($subscriber);
run_all($listener, "SELECT pinpoint.listen('t', 'p', 'parent')");

# Which channels positions name, and listeners receive, when a statement is applied.
sub applied
{
	my ($expected, $name, @statements) = @_;
	my $before = $sub->value('SELECT pinpoint.position()');
	$listener->take_notifications;
	run_all($reader, @statements);
	$standby->wait_for_catchup('sub');
	my ($changed) = changed($sub, $before, @all);
	$changed = $expected if $changed eq "@all" && grep { /^TRUNCATE/ } @statements;
	is($changed, $expected, "applied: $name");
	is(heard($listener, $sub, @all), $expected, "applied: $name: listeners");
	return;
}
applied('t', 'INSERT', 'INSERT INTO t VALUES (20, 20)');
applied('t', 'UPDATE', 'UPDATE t SET v = 21 WHERE id = 20');
applied('t', 'DELETE', 'DELETE FROM t WHERE id = 20');
applied('p', 'a partition', 'INSERT INTO parts VALUES (20, 20)');
applied('parent', 'a child', 'INSERT INTO child VALUES (20)');
applied('t parent', 'two tables', 'BEGIN', 'INSERT INTO t VALUES (22, 22)', 'INSERT INTO parent VALUES (22)', 'COMMIT');
applied('t', 'TRUNCATE', 'TRUNCATE t');
# A partition that came later, on both sides, and has no trigger yet but the copy of that of its table.
run_all($_, 'CREATE TABLE high PARTITION OF parts FOR VALUES FROM (100) TO (200)') foreach $reader, $sub;
$standby->safe_psql('managed', 'ALTER PUBLICATION pub ADD TABLE high');
$subscriber->safe_psql('managed', 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
$subscriber->wait_for_subscription_sync($standby, 'sub', 'managed');
run_all($sub, "SELECT changed FROM pinpoint.changed_since(NULL, 't')");
applied('p', 'a new partition', 'INSERT INTO high VALUES (120, 20)');
$subscriber->safe_psql('managed', 'DROP SUBSCRIPTION sub');

done_testing();
