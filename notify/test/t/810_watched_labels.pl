# A session knows the labels and parents of the tables that it changes.  It reads those of
# a table again after a change of this table, and of no other one.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => "max_prepared_transactions = 2\nfsync = off");

my $setup = <<'EOS';
CREATE TABLE t (id int)

CREATE TABLE other (id int)

CREATE TABLE parts (id int) PARTITION BY LIST (id)

CREATE TABLE grandparent ()

CREATE TABLE parent ()

CREATE TABLE child ()

CREATE FUNCTION reads() RETURNS bigint[] LANGUAGE sql VOLATILE AS $$
	SELECT ARRAY[seq_scan, idx_scan] FROM pg_stat_xact_sys_tables WHERE relname = 'pg_seclabel' $$

CREATE PROCEDURE measure(statement text, INOUT scans text DEFAULT '') LANGUAGE plpgsql AS $$
DECLARE
	before bigint[] := reads();
	after bigint[];
BEGIN
	EXECUTE statement;
	COMMIT;
	after := reads();
	scans := format('%s whole, %s by index', after[1] - before[1], after[2] - before[2]);
END $$
EOS

# How often a statement and its commit read pg_seclabel.  (PostgreSQL does not add counts to
# its statistics before the statement CALL ends.)
sub reads
{
	my ($session, $statement) = @_;
	return $session->value("CALL measure(\$statement\$ $statement \$statement\$)");
}

my ($owner, $writer, $listener) = connect_many($node, 3);
$owner->run($_) foreach split /\n\n/, $setup;
$listener->run("LISTEN $_") foreach qw(a b c p q x fence);

# The channels that statements of a session notify.
sub channels_of
{
	my ($session, @statements) = @_;
	$session->run($_) foreach @statements, 'NOTIFY fence';
	return join ' ', sort map { $_->{channel} } $listener->notifications_until('fence', '');
}

# The same for a change of a table by the long-lived session.
sub writer_notifies
{
	my ($table) = @_;
	return channels_of($writer, "INSERT INTO $table " . ($table =~ /^(t|other|parts)$/ ? 'VALUES (1)' : 'DEFAULT VALUES'));
}

# The owner executes statements, whose own notifications do not matter.
sub owner_runs
{
	channels_of($owner, @_);
	return;
}

# ---- a label is read when it is needed

my $insert = 'INSERT INTO t VALUES (1)';
is(reads($writer, $insert), '1 whole, 0 by index', 'the first commit asks whether anything is watched');
is(reads($writer, $insert), '0 whole, 0 by index', 'the second one knows');
owner_runs(q{SELECT pinpoint.watch('other', 'x')});
is(reads($writer, $insert), '1 whole, 1 by index', 'the first watched table: ask again, and read the label of the changed table');
foreach my $statement (q{SELECT pinpoint.unwatch('other')}, q{SELECT pinpoint.watch('other', 'x')}, q{SELECT pinpoint.watch('other', 'c')},
	q{SECURITY LABEL FOR pinpoint ON TABLE other IS 'x'}, 'ALTER TABLE other RENAME TO another', 'ALTER TABLE another RENAME TO other')
{
	owner_runs($statement);
	is(reads($writer, $insert), '0 whole, 0 by index', "no label is read after $statement");
}
owner_runs(q{SELECT pinpoint.watch('t', 'a')});
is(reads($writer, $insert), '0 whole, 1 by index', 'that of the watched table is read');
is(reads($writer, $insert), '0 whole, 0 by index', 'once');
owner_runs('ANALYZE t');
is(reads($writer, $insert), '0 whole, 1 by index', 'and after ANALYZE');

# ---- DROP of many tables

$owner->run($_) foreach split /\n\n/, <<'EOS';
CREATE SCHEMA many

DO $$ BEGIN
	FOR i IN 1 .. 40 LOOP
		EXECUTE format('CREATE TABLE many.d%s ()', i);
		PERFORM pinpoint.watch(format('many.d%s', i), CASE i % 2 WHEN 0 THEN 'b' ELSE 'c' END);
	END LOOP;
END $$
EOS
my $tables = join ', ', map { "many.d$_" } 1 .. 20;
owner_runs();
like(reads($owner, "DROP TABLE $tables"), qr/^0 whole/, 'DROP of many tables reads no other labels');
like(reads($owner, 'DROP SCHEMA many CASCADE'), qr/^0 whole/, 'nor does DROP SCHEMA');
is(channels_of($owner), 'b b c c', 'and both notify');

# ---- another session sees each change

