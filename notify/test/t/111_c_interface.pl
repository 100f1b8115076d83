# LISTEN and UNLISTEN of extensions that call PostgreSQL's C functions: they begin and
# end as those of the SQL commands.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node     = new_node('main', conf => 'max_prepared_transactions = 1');
my $library  = compile_interference();
my $observer = connect_to($node);
my $sender   = connect_to($node);
$observer->run(
	"CREATE FUNCTION c_$_(text) RETURNS void LANGUAGE c AS '$library', 'interference_$_'")
  for qw(listen unlisten notify);
$observer->run(
	"CREATE FUNCTION c_unlisten_all() RETURNS void LANGUAGE c AS '$library', 'interference_unlisten_all'");

# All notifications up to one that is sent now.
sub notified
{
	my ($listener, $channel) = @_;
	$sender->run("NOTIFY $channel, 'fence'");
	return all_as_text($listener->notifications_until($channel, 'fence'));
}

# ---- LISTEN

foreach my $first (1, 0)
{
	my $way = $first ? 'the first LISTEN of a session' : 'another LISTEN';
	my $listener = connect_to($node);
	$listener->run('LISTEN other') if !$first;

	$listener->run("SELECT c_listen('a')");
	$sender->run("NOTIFY a, '1'; SELECT pg_notify('a', '2')");
	is_deeply(all_as_text($listener->wait_for(2)), [ 'a/1', 'a/2' ], "$way from C");
	is_deeply(
		{ map { $_ => stat_listener($observer, $listener->pid)->{$_} } qw(channels wakes_for_all) },
		{ channels => $first ? 1 : 2, wakes_for_all => 'f' },
		'it is found by its channel');

	# In one transaction with a notification of its own.
	is($listener->query("BEGIN; SELECT c_listen('b'); NOTIFY b, 'own'; COMMIT")->types,
		'CTDCCCAZ', 'its own notification arrives before the end of the command');
	is_deeply(all_as_text($listener->take_notifications), ['b/own'], 'once');

	# It begins before the commit.
	$listener->run("LOAD '$library'");
	begin_and_pause($observer, $listener, 'commit', "SELECT c_listen('c'), c_listen('d')");
	$sender->run("NOTIFY c, '1'; NOTIFY d, '2'; NOTIFY nobody");
	open_gate();
	$listener->result;
	$listener->run("SET interference.pause = 'nowhere'");
	is_deeply(all_as_text($listener->wait_for(2)), [ 'c/1', 'd/2' ],
		'what is sent after the commit record arrives');

	# What is rolled back leaves nothing.
	my $before = stat_listener($observer, $listener->pid);
	$listener->run("BEGIN; SELECT c_listen('no'); ROLLBACK");
	$listener->run("BEGIN; SAVEPOINT s; SELECT c_listen('no'); ROLLBACK TO s; SELECT c_listen('e'); COMMIT");
	is($listener->query(
			"BEGIN; SELECT c_listen('no'); CREATE TEMP TABLE once (i int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO once VALUES (1), (1); COMMIT")->error->{C},
		'23505', 'a commit fails');
	is(stat_listener($observer, $listener->pid)->{channels}, $before->{channels} + 1,
		'the channels of what was not rolled back');
	$sender->run("NOTIFY no, '1'; NOTIFY e, '2'");
	is_deeply(notified($listener, 'a'), ['e/2'], 'and no others');

	# A failure of the transaction that takes the channels over.
	$listener->run("SET interference.fail_idle = 1");
	is($listener->query("SELECT c_listen('f')")->error->{M}, 'interference',
		'the small transaction fails');
	$sender->run("NOTIFY f, '1'");
	is_deeply(notified($listener, 'a'), ['f/1'], 'the next one continues');

	# ---- UNLISTEN, by the command and from C, and DISCARD

	$listener->run('UNLISTEN b');
	$sender->run("NOTIFY b; NOTIFY c, '2'");
	is_deeply(notified($listener, 'a'), ['c/2'], 'UNLISTEN of a channel from C');
	$listener->run("SELECT c_unlisten('c')");
	$sender->run("NOTIFY c; NOTIFY d, '3'");
	is_deeply(notified($listener, 'a'), ['d/3'], 'UNLISTEN from C');
	is($observer->value(q{SELECT count(*) FROM pinpoint.stat_channels WHERE channel IN ('b', 'c')}),
		0, 'both have left the map');

	# A LISTEN from C, and UNLISTEN in the next transaction, before the session is idle.
	$listener->run("DO \$\$ BEGIN PERFORM c_listen('g'); COMMIT; UNLISTEN g; COMMIT; END \$\$");
	$sender->run('NOTIFY g');
	is_deeply(notified($listener, 'a'), [], 'LISTEN from C and UNLISTEN in one procedure');

	$listener->run('SELECT c_unlisten_all()');
	server_is_clean($observer, 'UNLISTEN * from C');
	$listener->run("LISTEN a; SELECT c_listen('b')");
	$sender->run("NOTIFY a, '1'");
	$listener->wait_for(1);
	$listener->run('DISCARD ALL');
	server_is_clean($observer, 'DISCARD ALL');
	$listener->run("SELECT c_listen('b')");
	$listener->close;
	server_is_clean($observer, 'the end of a session');
}

