# Senders of every kind, and many at once.
#
# Needs: tcn pg_stat_statements

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

# pg_stat_statements must stand outside of pg_pinpoint to see a NOTIFY: the
# library named first is called last.
my $node = new_node('main',
	preload => 'pg_pinpoint, pg_stat_statements',
	conf    => 'pg_stat_statements.track = all');
my $observer = connect_to($node);
my $listener = connect_to($node);
my $sender   = connect_to($node);

# ---- C code that calls Async_Notify(): contrib/tcn

$observer->run(
	q{CREATE EXTENSION tcn;
	  CREATE TABLE watched (id int PRIMARY KEY, value text);
	  CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON watched
		FOR EACH ROW EXECUTE FUNCTION triggered_change_notification()});
$listener->run('LISTEN tcn; LISTEN a');

my $before = stat_queue($observer)->{published};
$sender->run(q{INSERT INTO watched VALUES (1, 'one'), (2, 'two')});
$sender->run(q{UPDATE watched SET value = 'zwei' WHERE id = 2});
$sender->run('DELETE FROM watched WHERE id = 1');
is_deeply(
	all_as_text($listener->wait_for(4)),
	[
		q{tcn/"watched",I,"id"='1'}, q{tcn/"watched",I,"id"='2'},
		q{tcn/"watched",U,"id"='2'}, q{tcn/"watched",D,"id"='1'}
	],
	'notifications from C code arrive');
is(stat_queue($observer)->{published}, $before, "by PostgreSQL's own way");

# Both ways in one transaction, and in both orders.
$sender->run(q{BEGIN; NOTIFY a, '1'; INSERT INTO watched VALUES (3); NOTIFY a, '2'; COMMIT});
is_deeply(
	[ sort @{ all_as_text($listener->wait_for(3)) } ],
	[ 'a/1', 'a/2', q{tcn/"watched",I,"id"='3'} ],
	'NOTIFY and C code in one transaction');
$sender->run(q{BEGIN; INSERT INTO watched VALUES (4); NOTIFY a, '3'; ROLLBACK});
$sender->run(q{BEGIN; INSERT INTO watched VALUES (5); SAVEPOINT s;
	INSERT INTO watched VALUES (6); NOTIFY a, '4'; ROLLBACK TO s; NOTIFY a, '5'; COMMIT});
is_deeply(
	[ sort @{ all_as_text($listener->wait_for(2)) } ],
	[ 'a/5', q{tcn/"watched",I,"id"='5'} ],
	'what was rolled back arrives by neither way');

$listener->run('BEGIN');
$sender->run(q{INSERT INTO watched VALUES (7); NOTIFY a, '6'});
is($listener->query('SELECT 1')->types, 'TDCZ', 'a listener in a transaction gets neither');
is($listener->query('COMMIT')->types, 'CAAZ', 'until it ends, then both');
$listener->take_notifications;

# One that listens to itself.
$sender->run('LISTEN tcn; LISTEN a');
is($sender->query(q{NOTIFY a, '7'; INSERT INTO watched VALUES (8)})->types,
	'CCAAZ', 'self-notification both ways');
$listener->wait_for(2);
$sender->run('UNLISTEN *');
$sender->take_notifications;

# ---- the function call protocol does not pass the planner

my $oid = $observer->value("SELECT 'pg_notify(text,text)'::regprocedure::oid");
$before = stat_queue($observer)->{published};
is($sender->send_function_call($oid, 'a', 'fast path')->result->types,
	'VZ', 'pg_notify() by the function call protocol');
is(as_text($listener->wait_for(1)), 'a/fast path', 'arrives');
is(stat_queue($observer)->{published}, $before, "by PostgreSQL's own way");

# ---- pg_stat_statements

$observer->run('CREATE EXTENSION pg_stat_statements');
$observer->run('SELECT pg_stat_statements_reset()');
$before = stat_queue($observer)->{published};
$sender->run('NOTIFY counted') for 1 .. 3;
$sender->run("DO 'BEGIN NOTIFY counted_inside; END'");
$sender->run("SELECT pg_notify('counted', '$_')") for 1 .. 2;
is(stat_queue($observer)->{published} - $before,
	6, 'NOTIFYs that go through the engine');
is_deeply(
	$observer->run(
		q{SELECT query, calls FROM pg_stat_statements
		   WHERE query ~ '^(NOTIFY|LISTEN|SELECT pg_notify)' ORDER BY query}
	)->rows,
	[
		[ 'NOTIFY counted',             3 ],
		[ 'NOTIFY counted_inside',      1 ],
		[ 'SELECT pg_notify($1, $2)',   2 ]
	],
	'are counted by pg_stat_statements');

# The server warns of the other order, in which nothing counts them.
my $warning = qr/WARNING:  a library that is loaded before pg_pinpoint does not see NOTIFY statements\n.*Put pg_pinpoint first/;
unlike(slurp_file($node->logfile), $warning, 'no warning if pg_pinpoint is loaded first');
my $other_order = new_node('other_order', preload => 'pg_stat_statements, pg_pinpoint');
like(slurp_file($other_order->logfile), $warning, 'a warning if another library is loaded before pg_pinpoint');
$other_order->stop;