is(writer_notifies('t'), 'a', 'watched');
owner_runs(q{SELECT pinpoint.watch('t', 'b')});
is(writer_notifies('t'), 'b', 'another channel');
owner_runs(q{SECURITY LABEL FOR pinpoint ON TABLE t IS 'c'});
is(writer_notifies('t'), 'c', 'SECURITY LABEL');
owner_runs('ALTER TABLE t RENAME TO u', 'CREATE TABLE t (id int)');
is(writer_notifies('u'), 'c', 'renamed');
is(writer_notifies('t'), '', 'another table of the same name');
owner_runs('DROP TABLE t', 'ALTER TABLE u RENAME TO t');
owner_runs('BEGIN', 'SAVEPOINT s', q{SELECT pinpoint.watch('t', 'x')}, 'ROLLBACK TO s', 'COMMIT');
is(writer_notifies('t'), 'c', 'rolled back to a savepoint');
owner_runs('BEGIN', q{SELECT pinpoint.unwatch('t')}, 'ROLLBACK');
is(writer_notifies('t'), 'c', 'rolled back');
owner_runs('BEGIN', q{SELECT pinpoint.watch('t', 'b')}, q{PREPARE TRANSACTION 'p'});
owner_runs(q{COMMIT PREPARED 'p'});
is(writer_notifies('t'), 'b', 'prepared');
owner_runs('DO $$ BEGIN FOR i IN 1 .. 800 LOOP CREATE TEMP TABLE temporary (); DROP TABLE temporary; END LOOP; END $$',
	q{SELECT pinpoint.watch('t', 'a')});
is(writer_notifies('t'), 'a', 'many messages');
owner_runs(q{SELECT pinpoint.unwatch('t')});
is(writer_notifies('t'), '', 'no longer watched');
owner_runs(q{SELECT pinpoint.watch('t', 'a')});
is(writer_notifies('t'), 'a', 'again');
owner_runs('DROP TABLE t', 'CREATE TABLE t (id int)');
is(writer_notifies('t'), '', 'dropped and created');
owner_runs(q{SELECT pinpoint.watch('t', 'b')});
is(writer_notifies('t'), 'b', 'and watched');

# ---- the session itself changes labels, and knows them before they are committed

my $know = 'ALTER TABLE t SET (fillfactor = 90)';
is(channels_of($writer, 'BEGIN', q{SELECT pinpoint.watch('t', 'x')}, $know, 'ROLLBACK', $insert), 'b', 'rolled back by itself');
is(channels_of($writer, 'BEGIN', 'SAVEPOINT s', q{SELECT pinpoint.watch('t', 'x')}, $know, 'ROLLBACK TO s', $insert, 'COMMIT'),
	'b', 'to a savepoint');
is(channels_of($writer, 'BEGIN', 'SAVEPOINT s', q{SELECT pinpoint.watch('t', 'c')}, $know, 'RELEASE s', $insert, 'COMMIT'),
	'b c', 'released');
is(writer_notifies('t'), 'c', 'committed');
is(channels_of($writer, 'BEGIN', q{SELECT pinpoint.unwatch('t')}, $know, $insert, 'COMMIT'), 'c', 'unwatched');
is(writer_notifies('t'), '', 'and not notified');

# ---- partitions and children

owner_runs(q{SELECT pinpoint.watch('parts', 'p')});
is(writer_notifies('t'), '', 'not a partition');
owner_runs('ALTER TABLE parts ATTACH PARTITION t FOR VALUES IN (1)');
is(writer_notifies('t'), 'p', 'a partition');
owner_runs(q{SELECT pinpoint.watch('parts', 'q')});
is(writer_notifies('t'), 'q', 'the channel of the parent');
is(writer_notifies('parts'), 'q', 'by the parent');
owner_runs('ALTER TABLE parts DETACH PARTITION t');
is(writer_notifies('t'), '', 'detached');
owner_runs(q{SELECT pinpoint.watch('parent', 'p')});
is(writer_notifies('child'), '', 'not a child');
owner_runs('ALTER TABLE child INHERIT parent');
is(writer_notifies('child'), 'p', 'a child');
owner_runs('ALTER TABLE parent INHERIT grandparent', q{SELECT pinpoint.watch('grandparent', 'q')});
is(writer_notifies('child'), 'p q', 'with two ancestors');
owner_runs(q{SELECT pinpoint.unwatch('parent')});
is(writer_notifies('child'), 'q', 'one of them watched');
owner_runs('ALTER TABLE parent NO INHERIT grandparent');
is(writer_notifies('child'), '', 'none');
owner_runs(q{SELECT pinpoint.watch('parent', 'p')});
is(channels_of($writer, 'BEGIN', 'CREATE TABLE created ()', 'ALTER TABLE created SET (fillfactor = 90)',
		'ALTER TABLE created INHERIT parent', 'INSERT INTO created DEFAULT VALUES', 'COMMIT'),
	'p', 'a child that the session has created');

# A table gets a parent while nothing is watched, as another session sees it that is not a
# long-lived one.
owner_runs('ALTER TABLE child NO INHERIT parent', q{SELECT count(pinpoint.unwatch(relation)) FROM pinpoint.watched});
is(writer_notifies('child'), '', 'nothing is watched');
my $other = connect_to($node);
$other->run('ALTER TABLE child INHERIT parent');
$other->close;
owner_runs(q{SELECT pinpoint.watch('parent', 'p')});
is(writer_notifies('child'), 'p', 'a child since nothing was watched');

