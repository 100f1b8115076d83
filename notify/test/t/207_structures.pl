# The structures in shared memory are consistent, whatever sessions do.  Needs a server and
# a library that were built with assertions: the function that checks exists only there, and
# a check that fails stops the server.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $seed = $ENV{PINPOINT_TEST_SEED} // 20261125;
srand $seed;
note("PINPOINT_TEST_SEED=$seed");

# A queue that needs its file, and a channel map of which one role can fill half.
my $node = new_node('main', max_connections => 100, conf => <<'EOC');
restart_after_crash = on
max_prepared_transactions = 5
pinpoint.queue_memory = 64kB
pinpoint.queue_size = 8MB
pinpoint.channel_memory = 1MB
EOC
my $observer = connect_to($node);
if ($observer->value('SHOW debug_assertions') ne 'on')
{
	$node->stop;
	plan skip_all => 'the server was built without assertions';
}

$observer->run(
	q{CREATE FUNCTION check_structures(quiet boolean) RETURNS void STRICT
	  AS '$libdir/pg_pinpoint', 'pinpoint_check_structures' LANGUAGE C});
$observer->run('CREATE TABLE rows (i int)');
$observer->run('CREATE ROLE app LOGIN');
my $checks = 0;

sub check
{
	$observer->run('SELECT check_structures(false)');
	return $checks++;
}

# When nothing changes: the memory of the channel map must add up, too.
sub check_quiet
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($observer->query('SELECT check_structures(true)')->error, undef, $name);
}

