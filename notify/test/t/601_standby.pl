# LISTEN on a hot standby: what the primary notifies with pinpoint.replicate arrives
# there, in commit order, with the rows visible, and nothing else.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_node('primary', init => { allows_streaming => 1 },
	conf => "pinpoint.replicate = on\nmax_connections = 60");
my $admin = connect_to($primary);
$admin->run($_) for 'CREATE DATABASE elsewhere', 'CREATE DATABASE no_extension', 'CREATE ROLE someone LOGIN';
connect_to($primary, dbname => 'elsewhere')->run('CREATE EXTENSION pg_pinpoint');
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "hot_standby = on\nmax_connections = 60");
$standby->start;

my $sender   = connect_to($primary);
my $observer = connect_to($standby);
my $listener = connect_to($standby);
my $local    = connect_to($primary);

# ---- the commands

is($listener->query('LISTEN a; LISTEN b; LISTEN fence')->types, 'CCCZ', 'LISTEN on a standby');
is_deeply(
	[ sort map { $_->[0] } @{ $listener->run('SELECT pg_listening_channels()')->rows } ],
	[qw(a b fence)], 'pg_listening_channels()');
is(stat_listener($observer, $listener->pid)->{channels}, 3, 'it is in the view');
is($listener->query('UNLISTEN b')->types, 'CZ', 'UNLISTEN');
is($listener->query('BEGIN; LISTEN c; ROLLBACK')->types, 'CCCZ', 'and a LISTEN that is rolled back');
is(stat_listener($observer, $listener->pid)->{channels}, 2, 'take effect');
foreach my $statement ('NOTIFY a', "NOTIFY a, 'x'", q(SELECT pg_notify('a', 'x')), q(SELECT pinpoint.notify('a', 'x')))
{
	error_is($listener->query($statement),
		'25006', 'cannot execute NOTIFY during recovery', undef, "$statement is refused");
}
my $other = connect_to($standby, dbname => 'no_extension');
error_is($other->query('LISTEN a'),
	'25006', 'cannot execute LISTEN during recovery', undef,
	'in a database without the extension so is LISTEN');
$other->close;
$admin->run(q{CREATE FUNCTION listens() RETURNS void LANGUAGE plpgsql AS $$ BEGIN LISTEN z; END $$;
  CREATE TABLE indexed (i int)});
$primary->wait_for_catchup($standby);
is($listener->query('SELECT listens()')->error, undef, 'LISTEN within a function');
$listener->run('UNLISTEN z');
is($listener->query('BEGIN READ ONLY; LISTEN y; COMMIT; UNLISTEN y')->error, undef, 'in a read-only transaction');
my $long = 'c' x 64;
is($listener->query("LISTEN \"$long\"")->error, undef, 'a name that is too long is cut off, as ever');
$listener->run("UNLISTEN \"$long\"");
is($listener->query('DISCARD ALL')->error, undef, 'DISCARD ALL');
is(stat_listener($observer, $listener->pid), undef, 'ends them all');
$listener->run('LISTEN a; LISTEN b; LISTEN fence');
$local->run('LISTEN a; LISTEN b; LISTEN fence');

# What a session is told up to a fence that the primary sends.
my $fence = 0;
sub told
{
	my ($session) = @_;
	$fence++;
	$sender->run("NOTIFY fence, 'told $fence'");
	return all_as_text(
		grep { $_->{channel} ne 'fence' } $session->notifications_until('fence', "told $fence"));
}

# ---- what arrives

$sender->run(q(NOTIFY a, 'first'));
my $first = $listener->wait_for(1);
is(as_text($first), 'a/first', 'a notification of the primary arrives');
is($first->{pid}, $sender->pid, 'with the PID of its sender there');
is(as_text($local->wait_for(1)), 'a/first', 'there, too');

$admin->run('CREATE TABLE rows (i int)');
foreach my $i (1 .. 50)
{
	$sender->run("BEGIN; INSERT INTO rows VALUES ($i); NOTIFY a, '$i'; COMMIT");
	$listener->wait_for(1);
	if ($listener->value("SELECT count(*) FROM rows WHERE i = $i") != 1)
	{
		fail("row $i is visible when its notification comes");
		last;
	}
}
pass('the rows are visible when the notifications come');
told($local);

