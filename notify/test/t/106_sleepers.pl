# No listener is left asleep: whatever becomes of the transaction that PostgreSQL
# runs for a wakeup, the session is woken again, ends, or stops to listen; and
# it does not try for ever.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node     = new_node('main');
my $library  = compile_interference();
my $observer = connect_to($node);
my $sender   = connect_to($node);
$observer->run(
	"CREATE FUNCTION unlisten_all() RETURNS void LANGUAGE c AS '$library', 'interference_unlisten_all'");

sub new_listener
{
	my (@settings) = @_;
	my $listener = connect_to($node);
	$listener->run("LOAD '$library'");
	$listener->run("SET $_") for @settings;
	$listener->run('LISTEN a');
	return $listener;
}

# Senders look after those who sleep while they send.  Sends, once in a while,
# until a condition is true.
my $sent = 0;
sub send_until
{
	my ($condition) = @_;
	return wait_until(
		sub {
			$sent++;
			$sender->run("NOTIFY b, 'one of many'");
			return $condition->();
		});
}

# What a session was told so far, with the error that ended it, if one did.
sub told
{
	my ($session) = @_;
	$session->receive_available;
	return all_as_text($session->take_notifications);
}

# ---- the transaction fails

# While the client has nothing to do, PostgreSQL ends the session.
my $listener = new_listener('interference.fail_idle = 1');
$sender->run("NOTIFY a, 'idle'");
my $end = $listener->receive_until('EOF');
my @errors = map { $_->{fields} } grep { $_->{type} eq 'E' } $end->messages;
is_deeply([ map { $_->{C} } @errors ], [ 'XX000', '08P01' ], 'it fails in an idle session, which ends');
server_is_clean($observer, 'and nothing of it is left');

# At the end of a command of the client.
$listener = new_listener();
$listener->run('SET interference.fail_idle = 1; BEGIN');
$sender->run("NOTIFY a, 'in a transaction'");
my $result = $listener->query('COMMIT');
is($result->error->{M}, 'interference', 'it fails before ReadyForQuery');
is(as_text($listener->wait_for(1)), 'a/in a transaction', 'and is tried again, and succeeds');
$sender->run("NOTIFY a, 'second'");
is(as_text($listener->wait_for(1)), 'a/second', 'the session goes on');
ok(wait_until_idle($observer, $listener->pid), 'and keeps nothing');
$listener->close;

# Again and again.
$listener = new_listener();
$listener->run('SET interference.fail_idle = 1000000; BEGIN');
$sender->run("NOTIFY a, 'never'");
$listener->send_query('COMMIT');
$end = $listener->receive_until('EOF');
@errors = map { $_->{fields} } grep { $_->{type} eq 'E' } $end->messages;
cmp_ok(scalar @errors, '<', 10, 'a transaction that fails every time is not tried for ever');
is_deeply(
	[ @{ $errors[-1] }{qw(S C D H)} ],
	[ 'FATAL', '57P01',
		'The session could not read its notifications.',
		'Connect and LISTEN again, then read the current state of the data.'
	],
	'the session ends, and says why');
server_is_clean($observer, 'and nothing of it is left');

# Errors of the client's own commands count for nothing.
$listener = new_listener();
$listener->run('BEGIN');
$sender->run("NOTIFY a, 'meanwhile'");
for (1 .. 20)
{
	$listener->query($_) for 'SELECT 1/0', 'SELEC', 'ROLLBACK AND CHAIN';
}
$listener->run('ROLLBACK');
is(as_text($listener->wait_for(1)), 'a/meanwhile', 'a client that makes many errors is told all the same');
$listener->run('CREATE PROCEDURE rolls_back() LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1 .. 20 LOOP ROLLBACK; END LOOP; END $$');
$listener->run("LISTEN own; CREATE PROCEDURE notified() LANGUAGE plpgsql AS \$\$ BEGIN NOTIFY own; COMMIT; FOR i IN 1 .. 20 LOOP ROLLBACK; END LOOP; END \$\$");
is($listener->query('CALL notified()')->types, 'CAZ', 'nor does a procedure that rolls back');
$listener->take_notifications;

# ---- the wakeup is spent for nothing

$listener->run('SET interference.lose_interrupts = 1');
$sender->run("NOTIFY a, 'lost'");
wait_until(
	sub {
		my $slot = stat_listener($observer, $listener->pid);
		return $slot->{state} eq 'signalled' && $slot->{wakeups} >= 1;
	}) or die 'the listener was not woken';
ok( send_until(sub { "@{ told($listener) }" =~ m{a/lost} }),
	'the session is reminded, and gets what it missed');
ok(wait_until_idle($observer, $listener->pid), 'and keeps nothing');

# A session that is busy is reminded, too, and does not mind.
$listener->run('BEGIN');
$sender->run("NOTIFY a, 'during a transaction'");
ok( send_until(sub { stat_listener($observer, $listener->pid)->{wakeups} > 4 }),
	'a session in a transaction is reminded');
is($listener->query('SELECT 1')->types, 'TDCZ', 'which it does not notice');
is($listener->query('COMMIT')->types, 'CAZ', 'until its transaction ends');
is_deeply(told($listener), ['a/during a transaction'], 'and then once');
$listener->close;

# ---- not listening any more, as PostgreSQL sees it

$listener = new_listener();
# A transaction with LISTEN, in which pg_pinpoint does not look for calls from C.
$listener->run('BEGIN; LISTEN c; SELECT unlisten_all(); COMMIT');
is($listener->value('SELECT count(*) FROM pg_listening_channels()'),
	0, 'C code has made PostgreSQL forget what the session listens on');
is( $sender->value("BEGIN; NOTIFY a, 'in vain'; COMMIT; SELECT state FROM pinpoint.stat_listeners WHERE pid = " . $listener->pid),
	'signalled', 'it is woken in vain');
ok( send_until(sub { !stat_listener($observer, $listener->pid) }),
	'and then is no listener any more');
ok( wait_until(
		sub {
			$observer->value("SELECT count(*) FROM pinpoint.stat_channels WHERE channel = 'a'") == 0;
		}),
	'on any channel');
is_deeply(told($listener), [], 'it was told nothing');
$listener->run('LISTEN a');
$sender->run("NOTIFY a, 'again'");
is(as_text($listener->wait_for(1)), 'a/again', 'it may listen again');
$listener->run('UNLISTEN *');
$listener->close;

server_is_clean($observer, 'nothing is left');

done_testing();
