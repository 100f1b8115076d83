# A client that does not read its notifications holds up neither replay nor a promotion,
# where replay asks all sessions to close their files (DROP DATABASE).  On a primary, a
# client that reads slowly does not keep DROP DATABASE waiting until it has read all.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_node('primary', init => { allows_streaming => 1 }, conf => 'pinpoint.replicate = on');
my $admin   = connect_to($primary);
$admin->run("CREATE DATABASE $_") for qw(victim0 victim1 victim2 victim3 victim4 victim5);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'max_standby_streaming_delay = 2s');
$standby->start;
my $observer = connect_to($standby);
my $reader   = connect_to($standby);
$reader->run('LISTEN fence');

# What a session waits for, as pg_stat_activity shows it.
sub waits_for
{
	my ($from, $condition) = @_;
	return $from->value("SELECT wait_event FROM pg_stat_activity WHERE $condition") // '';
}

# Sends until a session waits for its client to read.  Returns how much was sent.
my $payload = 'x' x 7000;
sub get_stuck
{
	my ($from, $session) = @_;
	my $sent = 0;
	$session->run('LISTEN a');
	wait_until(
		sub {
			$admin->run(qq(SELECT count(pg_notify('a', i || '$payload')) FROM generate_series(1, 50) i));
			$sent += 50;
			return waits_for($from, 'pid = ' . $session->pid) eq 'ClientWrite';
		}) or die 'the session does not get stuck';
	return $sent;
}

sub drops
{
	my ($dbname) = @_;
	return wait_until(sub { $observer->value("SELECT count(*) FROM pg_database WHERE datname = '$dbname'") == 0 });
}

my $startup_waits = sub { waits_for($observer, q(backend_type = 'startup')) eq 'ProcSignalBarrier' };

# ---- a primary: a client that reads slowly

# The session responds between two notifications, also if pinpoint.fold has collected a
# megabyte of them.  The client reads half of that, and has read nothing before.
foreach my $case ([ 'off', 'victim0' ], [ 'on', 'victim5' ])
{
	my ($fold, $dbname) = @$case;
	my $slow = connect_to($primary);
	$slow->run($_) for "SET pinpoint.fold = $fold", 'LISTEN a';

	# One transaction: between two, the session would for a moment be in another state.
	$admin->run(qq(SELECT count(pg_notify('a', i || '$payload')) FROM generate_series(1, 3000) i));
	my $is_stuck = sub { waits_for($admin, 'pid = ' . $slow->pid) eq 'ClientWrite' };
	wait_until($is_stuck) or die 'the session does not get stuck';
	my $dropper = connect_to($primary);
	my $waits = sub { waits_for($admin, 'pid = ' . $dropper->pid) eq 'ProcSignalBarrier' };
	$dropper->send_query("DROP DATABASE $dbname");
	ok(wait_until($waits), "fold $fold: DROP DATABASE waits for a session whose client does not read, as in PostgreSQL");
	my $read = 0;
	ok( wait_until(
			sub {
				$slow->read_ahead if $is_stuck->() && $read++ < 8;
				return !$waits->();
			}),
		'and goes on as soon as the client reads a part of it');
	is(stat_listener($admin, $slow->pid)->{state}, 'reading', 'while the session has still much to send');
	$slow->close;
	is($dropper->result->error, undef, 'it succeeds');
	$dropper->close;
	ok(drops($dbname), 'the standby has replayed it');
}

# ---- a standby: DROP DATABASE

my $stuck = connect_to($standby);
get_stuck($observer, $stuck);
my $log = -s $standby->logfile;
$admin->run('DROP DATABASE victim1');
ok(drops('victim1'), 'replay of DROP DATABASE goes on');
ok( wait_until(sub { !stat_listener($observer, $stuck->pid) }),
	'the session whose client did not read is gone');
ok( wait_until(sub { $standby->log_contains('disconnecting 1 listener because replay waits for it', $log) }), 'the log says so');
ok( wait_until(sub { $standby->log_contains('DETAIL:  Replay waited for this session while its client did not read its notifications\.', $log) }),
	'with the reason');
$stuck->receive_until('EOF');
$admin->run(q(NOTIFY fence, 'first'));
$reader->notifications_until('fence', 'first');
pass('a session that reads stays, and gets everything');

# ---- a standby: DROP DATABASE with a stuck listener in that database

$primary->safe_psql('victim4', 'CREATE EXTENSION pg_pinpoint');
$primary->wait_for_catchup($standby);
my $inside = connect_to($standby, dbname => 'victim4');
my $inside_sender = connect_to($primary, dbname => 'victim4');
$inside->run('LISTEN a');
wait_until(
	sub {
		$inside_sender->run(qq(SELECT count(pg_notify('a', i || '$payload')) FROM generate_series(1, 50) i));
		return waits_for($observer, 'pid = ' . $inside->pid) eq 'ClientWrite';
	}) or die 'the session does not get stuck';
$inside_sender->close;
wait_until(sub { $admin->value(q(SELECT count(*) FROM pg_stat_activity WHERE datname = 'victim4')) == 0 })
  or die 'the sender stays';
$admin->run('DROP DATABASE victim4');
ok(drops('victim4'), 'replay of DROP DATABASE does not wait for a stuck listener in that database');
$inside->receive_until('EOF');

# ---- one whose client asks for something and does not read it is not ours

my $selects = connect_to($standby);
$selects->run('LISTEN nothing');
$selects->send_query(q(SELECT repeat('x', 1000) FROM generate_series(1, 10000)));
ok(wait_until(sub { waits_for($observer, 'pid = ' . $selects->pid) eq 'ClientWrite' }),
	'a listener that does not read the result of a query');
$stuck = connect_to($standby);
get_stuck($observer, $stuck);
$admin->run('DROP DATABASE victim2');
ok( wait_until(sub { !stat_listener($observer, $stuck->pid) }), 'one that does not read its notifications is ended');
ok(stat_listener($observer, $selects->pid), 'and the other is not');
$selects->result;
ok(drops('victim2'), 'replay goes on when it reads');
$selects->close;

# ---- promotion, whatever the setting

$observer->run('ALTER SYSTEM SET max_standby_streaming_delay = -1');
$standby->reload;
wait_until(sub { $observer->value('SHOW max_standby_streaming_delay') eq '-1' }) or die 'not reloaded';
$stuck = connect_to($standby);
get_stuck($observer, $stuck);
$admin->run('DROP DATABASE victim3');
ok(wait_until($startup_waits), 'with -1 replay waits for a client that does not read');
is($observer->value('SELECT pg_promote(true, 60)'), 't', 'a promotion does not');
ok(wait_until(sub { !stat_listener($observer, $stuck->pid) }), 'the session is gone');
$observer->run(q(NOTIFY fence, 'promoted'));
$reader->notifications_until('fence', 'promoted');
pass('a session that reads stays, and gets everything');

$_->close for $reader;
server_is_clean($observer, 'nothing is left');

done_testing();
