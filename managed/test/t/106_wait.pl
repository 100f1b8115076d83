# pinpoint.wait(): when it returns, and what it holds while it waits.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use ManagedTest;
use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = managed_node('main');
my ($session, $writer, $waits) = map { app($node) } 1 .. 3;
run_all($session, 'CREATE TABLE t (id int)', 'CREATE TABLE u (id int)', 'CREATE TABLE parent (id int)',
	"SELECT pinpoint.watch('t'), pinpoint.watch('u'), pinpoint.watch('parent')");

# Begin a call.
sub begin_wait
{
	my ($who, $channels, $timeout) = @_;
	my $position = $who->value('SELECT pinpoint.position()');
	$who->send_query("CALL pinpoint.wait('{$channels}', '$position', $timeout)");
	return;
}

sub is_waiting
{
	my ($pid) = @_;
	return $session->value("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $pid") eq 't';
}

# ---- What ends it

foreach my $timeout ("'1 h'", 'NULL', "'infinity'")
{
	next if $timeout eq "'infinity'" && $node->pg_version < 17;
	begin_wait($waits, 't,parent', $timeout);
	ok(wait_until(sub { is_waiting($waits->pid) }), "it waits, timeout $timeout");
	run_all($writer, 'INSERT INTO u VALUES (1)', 'INSERT INTO t VALUES (1)');
	is_deeply($waits->result->rows->[0][0], '{t}', 'for a change');
}
begin_wait($waits, 't,parent', "'1 h'");
ok(wait_until(sub { is_waiting($waits->pid) }), 'it waits');
run_all($writer, 'BEGIN', 'INSERT INTO parent VALUES (1)');
ok(wait_until(sub { is_waiting($waits->pid) }), 'a change that is not committed does not end it');
run_all($writer, 'COMMIT');
is($waits->result->rows->[0][0], '{parent}', 'its commit does');
begin_wait($waits, 'parent', "'1 h'");
ok(wait_until(sub { is_waiting($waits->pid) }), 'it waits');
run_all($writer, 'ALTER TABLE t ADD v int');
is($waits->result->rows->[0][0], '{parent}', 'a change of a definition ends it');
begin_wait($waits, 'parent', "'1 h'");
ok(wait_until(sub { is_waiting($waits->pid) }), 'it waits');
run_all($writer, 'CREATE TABLE child () INHERITS (parent)', 'INSERT INTO child VALUES (1)');
is($waits->result->rows->[0][0], '{parent}', 'a new child');
is($session->value('SELECT bool_and(armed) FROM pinpoint.tree'), 't', 'which has its triggers then');

my $call = sub { return $session->query("CALL pinpoint.wait($_[0])"); };
my $position = $session->value('SELECT pinpoint.position()');
is($call->("'{t,u}', '$position', '$_'")->rows->[0][0], '{}', "the timeout is over: $_") foreach '0', '-1 day', '20 ms';
is($call->("'{}', '$position', '20 ms'")->rows->[0][0], '{}', 'no channels');
is($call->("'{t,u}', NULL, '1 h'")->rows->[0][0], '{t,u}', 'no position');
is($call->("'{}', NULL, '1 h'")->rows->[0][0], '{}', 'no position and no channels');
is($call->("'{t,u}', '1-2-3-none', NULL")->rows->[0][0], '{t,u}', 'an unknown position');
is($call->("'{t,unfed}', '$position', NULL")->rows->[0][0], '{unfed}', 'a channel that nothing feeds');
my $next = $call->("'{t,unfed}', '$position'")->rows->[0][1];
is((changed($session, $next, 't', 'u'))[0], '', 'the result has the next position');
is(changes($session, $writer, [ 't', 'u' ], 'INSERT INTO u VALUES (7)'), 'u', 'a change after it');
is((changed($session, $next, 't', 'u'))[0], 'u', 'is one since the result');

# ---- Errors

is($call->($_->[0])->error->{C}, $_->[1], "an error: $_->[0]")
  foreach ["'{t}', 'nonsense'", '22P02'], ['NULL, NULL', '22004'], ["'{t,NULL}', NULL", '22004'], ["'{t,\"\"}', NULL", '22023'],
	["ARRAY[repeat('x', 64)], NULL", '22023'];
run_all($session, 'BEGIN');
is($call->("'{t}', NULL")->error->{C}, '2D000', 'in a transaction block');
run_all($session, 'ROLLBACK', 'SET default_transaction_isolation = "repeatable read"');
is($call->("'{t}', NULL")->error->{C}, '0A000', 'above READ COMMITTED');
run_all($session, 'RESET default_transaction_isolation', "SET statement_timeout = '200 ms'");
$position = $session->value('SELECT pinpoint.position()');
is($call->("'{t}', '$position', NULL")->error->{C}, '57014', 'cancelled');
run_all($session, 'RESET statement_timeout');
is($session->value('SELECT 1'), 1, 'the session goes on');

# ---- What it holds: no snapshot that is older than a moment, no lock

begin_wait($waits, 't', "'1 h'");
ok(wait_until(sub { is_waiting($waits->pid) }), 'it waits');
run_all($writer, 'INSERT INTO u VALUES (2)');
my $xid = $session->value('SELECT pg_snapshot_xmax(pg_current_snapshot())');
ok(wait_until(sub { $session->value('SELECT coalesce(max(age(backend_xmin)) < age(' . "'$xid'" . '::xid) + 1, true) FROM pg_stat_activity WHERE pid = ' . $waits->pid) eq 't' }),
	'its snapshot is replaced');
run_all($writer, 'BEGIN', 'LOCK TABLE u IN ACCESS EXCLUSIVE MODE NOWAIT', 'ROLLBACK');
is($session->value('SELECT count(*) FROM pg_locks WHERE locktype = ' . "'relation' AND mode <> 'AccessShareLock' AND pid = " . $waits->pid), 0, 'no lock');
run_all($session, 'SELECT pg_terminate_backend(' . $waits->pid . ')');
is($waits->result->error->{C}, '57P01', 'it can be terminated');

# ---- Many

my @many = map { app($node) } 1 .. 20;
begin_wait($_, 't', "'1 h'") foreach @many;
ok(wait_until(sub { $session->value(q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL pinpoint.wait%' AND wait_event = 'PgSleep'}) >= 15 }), 'many wait');
run_all($writer, 'INSERT INTO t VALUES (5)');
is(scalar(grep { $_->result->rows->[0][0] eq '{t}' } @many), 20, 'all are told');

done_testing();