# citus and plprofiler must be loaded before it.  What stands here for each of them
# is a library that installs the same hook.
my $libraries = PostgreSQL::Test::Utils::tempdir;
my ($hook, $plain) =
  map { $node->config_data('--pkglibdir') . "/$_.so" } 'pg_stat_statements', 'tcn';
symlink $hook, "$libraries/$_.so" or die "symlink: $!" for 'citus', 'plprofiler';
symlink $plain, "$libraries/other.so" or die "symlink: $!";
sub log_with_preload
{
	my ($name, $preload) = @_;
	my $started = new_node($name, preload => $preload,
		conf => "dynamic_library_path = '$libraries:\$libdir'");
	$started->stop;
	return slurp_file($started->logfile);
}
my $any_warning = qr/does not see NOTIFY statements/;
for my $first ('citus', 'plprofiler')
{
	unlike(log_with_preload("only_$first", "$first, pg_pinpoint, other"),
		$any_warning, "no warning if only $first is loaded before pg_pinpoint");
	like(log_with_preload("after_$first", "$first, other, pg_pinpoint"),
		qr/$any_warning\n.*Put pg_pinpoint directly after $first in/,
		"with $first, the hint names another place");
}

# ---- what a listener sees when it is told: rows and locks of the sender

$observer->run('CREATE TABLE queue (id int PRIMARY KEY)');
my $reader = connect_to($node);
$reader->run('LISTEN queue');
my (@invisible, @locked);
for my $id (1 .. 200)
{
	$sender->send_query("BEGIN; SELECT pg_advisory_xact_lock($id);"
		  . " INSERT INTO queue VALUES ($id); NOTIFY queue, '$id'; COMMIT");
	my ($notification) = $reader->wait_for(1);
	my $row = $reader->run(
		"SELECT pg_try_advisory_xact_lock($notification->{payload}), count(*)"
		  . " FROM queue WHERE id = $notification->{payload}")->rows->[0];
	push @locked,    $id if $row->[0] ne 't';
	push @invisible, $id if $row->[1] != 1;
	$sender->result->error and die 'the sender failed';
}
is_deeply(\@invisible, [], 'a listener that was told sees the row');
is_deeply(\@locked, [], 'and finds the locks of that transaction gone');
$reader->close;

# ---- many senders at once

# Each of them numbers its notifications, and says who it is.  Half use the
# statement, half the function; some transactions are rolled back.
my $clients      = 8;
my $transactions = 500;
my $directory    = PostgreSQL::Test::Utils::tempdir;
my %script = (
	'statement.sql' => q{
\set n :n + 1
BEGIN;
NOTIFY busy, ':client_id :n a';
NOTIFY busy, ':client_id :n b';
COMMIT;
},
	'function.sql' => q{
\set n :n + 1
BEGIN;
INSERT INTO numbered VALUES (:client_id, :n);
SELECT pg_notify('busy', ':client_id :n a');
SAVEPOINT s;
SELECT pg_notify('busy', 'never ' || pg_backend_pid());
ROLLBACK TO s;
SELECT pg_notify('busy', ':client_id :n b');
COMMIT;
BEGIN;
SELECT pg_notify('busy', 'never ' || pg_backend_pid());
ROLLBACK;
});
append_to_file("$directory/$_", $script{$_}) for keys %script;
$observer->run('CREATE TABLE numbered (client int, n int)');

my @listeners = connect_many($node, 4);
$_->run('LISTEN busy') for @listeners;

$node->command_ok(
	[
		'pgbench', '--no-vacuum', '--client', $clients, '--jobs', 2,
		'--transactions', $transactions, '--define', 'n=0',
		'--file', "$directory/statement.sql", '--file', "$directory/function.sql"
	],
	"$clients senders at once");
$sender->run("NOTIFY busy, 'end'");

my $expected = $clients * $transactions * 2;
foreach my $i (0 .. $#listeners)
{
	my @got = $listeners[$i]->notifications_until('busy', 'end');
	my (%last, %client_of, @wrong);
	foreach my $notification (@got)
	{
		my ($client, $n, $part) = $notification->{payload} =~ /^(\d+) (\d+) ([ab])$/
		  or push @wrong, $notification->{payload} and next;
		$client_of{ $notification->{pid} } //= $client;
		my $number = 2 * $n + ($part eq 'b');
		push @wrong, "$notification->{payload} from $notification->{pid}"
		  if $number != ($last{$client} // 1) + 1
		  || $client_of{ $notification->{pid} } != $client;
		$last{$client} = $number;
	}
	is(scalar @got, $expected, "listener $i: all notifications arrived");
	is_deeply(\@wrong, [],
		"listener $i: each sender's in its order, once, and in its name");
	is(scalar keys %client_of, $clients, "listener $i: of all senders");
}
is(stat_queue($observer)->{held_back}, 0, 'none is held back');

$_->close for @listeners, $listener;
server_is_clean($observer, 'nothing is left');

done_testing();