$sender->run(q(BEGIN; NOTIFY a, '1'; SAVEPOINT s; NOTIFY a, 'never'; ROLLBACK TO s; NOTIFY b, '2'; NOTIFY a, '1'; NOTIFY a, '3'; COMMIT));
is_deeply(told($listener), [ 'a/1', 'b/2', 'a/3' ], 'a transaction, without what was rolled back, or was sent twice');
$sender->run(q(BEGIN; NOTIFY a, 'never'; ROLLBACK));
$sender->query(q(BEGIN; NOTIFY a, 'never'; SELECT 1/0; COMMIT));
$sender->run('ROLLBACK');
is_deeply(told($listener), [], 'nothing after a rollback');
$sender->run(q(SELECT pg_notify('a', i::text) FROM generate_series(1, 3) i));
$sender->run(q(DO $$ BEGIN NOTIFY a, 'do'; COMMIT; PERFORM pg_notify('b', 'again'); END $$));
is_deeply(told($listener), [ 'a/1', 'a/2', 'a/3', 'a/do', 'b/again' ], 'by function, and by procedures that commit');
$sender->run(q(BEGIN; NOTIFY a, 'ä'; NOTIFY a, ''; COMMIT));
my $payload = 'x' x 7999;
$sender->run("NOTIFY a, '$payload'");
my $special = "a\\tb\n\\n\tc\r\\";
$sender->run(qq(SELECT pg_notify('a', '$special')));
is_deeply(told($listener), [ 'a/ä', 'a/', "a/$payload", "a/$special" ], 'any payload');

my $elsewhere = connect_to($standby, dbname => 'elsewhere');
$elsewhere->run('LISTEN a');
$sender->run(q(NOTIFY a, 'in postgres'));
my $far = connect_to($primary, dbname => 'elsewhere');
$far->run(q(NOTIFY a, 'in elsewhere'));
is(as_text($elsewhere->wait_for(1)), 'a/in elsewhere', 'in another database');
is_deeply(told($listener), ['a/in postgres'], 'and only there');
$_->close for $elsewhere, $far;

# In a transaction of the listener, and after it.
$listener->run('BEGIN');
$sender->run("NOTIFY a, '$_'") for 1 .. 3;
$primary->wait_for_catchup($standby);
is($listener->query('SELECT 1')->types, 'TDCZ', 'nothing within a transaction');
is($listener->query('COMMIT')->types, 'CAAAZ', 'but at its end');
$listener->take_notifications;

# Order, from many sessions at a time.
my @writers = connect_many($primary, 8);
$_->send_query(
	q(DO $$ BEGIN FOR i IN 1 .. 50 LOOP INSERT INTO rows VALUES (i); PERFORM pg_notify('a', pg_backend_pid() || ' ' || i); COMMIT; END LOOP; END $$))
  for @writers;
$_->result for @writers;
my ($here, $there) = (told($listener), told($local));
# each fence reaches both
is(scalar(grep { m{^a/\d+ \d+$} } @$here), 400, 'eight writers');
is_deeply([ grep { m{^a/\d+ \d+$} } @$here ], [ grep { m{^a/\d+ \d+$} } @$there ],
	'the standby has the order of the primary');
$_->close for @writers;

# ---- large transactions, in pieces

$sender->run(q(SELECT count(pg_notify('a', i || repeat('x', 5000))) FROM generate_series(1, 1000) i));
is_deeply([ map { m{^a/(\d+)} } @{ told($listener) } ], [ 1 .. 1000 ], 'five megabytes');
$sender->run(qq(SELECT count(pg_notify('a', i || repeat(E'\\n', 5000))) FROM generate_series(1, 200) i));
is_deeply(told($listener), [ map { "a/$_" . "\n" x 5000 } 1 .. 200 ], 'that is longer when it travels');
$sender->run(q(BEGIN; SELECT count(pg_notify('c' || i, '')) FROM generate_series(1, 1000) i; NOTIFY a, 'many channels'; COMMIT));
is_deeply(told($listener), ['a/many channels'], 'a thousand channels');
is_deeply(stat_queue($observer)->{used_bytes}, 0, 'nothing is kept on the standby');

# ---- the setting

