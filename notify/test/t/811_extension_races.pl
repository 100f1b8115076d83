# CREATE EXTENSION and DROP EXTENSION beside transactions that change labels: after both,
# the tables with a label are watched, or there is neither a label nor the extension.  And
# each transaction that changed a watched table is notified.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node = new_node('main', conf => "max_prepared_transactions = 2\nfsync = off", extension => 0);
my ($changer, $other, $admin, $monitor, $listener) = connect_many($node, 5);
$admin->run($_) for 'CREATE TABLE u (id int)', 'CREATE TABLE t (id int)';
$listener->run("LISTEN $_") for qw(a b u fence);

# Sends a statement, which has to wait for the session or prepared transaction with this
# process ID.  The number tells it from earlier ones in pg_stat_activity.
my $number = 0;
sub waits_for
{
	my ($session, $pid, $name, $statement) = @_;
	$statement .= ' -- ' . ++$number;
	$session->send_query($statement);
	wait_until(sub {
		$monitor->value("SELECT query = \$\$$statement\$\$ AND (wait_event_type = 'Lock' OR state <> 'active')
			FROM pg_stat_activity WHERE pid = " . $session->pid) eq 't' }) or die 'the statement neither ends nor waits for a lock';
	is($monitor->value('SELECT pg_blocking_pids(' . $session->pid . ')'), "{$pid}", $name);
	return;
}

sub is_done
{
	my ($session, $name) = @_;
	is($session->result->error, undef, $name);
	return;
}

# All labels, and whether the extension exists.
sub state
{
	return $monitor->value(q{SELECT concat_ws(' ',
		(SELECT string_agg(objoid::regclass || ':' || label, ' ' ORDER BY label) FROM pg_seclabel),
		(SELECT 'extension' FROM pg_extension WHERE extname = 'pg_pinpoint'))});
}

# The channels that were notified until now.  The extension exists: without it, the fence
# uses PostgreSQL's queue, so its order says nothing.
sub notified
{
	$monitor->run('NOTIFY fence');
	return join ' ', sort map { $_->{channel} } $listener->notifications_until('fence', '');
}

# Begins a case: the extension exists or not, and the tables have these labels.
sub begin_with
{
	my ($extension, %labels) = @_;
	$admin->run($_) for 'CREATE EXTENSION IF NOT EXISTS pg_pinpoint', map { "SELECT pinpoint.unwatch('$_')" } qw(u t);
	notified();
	$admin->run($_) for 'DROP EXTENSION pg_pinpoint',
	  map { "SECURITY LABEL FOR pinpoint ON TABLE $_ IS '$labels{$_}'" } grep { $labels{$_} } qw(u t);
	return if !$extension;
	$admin->run('CREATE EXTENSION pg_pinpoint');
	notified();
	return;
}

my $label_a = q{SECURITY LABEL FOR pinpoint ON TABLE t IS 'a'};
my $watch_a = q{SELECT pinpoint.watch('t', 'a')};
my $create  = 'CREATE EXTENSION pg_pinpoint';
my $drop    = 'DROP EXTENSION pg_pinpoint';

# ---- CREATE EXTENSION

begin_with(0);
$changer->run($_) for 'BEGIN', $label_a, 'INSERT INTO t VALUES (1)';
waits_for($admin, $changer->pid, 'CREATE EXTENSION waits for a transaction that sets a label', $create);
$changer->run('COMMIT');
is_done($admin, 'and goes on');
is(notified(), 'a', 'the channel is notified');
is(state(), 't:a extension', 'and the table watched');

begin_with(0);
$changer->run($_) for 'BEGIN', $label_a, q{PREPARE TRANSACTION 'p'};
waits_for($admin, 0, 'it waits for a prepared transaction', $create);
$changer->run(q{COMMIT PREPARED 'p'});
is_done($admin, 'that is committed');
# The session of COMMIT PREPARED notifies it, too, if it finds the extension after the locks are gone.
like(notified(), qr/^a( a)?$/, 'and notifies the channel');

# CREATE EXTENSION waits for a writer, and then locks t, which is the second table in the
# catalog.
begin_with(0, u => 'u', t => 'b');
$other->run($_) for 'BEGIN', 'INSERT INTO u VALUES (1)';
waits_for($admin, $other->pid, 'CREATE EXTENSION waits for a writer', $create);
waits_for($changer, $admin->pid, 'SECURITY LABEL waits for CREATE EXTENSION', $label_a);
$other->run('COMMIT');
is_done($admin, 'CREATE EXTENSION goes on');
is_done($changer, 'and SECURITY LABEL');
is(notified(), 'a b b u', 'both notify');
is(state(), 't:a u:u extension', 'and both are done');

# ---- DROP EXTENSION is the second one

begin_with(1);
$changer->run($_) for 'BEGIN', $watch_a;
waits_for($admin, $changer->pid, 'DROP EXTENSION waits for watch()', $drop);
$changer->run('COMMIT');
is_done($admin, 'and goes on');
is(state(), '', 'no label is left');

begin_with(1, t => 'b');
$changer->run($_) for 'BEGIN', $watch_a;
waits_for($admin, $changer->pid, 'DROP EXTENSION waits for another channel', $drop);
$changer->run('COMMIT');
is_done($admin, 'and does not fail');
is(state(), '', 'the label is deleted');

begin_with(1, u => 'u');
$changer->run($_) for 'BEGIN', $watch_a;
waits_for($admin, $changer->pid, 'while DROP EXTENSION waits', $drop);
$other->run(q{SET lock_timeout = '1s'});
is($other->query($_)->error, undef, "no wait: $_") for q{SELECT pinpoint.watch('u', 'u')}, 'INSERT INTO u VALUES (1)';
$other->run('RESET lock_timeout');
$changer->run('ROLLBACK');
is_done($admin, 'DROP EXTENSION goes on');

# ---- DROP EXTENSION is the first one

# It has ended so; then watch() fails or not.
foreach my $case (
	[ 'watch()',                       ['COMMIT'],                        '42704', '' ],
	[ 'watch() after a rollback',      ['ROLLBACK'],                      undef,   't:a u:u extension' ],
	[ 'watch() with a new extension',  [ $create, 'COMMIT' ],             undef,   't:a extension' ],
	[ 'watch() of a prepared DROP',    [q{PREPARE TRANSACTION 'p'}, q{COMMIT PREPARED 'p'}], '42704', '' ])
{
	my ($name, $ends, $sqlstate, $state) = @$case;
	begin_with(1, u => 'u');
	$admin->run($_) for 'BEGIN', $drop;
	waits_for($changer, $admin->pid, "$name waits for DROP EXTENSION", $watch_a);
	$admin->run($_) for @$ends;
	my $error = $changer->result->error;
	is($error && $error->{C}, $sqlstate, "$name: " . ($sqlstate // 'no') . ' error');
	is($error->{M}, 'extension "pg_pinpoint" does not exist', 'as PostgreSQL reports it') if $sqlstate;
	is(state(), $state, 'labels and extension');
}

begin_with(1, t => 'b');
$admin->run($_) for 'BEGIN', $drop;
waits_for($changer, $admin->pid, 'SECURITY LABEL waits for DROP EXTENSION', $label_a);
$admin->run('COMMIT');
is_done($changer, 'and is executed without the extension');
is(state(), 't:a', 'its label has no effect');
$admin->run($create);
is(notified(), 'a b', 'until the extension is created');

$admin->run($_) for 'BEGIN', $drop;
waits_for($changer, $admin->pid, 'unwatch() waits for DROP EXTENSION', q{SELECT pinpoint.unwatch('t')});
$admin->run('COMMIT');
is_deeply($changer->result->rows, [ ['f'] ], 'and finds no label');

# ---- DROP TABLE deletes a label, too

begin_with(1, t => 'b');
$changer->run($_) for 'BEGIN', 'DROP TABLE t';
waits_for($admin, $changer->pid, 'DROP EXTENSION waits for DROP TABLE', $drop);
$changer->run('ROLLBACK');
is_done($admin, 'that is rolled back');
is(state(), '', 'and deletes the label');

begin_with(1, t => 'b');
$changer->run($_) for 'BEGIN', 'DROP TABLE t';
waits_for($admin, $changer->pid, 'DROP EXTENSION waits for DROP TABLE', $drop);
$changer->run('COMMIT');
is_done($admin, 'that is committed');

$admin->run('CREATE TABLE t (id int)');
begin_with(1, t => 'b');
$admin->run($_) for 'BEGIN', $drop;
waits_for($changer, $admin->pid, 'DROP TABLE waits for DROP EXTENSION', 'DROP TABLE t');
$admin->run('COMMIT');
is_done($changer, 'and does not fail');
$admin->run('CREATE TABLE t (id int)');

begin_with(0, t => 'b');
$changer->run($_) for 'BEGIN', 'DROP TABLE t';
waits_for($admin, $changer->pid, 'CREATE EXTENSION waits for DROP TABLE', $create);
$changer->run('COMMIT');
is_done($admin, 'and does not fail');
is(state(), 'extension', 'although its label is gone');
$admin->run('CREATE TABLE t (id int)');

# ---- labels that are set in parallel, for instance by pg_restore

begin_with(0);
$changer->run($_) for 'BEGIN', $label_a;
is($other->query(q{SET lock_timeout = '1s'; SECURITY LABEL FOR pinpoint ON TABLE u IS 'u'})->error,
	undef, 'labels of two tables can be set at the same time');
$changer->run('COMMIT');
is($admin->query("BEGIN; $create; $watch_a; $drop; COMMIT")->error, undef, 'all in one transaction');

$_->close for $changer, $other, $admin, $monitor, $listener;
done_testing();