# ---- the extension is dropped and created

owner_runs(q{SELECT pinpoint.watch('t', 'a')});
is(writer_notifies('t'), 'a', 'watched');

# Afterwards, a notification uses PostgreSQL's queue, so its order says nothing.
$owner->run('DROP EXTENSION pg_pinpoint');
is(join(' ', sort map { $_->{channel} } $listener->wait_for(2)), 'a p', 'DROP EXTENSION notifies');
is(reads($writer, $insert), '0 whole, 0 by index', 'without the extension, no label is read');
is(writer_notifies('t'), '', 'and nothing is notified');
$owner->run('CREATE EXTENSION pg_pinpoint');
is(writer_notifies('t'), '', 'nor when it is created');
owner_runs(q{SELECT pinpoint.watch('t', 'b')});
is(writer_notifies('t'), 'b', 'until watch()');
is(writer_notifies('child'), '', 'other labels are gone');
owner_runs('DROP EXTENSION pg_pinpoint', 'ALTER TABLE child NO INHERIT parent', 'ALTER TABLE child INHERIT grandparent',
	'CREATE EXTENSION pg_pinpoint', q{SELECT pinpoint.watch('grandparent', 'q')});
is(writer_notifies('t'), '', 'dropped and created: its label is gone');
is(writer_notifies('child'), 'q', 'its new parent is known');

# ---- a table has a label before the extension is created

$owner->run('DROP EXTENSION pg_pinpoint');
is(as_text($listener->wait_for(1)), 'q/', 'DROP EXTENSION notifies');
owner_runs(q{SECURITY LABEL FOR pinpoint ON TABLE t IS 'a'});
is(writer_notifies('t'), '', 'a label without the extension notifies nothing');
$writer->run("BEGIN; $insert");
$owner->send_query('CREATE EXTENSION pg_pinpoint');
my $monitor = connect_to($node);
ok(wait_until(sub {
	$monitor->value("SELECT wait_event_type = 'Lock' OR state = 'idle' FROM pg_stat_activity
		WHERE pid = @{[$owner->pid]} AND query LIKE 'CREATE EXTENSION%'") eq 't' }), 'CREATE EXTENSION has ended or waits');
is($monitor->value('SELECT pg_blocking_pids(' . $owner->pid . ')'), '{' . $writer->pid . '}', 'it waits for the transaction that has changed the table');
$monitor->close;
$writer->run('COMMIT');
is($owner->result->error, undef, 'and is over then');
is(channels_of($owner), 'a', 'the channel is notified: the table may have changed before');
is(writer_notifies('t'), 'a', 'it is watched');
owner_runs(q{SELECT pinpoint.watch('grandparent', 'q')});

# ---- a dump is restored below a session

owner_runs(q{SELECT pinpoint.watch('t', 'a')});
is(writer_notifies('t'), 'a', 'watched');
my $dump = "$PostgreSQL::Test::Utils::tmp_check/labels.sql";
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('postgres') ], 'pg_dump');
$owner->run('CREATE DATABASE restored');
my $session = connect_to($node, dbname => 'restored');
$session->run($_) foreach split /\n\n/, $setup;
is(reads($session, 'INSERT INTO other VALUES (1)'), '0 whole, 0 by index', 'a database without the extension');
$session->run('DROP TABLE t, other, parts, grandparent, parent, child');
$session->run('DROP FUNCTION reads; DROP PROCEDURE measure');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $node->connstr('restored') ], 'restore');
$session->run('LISTEN a; LISTEN q');
$session->run($insert);
is_deeply(all_as_text($session->take_notifications), ['a/'], 'the session notifies a restored table');
$session->run('INSERT INTO child DEFAULT VALUES');
is_deeply(all_as_text($session->take_notifications), ['q/'], 'and a restored child');
$session->close;

# ---- pg_seclabel is locked, for instance by VACUUM FULL

$owner->run($_) foreach 'CREATE DATABASE plain', 'ALTER SYSTEM SET lock_timeout = 1000', 'SELECT pg_reload_conf()';
$session = connect_to($node, dbname => 'plain');
is($session->value('SHOW lock_timeout'), '1s', 'wait for locks no longer than a second');
foreach my $database ('plain', 'postgres')
{
	my $locker = connect_to($node, dbname => $database);
	$locker->run('BEGIN; LOCK pg_catalog.pg_seclabel');
	if ($database eq 'plain')
	{
		is($session->query('CREATE TABLE t ()')->error, undef, 'in a database without the extension, a commit does not wait');
	}
	else
	{
		is(writer_notifies('t'), 'a', 'nor does a session that knows the table');
	}
	$locker->close;
}

$_->close foreach $owner, $writer, $listener, $session;
done_testing();