sub backends
{
	return $observer->value(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'});
}

my $error = connect_to($node, user => 'app')->query('SELECT check_structures(false)')->error;
is($error->{C}, '42501', 'only a superuser checks');
check_quiet('at the beginning');

my $sender = connect_to($node);
my $payload = q{SELECT count(pg_notify('%s', i || repeat('x', %d))) FROM generate_series(1, %d) i};

sub notify { return $sender->run(sprintf $payload, @_); }

# ---- LISTEN and UNLISTEN: trees of listeners of all sizes

my @sessions = connect_many($node, 45);
foreach my $round (1 .. 3)
{
	foreach my $session (@sessions)
	{
		$session->run('LISTEN everyone; LISTEN c' . int(rand 10) . '; LISTEN c' . int(rand 10));
		notify('c' . int(rand 10), 10, 1) if rand() < 0.2;
		check() if rand() < 0.1;
	}
	check_quiet("round $round: all listen");
	foreach my $session (sort { rand() <=> 0.5 } @sessions)
	{
		my $kind = int rand 4;
		$session->run($kind == 0 ? 'UNLISTEN *' : $kind == 1 ? 'UNLISTEN everyone' :
			$kind == 2 ? 'BEGIN; LISTEN never; UNLISTEN everyone; NOTIFY everyone; ROLLBACK' : 'DISCARD ALL');
		check() if rand() < 0.1;
	}
	check_quiet("round $round: most do not");
}
$_->run('UNLISTEN *') for @sessions;
check_quiet('nobody does');
is($observer->value('SELECT count(*) FROM pinpoint.stat_channels'), 0, 'the map is empty');

# ---- a map that is full

my $hog = connect_to($node, user => 'app');
$hog->run(join ';', map { "LISTEN h$_" } 1 .. 4500);
is(stat_listener($observer, $hog->pid)->{wakes_for_all}, 't', 'the channels of a session do not fit');
check_quiet('a role has filled its share of the map');
notify('h4400', 10, 1);
is_deeply([ map { $_->{channel} } $hog->wait_for(1) ], ['h4400'], 'which works');
$hog->run('UNLISTEN *');
check_quiet('and has left it');
$hog->close;

# ---- a backlog in memory and in the file, of small and of large notifications

my @slow = @sessions[ 0 .. 4 ];
$_->run('LISTEN backlog; BEGIN') for @slow;
foreach my $i (0 .. $#slow)
{
	$sender->run("DO \$\$ BEGIN FOR i IN 1 .. 500 LOOP NOTIFY backlog; PERFORM pg_notify('nobody', '$i'); COMMIT; END LOOP; END \$\$");
	notify('backlog', 7900, 100);
	$sender->run("BEGIN; NOTIFY backlog, 'rolled back'; ROLLBACK");
	check();
	cmp_ok(stat_queue($observer)->{file_bytes}, '>', 0, 'the queue uses its file') if $i == 0;
	$slow[$i]->run('COMMIT');
	check();
}
ok( wait_until(
		sub {
			$_->receive_available  for @slow;
			$_->take_notifications for @slow;
			return stat_queue($observer)->{batches} == 0;
		}),
	'all read it');
check_quiet('a backlog came and went');

# ---- a queue that is full, and a listener that is disconnected

$slow[0]->run('BEGIN');
my $full = 0;
for (1 .. 20)
{
	$full = 1 if $sender->query(sprintf $payload, 'backlog', 7900, 100)->error;
	$_->receive_available for @slow[ 1 .. 4 ];
	$_->take_notifications for @slow;
}
ok($full, 'the queue was full');
check_quiet('and is in order');
wait_until(
	sub {
		$_->receive_available  for @slow[ 1 .. 4 ];
		$_->take_notifications for @slow[ 1 .. 4 ];
		return !grep { stat_listener($observer, $_->pid)->{state} ne 'idle' } @slow[ 1 .. 4 ];
	}) or die 'those that read are behind';
$observer->run($_) for q{ALTER SYSTEM SET pinpoint.on_lag = 'disconnect'}, q{ALTER SYSTEM SET pinpoint.max_listener_lag = '1MB'},
  'SELECT pg_reload_conf()';
ok( wait_until(
		sub {
			$sender->run('NOTIFY nobody');
			$_->receive_available for @slow[ 1 .. 4 ];
			$_->take_notifications for @slow;
			return stat_queue($observer)->{batches} == 0;
		}),
	'a slow listener keeps nothing any more');
is($slow[0]->result->error->{C}, '57P01', 'and is disconnected');
check();
$observer->run($_) for 'ALTER SYSTEM RESET ALL', 'SELECT pg_reload_conf()';
wait_until(sub { $sender->value('SHOW pinpoint.on_lag') eq 'warn' }) or die 'not reloaded';
$_->close for @sessions;
wait_until(sub { backends() == 2 }) or die 'sessions stay';
check_quiet('all have left');

# ---- sharing, and sessions that end with what was assigned to them

@sessions = connect_many($node, 15, options => '-c pinpoint.shared_channels=* -c pinpoint.share_limit=2');
push @sessions, connect_many($node, 15, user => 'app', options => '-c pinpoint.shared_channels=* -c pinpoint.share_limit=1');
push @sessions, connect_many($node, 3);
foreach my $session (@sessions)
{
	$session->run('LISTEN jobs');
	$session->run('BEGIN') if rand() < 0.5;
	check() if rand() < 0.3;
}
check_quiet('groups share a channel');
while (@sessions > 3)
{
	notify('jobs', 100, 20);
	for (1 .. 3)
	{
		my ($session) = splice @sessions, int rand @sessions, 1;
		rand() < 0.5 ? $session->close : $session->hang_up;
	}
	check();
}
$_->close for @sessions;
wait_until(sub { backends() == 2 }) or die 'sessions stay';
check_quiet('and have left it');
server_is_clean($observer, 'nothing is left');

# ---- sessions in pinpoint.wait()

@sessions = connect_many($node, 20);
foreach my $i (0 .. $#sessions)
{
	my $channels = join ',', map { "w$_" } 1 .. ($i % 4 ? $i : 70);
	my $position = $sessions[$i]->value('SELECT pinpoint.position()');
	$sessions[$i]->send_query("CALL pinpoint.wait('{$channels}', '$position', NULL)");
}
ok(wait_until(sub { $observer->value('SELECT count(*) FROM pinpoint.waiting') == @sessions }), 'sessions wait');
check_quiet('for few channels, and for many');
$sender->run('NOTIFY nobody_waits');
check();
$observer->run('SELECT pg_cancel_backend(' . $sessions[1]->pid . ')');
is($sessions[1]->result->error->{C}, '57014', 'one is cancelled');
$sessions[2]->hang_up;
check();
$sender->run('NOTIFY w15');
check();
$sender->run('NOTIFY w1');
ok(wait_until(sub { $observer->value('SELECT count(*) FROM pinpoint.waiting') == 0 }), 'all are woken');
check_quiet('nobody waits');
$_->close for @sessions[ 0, 1, 3 .. 19 ];

# ---- savepoints, prepared transactions, watched tables, many channels

my $listener = connect_to($node);
$observer->run(q{SELECT pinpoint.watch('rows')});
$listener->run('LISTEN rows; LISTEN m5');
$sender->run(q{BEGIN; INSERT INTO rows VALUES (1); PREPARE TRANSACTION 'p1'});
$sender->run(q{BEGIN; INSERT INTO rows VALUES (1); PREPARE TRANSACTION 'p2'});
check();
$sender->run(q{COMMIT PREPARED 'p1'});
$sender->run(q{ROLLBACK PREPARED 'p2'});
$sender->run(q{BEGIN; NOTIFY m5; SAVEPOINT s; NOTIFY m5, 'no'; LISTEN m5; ROLLBACK TO s; NOTIFY m5, 'yes'; COMMIT});
$sender->run(q{SELECT count(pg_notify('m' || i, '')) FROM generate_series(1, 1000) i});
is_deeply([ map { $_->{channel} . '/' . $_->{payload} } $listener->wait_for(4) ], [ 'rows/', 'm5/', 'm5/yes', 'm5/' ],
	'what was committed arrives');
check_quiet('after all of that');

# ---- a crash in the midst of it

foreach my $crash (1 .. 2)
{
	my @many = connect_many($node, 10);
	$_->run('LISTEN everyone; BEGIN') for @many;
	notify('everyone', 5000, 50);
	$sender->send_query(sprintf $payload, 'everyone', 100, 20000);
	kill 'KILL', $many[ rand @many ]->pid or die "could not kill: $!";
	$observer->receive_until('EOF');
	wait_until(sub { $observer = eval { connect_to($node) } }) or die 'the server does not start again';
	$sender = connect_to($node);
	check_quiet("crash $crash: the structures are new");
	my ($again) = connect_many($node, 1);
	$again->run('LISTEN everyone');
	notify('everyone', 100, 3);
	is(scalar(my @got = $again->wait_for(3)), 3, "crash $crash: and work");
	$again->close;
	check();
}

cmp_ok($checks, '>', 40, "$checks checks between");
wait_until(sub { backends() == 2 }) or die 'sessions stay';
server_is_clean($observer, 'nothing is left');
check_quiet('at the end');

done_testing();