# ---- only that

# Notifications from C do not make a session a listener.
$sender->run("LOAD '$library'");
begin_and_pause($observer, $sender, 'commit', "SELECT c_notify('a')");
is($observer->value('SELECT count(*) FROM pinpoint.stat_listeners'), 0,
	'a sender in C does not listen');
open_gate();
$sender->result;
$sender->run("SET interference.pause = 'nowhere'");
$sender->run('LISTEN a; UNLISTEN a');
begin_and_pause($observer, $sender, 'commit', "SELECT c_notify('a')");
is($observer->value('SELECT count(*) FROM pinpoint.stat_listeners'), 0,
	'nor one that has listened before');
open_gate();
$sender->result;
$sender->run("SET interference.pause = 'nowhere'");

# With both, it does.
my $both = connect_to($node);
$both->run("BEGIN; SELECT c_notify('a'); SELECT c_listen('a'); COMMIT");
is_deeply(all_as_text($both->wait_for(1)), ['a/'], 'LISTEN and NOTIFY from C in one transaction');
$sender->run("NOTIFY a, '1'");
is_deeply(all_as_text($both->wait_for(1)), ['a/1'], 'and later ones arrive');

# A listener in C that sends with many channels, and one with pinpoint.enabled off.
$sender->run("SELECT pg_notify('many' || i, '') FROM generate_series(1, 100) i WHERE i <> 50");
$sender->run("SELECT pg_notify(CASE i WHEN 50 THEN 'a' ELSE 'many' || i END, '50') FROM generate_series(1, 100) i");
is_deeply(all_as_text($both->wait_for(1)), ['a/50'], 'a batch with many channels');
$sender->run("SET pinpoint.enabled = off; NOTIFY a, 'off'; RESET pinpoint.enabled");
is_deeply(all_as_text($both->wait_for(1)), ['a/off'], "PostgreSQL's queue");

# A transaction with such a LISTEN cannot be prepared, as on stock PostgreSQL.
is($both->query("BEGIN; SELECT c_listen('p'); PREPARE TRANSACTION 'p'")->error->{C},
	'0A000', 'PREPARE TRANSACTION');
is_deeply(notified($both, 'a'), [], 'and the session is as before');

$both->close;

# ---- a background worker

$observer->run(
	"CREATE FUNCTION start_worker(text, text) RETURNS bool LANGUAGE c AS '$library', 'interference_start_worker'");
my $worker = q{FROM pg_stat_activity WHERE backend_type = 'interference'};
my $log    = -s $node->logfile;
is($observer->value("SELECT start_worker('work', '$library')"), 't', 'a worker starts');
ok(wait_until(sub {
			$observer->value(q{SELECT count(*) FROM pinpoint.stat_listeners
				WHERE pid = (SELECT pid } . $worker . q{) AND channels = 1 AND NOT wakes_for_all});
		}), 'and listens');
foreach my $payload ('first', 'second')
{
	$sender->run("NOTIFY work, '$payload'; NOTIFY other");
	ok(wait_until(sub { $node->log_contains(qr/NOTIFY for "work" payload "$payload"/, $log) }),
		"it receives the $payload notification");
}
ok(wait_until(sub { stat_queue($observer)->{used_bytes} == 0 }), 'and keeps nothing');
$observer->run("SELECT pg_terminate_backend(pid) $worker");
ok(wait_until(sub { !$observer->value("SELECT count(*) $worker") }), 'it ends');
server_is_clean($observer, 'nothing is left');

done_testing();