is($admin->query('SHOW pinpoint.replicate')->rows->[0][0], 'on', 'pinpoint.replicate');
my $someone = connect_to($primary, user => 'someone');
error_is($someone->query('SET pinpoint.replicate = off'),
	'42501', 'permission denied to set parameter "pinpoint.replicate"', undef, 'not for everybody');
$someone->close;
$sender->run('SET pinpoint.replicate = off');
$sender->run(q(NOTIFY a, 'here only'));
$sender->run('RESET pinpoint.replicate');
is_deeply(told($listener), [], 'and nothing on the standby');
is_deeply([ grep { /only/ } @{ told($local) } ], ['a/here only'], 'but on the primary');
$admin->run(q(ALTER ROLE someone SET pinpoint.replicate = off));
$someone = connect_to($primary, user => 'someone');
$someone->run(q(NOTIFY a, 'by a role that does not'));
is_deeply(told($listener), [], 'by role');
$someone->close;
$admin->run(q(ALTER ROLE someone RESET pinpoint.replicate));
$sender->run(q(BEGIN; NOTIFY a, 'local'; SET LOCAL pinpoint.replicate = off; COMMIT));
is_deeply(told($listener), [], 'what counts is the setting at commit');
$sender->run(q(SET pinpoint.enabled = off; NOTIFY a, 'own way'; SET pinpoint.enabled = on));
is_deeply(told($listener), [], q(what goes PostgreSQL's own way does not travel));

# ---- settings of the listener work as on a primary

$listener->run('SET pinpoint.fold = on; BEGIN');
$sender->run(q(NOTIFY a, 'same')) for 1 .. 5;
$primary->wait_for_catchup($standby);
is($listener->query('COMMIT')->types, 'CAZ', 'pinpoint.fold');
$listener->run(q(SET pinpoint.latency_target = '1h'));
told($listener);
$listener->run('RESET pinpoint.fold; RESET pinpoint.latency_target');
my @sharers = connect_many($standby, 3,
	options => '-c pinpoint.shared_channels=s -c pinpoint.share_limit=1');
$_->run('LISTEN s; LISTEN fence') for @sharers;
$sender->run("NOTIFY s, '$_'") for 1 .. 30;
$sender->run(q(NOTIFY fence, 'shared'));
my @got = map { [ $_->notifications_until('fence', 'shared') ] } @sharers;
is(join(' ', sort { $a <=> $b } map { $_->{payload} } map { @$_ } @got), join(' ', 1 .. 30),
	'pinpoint.shared_channels');
$_->close for @sharers;
my @crowd = connect_many($standby, 30);
$_->run('LISTEN crowd') for @crowd;
$sender->run(q(NOTIFY crowd, 'all'));
is_deeply([ map { as_text($_->wait_for(1)) } @crowd ], [ ('crowd/all') x 30 ], 'the waker');
ok($observer->value(q(SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker')),
	'of which there is one');
$_->close for @crowd;

# ---- messages that somebody else has written

my $log = -s $standby->logfile;

# Version, PID, channels, notifications, bytes of all and before; see replicate.c.
my $right = "1 4711 1 2 24 0\na\n0\tforged\n";
foreach my $forged ($right, "1 1 1 1 4194304 0\n", "1 1 1 1 4194304 8\n", '', 'x')
{
	my $hex = unpack 'H*', $forged;
	my $writer = connect_to($primary, user => 'someone');
	$writer->run("BEGIN; SELECT pg_logical_emit_message(true, 'pg_pinpoint', '\\x$hex'::bytea)");
	$sender->run(q(NOTIFY a, 'meanwhile'));
	is_deeply(told($listener), ['a/meanwhile'], 'what looks like a message of ours keeps nothing');
	$writer->run("NOTIFY a, 'real'; SELECT pg_logical_emit_message(false, 'pg_pinpoint', '\\x$hex'::bytea); COMMIT");
	is_deeply(told($listener), ['a/real'], 'is ignored, and hides nothing');
	$writer->close;
}
is(stat_queue($observer)->{used_bytes}, 0, 'nothing is left of it');
ok(!$standby->log_contains('disconnecting|cannot deliver', $log), 'and nobody is disconnected');

# ---- messages of ours that are damaged; nobody but a superuser can do that

my $library = compile_interference();
$admin->run("CREATE FUNCTION emit(bytea) RETURNS void LANGUAGE c AS '$library', 'interference_emit'");
sub emit
{
	my $hex = unpack 'H*', $_[0];
	$admin->run("SELECT emit('\\x$hex'::bytea)");
	return;
}
emit("1 4711 1 1 24 0\na\n0\tas ours\n");
is_deeply(told($listener), ['a/as ours'], 'one that is right');
emit("0 1 1 1 16 0\na\n0\tx\n");
is_deeply(told($listener), [], 'one of no version is ignored');
my $incomplete = 'The notifications of a transaction were incomplete in the WAL of the primary';
my %reason = (
	"2 7 new" => 'The primary sends notifications in the format of a newer version of pg_pinpoint',
	"1 1 1 1 999999999999999992 0\na\n0\tx\n" => 'The notifications of a transaction did not fit into the NOTIFY queue of the standby');
foreach my $damaged ("2 7 new", "1 1 1 1 16 8\na\n0\tx\n", "1 1 1 2 24 0\na\n0\tx\n", "1 1 1 1 999999999999999992 0\na\n0\tx\n")
{
	emit($damaged);
	my ($error) = grep { $_->{type} eq 'E' } $listener->receive_until('EOF')->messages;
	is_deeply(
		[ @{ $error->{fields} }{qw(C D)} ],
		[ '57P01', ($reason{$damaged} // $incomplete) . '.' ],
		'when something is missing those who listen are disconnected, with the reason');
	ok(wait_until(sub { $standby->log_contains('cannot deliver the (1 notification|(\d+ )?notifications) of a transaction', $log) }),
		'the log says so');
	$log = -s $standby->logfile;
	$listener = connect_to($standby);
	$listener->run('LISTEN a; LISTEN b; LISTEN fence');
}
$listener->close;

my $seed = $ENV{PINPOINT_TEST_SEED} // 20260106;
srand($seed);
note("PINPOINT_TEST_SEED=$seed");
my @right = ("1 4711 2 3 56 0\njobs\ncache\n0\t42\n1\tusers/7\n0\t43\n", "1 1 1 2 32 0\nm\n0\t\\\\\n\\n\n0\tb\n");
my @bytes = (0 .. 9, ' ', "\n", "\t", '\\', 'n', "\0", "\xff", '-');
my @damaged = (
	'', 'x', "\n", "1 1 1 1 16 0", "1 1 1 1 16\na\n0\tx\n", "1 1 1 1 12 0\na\n0\tx\n",
	"1 1 1 1 8 0\na\n0\tx\n", "1 1 1 1 24 0\na\n0\tx\n",
	"1 1 1 1 16 0\na\n1\tx\n", "1 1 1 1 16 0\na\n0 x\n", "1 1 1 1 16 0\na\n\tx\n", "1 1 1 1 16 0\na\n0\tx",
	"1 1 1 1 16 0\na\n0\tx\\", "1 1 2 1 16 0\na\n0\tx\n", "1 1 1 1 16 0\n\n0\tx\n",
	"1 1 1 1 16 0\na\0b\n0\tx\n", "1 1 1 1 80 0\n" . 'a' x 64 . "\n0\t\n", "1 1 0 0 0 0\n", "1 1 0 1 8 0\n0\tx\n",
	"1 1 1 1 16 0\na\n0\t" . 'x' x 100 . "\n", "1 1 1 1 16 0\na\n99999999999999999999\tx\n",
	"1 1 4294967295 1 16 0\na\n", "1 1 2147483647 2147483647 16 0\na\n");
foreach my $i (1 .. 1000)
{
	my $message = $right[ rand @right ];
	foreach (0 .. rand 3)
	{
		my $place = int rand length $message;
		my $byte  = $bytes[ rand @bytes ];
		my $what  = int rand 4;
		if    ($what == 0) { substr($message, $place, 1) = $byte }
		elsif ($what == 1) { substr($message, $place, 0) = $byte }
		elsif ($what == 2) { substr($message, $place, 1) = '' }
		else               { $message = substr($message, 0, $place) . substr($message, int rand $place) }
	}
	push @damaged, $message;
}
emit($_) for @damaged;
$primary->wait_for_catchup($standby);
$listener = connect_to($standby);
$listener->run('LISTEN a; LISTEN b; LISTEN fence');
$sender->run(q(NOTIFY a, 'still here'));
is_deeply(told($listener), ['a/still here'], 'replay survives a thousand of them');
is(stat_queue($observer)->{used_bytes}, 0, 'and keeps none');

# ---- a transaction that fails in its commit, behind its message

my @skew = connect_many($primary, 2);
$_->run('BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM rows') for @skew;
$skew[$_]->run("INSERT INTO rows VALUES (-1); NOTIFY a, 'skew $_'") for 0, 1;
is($skew[0]->query('COMMIT')->error, undef, 'of two transactions one commits');
is($skew[1]->query('COMMIT')->error->{C}, '40001', 'and one fails');
is_deeply(told($listener), ['a/skew 0'], 'what has failed is not told');
is(stat_queue($observer)->{used_bytes}, 0, 'nor kept');
$_->close for @skew;

# ---- a transaction that takes long

my $slow = connect_to($primary);
$slow->run(q(BEGIN; SELECT pg_logical_emit_message(true, 'pg_pinpoint', '')));
$slow->run(q(SELECT txid_current()));
told($listener);
$slow->run('ROLLBACK');
$slow->close;

# ---- the queue of the standby is full

$_->close for $listener, $observer;
$standby->append_conf('postgresql.conf', "pinpoint.queue_size = 1MB\npinpoint.queue_memory = 1MB");
$standby->restart;
$observer = connect_to($standby);
my ($stuck, $reads) = connect_many($standby, 2);
$_->run('LISTEN a; LISTEN fence') for $stuck, $reads;
$stuck->run('BEGIN');
$log = -s $standby->logfile;
my @read;
foreach my $i (1 .. 30)
{
	$sender->run("SELECT count(pg_notify('a', '$i ' || j || repeat('x', 5000))) FROM generate_series(1, 20) j");
	push @read, @{ told($reads) };
}
is(scalar(@read), 600, 'when the queue is full, those who read get everything');
my $end = $stuck->receive_until('EOF');
my ($error) = map { $_->{fields} } grep { $_->{type} eq 'E' } $end->messages;
is_deeply(
	[ @{$error}{qw(C D)} ],
	[ '57P01', 'This listener was among those furthest behind when the NOTIFY queue of the standby was full.' ],
	'and the one that is behind is disconnected');
ok(wait_until(sub { $standby->log_contains('disconnecting 1 listener because replay needs space in the NOTIFY queue', $log) }),
	'the log says so');

# One that reports an error, which its client does not read, cannot be disconnected.
($stuck, my $sharer) = connect_many($standby, 2);
$sharer->run(q{SET pinpoint.shared_channels = 'z'; LISTEN z});
$stuck->run('LISTEN a');
ok(get_stuck_in_error($observer, $stuck), 'a session of the standby reports an error');
$log  = -s $standby->logfile;
@read = ();
foreach my $i (1 .. 30)
{
	$sender->run("SELECT count(pg_notify('a', '$i ' || j || repeat('y', 5000))) FROM generate_series(1, 20) j");
	push @read, @{ told($reads) };
}
is(scalar(@read), 600, 'replay does not wait for it');
ok($standby->log_contains('disconnecting 1 listener because replay needs space', $log), 'it was told to end');
unlike(substr(slurp_file($standby->logfile), $log), qr/yyyy|79 79 79 79|CONTEXT:  WAL redo/, 'the log tells no payloads');
$end = $stuck->receive_until('EOF');
is((grep { $_->{type} eq 'E' } $end->messages)[-1]{fields}{C}, '57P01', 'and it ends when its client reads');
$sharer->close;

# A transaction that does not fit at all.
$sender->run(q(SELECT count(pg_notify('a', i || repeat('x', 5000))) FROM generate_series(1, 300) i));
$end = $reads->receive_until('EOF');
is((grep { $_->{type} eq 'E' } $end->messages)[0]{fields}{C}, '57P01', 'one that never fits disconnects all who listen');
ok(wait_until(sub { $standby->log_contains('cannot deliver the 300 notifications of a transaction', $log) }),
	'the log says so');
($reads) = connect_many($standby, 1);
$reads->run('LISTEN a; LISTEN fence');
$sender->run(q(NOTIFY a, 'afterwards'));
is_deeply(told($reads), ['a/afterwards'], 'replay goes on');

$reads->close;
server_is_clean($observer, 'nothing is left');

done_testing();
