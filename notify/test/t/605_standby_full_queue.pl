# A standby whose queue is full: replay waits once for all listeners that are in the way,
# whether or not they share channels, and others stay.  And the settings for listeners
# that are far behind count on a standby.  The log tells if the file of the queue cannot grow.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $many = 60;
my $primary = new_node('primary', init => { allows_streaming => 1 }, conf => 'pinpoint.replicate = on',
	max_connections => 100);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "pinpoint.queue_size = 2MB\npinpoint.queue_memory = 2MB");
$standby->start;
my $sender   = connect_to($primary);
my $observer = connect_to($standby);
my $reader   = connect_to($standby);
$reader->run('LISTEN a; LISTEN s; LISTEN fence');

# Notifications of 4 kB in transactions of ten, each read by the one that reads.
my $payload = 'x' x 4000;
my $sent    = 0;
my $longest = 0;
sub send_kb
{
	my ($kb, $channel) = @_;
	for (1 .. $kb / 40)
	{
		my $began = time;
		$sent++;
		$sender->run(qq(SELECT count(pg_notify('$channel', '$sent ' || i || '$payload')) FROM generate_series(1, 10) i));
		$sender->run("NOTIFY fence, '$sent'");
		$reader->notifications_until('fence', $sent);
		$longest = time - $began if time - $began > $longest;
	}
	return;
}

# Sessions listen, and then sit in a transaction.
sub begin_to_listen
{
	my ($channel, @sessions) = @_;
	foreach my $session (@sessions)
	{
		$session->run("LISTEN $channel");
		$session->run('BEGIN');
	}
	return;
}

# Disconnected sessions have this reason.
sub are_disconnected
{
	my ($reason, $name, @sessions) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @details = map {
		my ($error) = map { $_->{fields} } grep { $_->{type} eq 'E' } $_->receive_until('EOF')->messages;
		$error->{D} // 'none'
	} @sessions;
	return is_deeply(\@details, [ ($reason) x @sessions ], $name);
}

sub passes
{
	my ($log) = @_;
	return scalar(() = substr(slurp_file($standby->logfile), $log) =~ /disconnecting \d+ listeners? because replay needs space/g);
}

my $furthest = 'This listener was among those furthest behind when the NOTIFY queue of the standby was full.';

# ---- plain listeners

my @plain = connect_many($standby, $many);
begin_to_listen('a', @plain);
my $log = -s $standby->logfile;
send_kb(4000, 'a');
are_disconnected($furthest, 'listeners in a transaction are disconnected when the queue is full, with the reason', @plain);
is(passes($log), 1, 'all at once');

# ---- listeners that share a channel

my @sharing = connect_many($standby, $many, options => '-c pinpoint.shared_channels=s');
begin_to_listen('s', @sharing);
$sender->run("NOTIFY s, '$_'") for 1 .. $many / 2;
wait_until(sub { $observer->value(q(SELECT count(*) FROM pinpoint.stat_listeners WHERE state = 'signalled')) == $many })
  or die 'not each of them has something to do';
$log     = -s $standby->logfile;
$longest = 0;
my $before = $observer->value('SELECT coalesce(sum(reassigned), 0) FROM pinpoint.stat_notify');
send_kb(1200, 'a');
my $latecomer = connect_to($standby, options => '-c pinpoint.shared_channels=s');
begin_to_listen('s', $latecomer);
$sender->run(q(NOTIFY s, 'for the latecomer'));
send_kb(1200, 'a');
are_disconnected($furthest, 'listeners that share a channel are disconnected', @sharing);
is(passes($log), 1, 'all at once');
is($observer->value('SELECT coalesce(sum(reassigned), 0) FROM pinpoint.stat_notify'), $before, 'nothing is reassigned');
cmp_ok($longest, '<', 10, 'replay does not wait five seconds for each of them');
note("longest: $longest s");
ok(stat_listener($observer, $latecomer->pid), 'one that is not far behind stays');
is($latecomer->query('ROLLBACK')->types, 'CAZ', 'and gets what was assigned to it');
$latecomer->close;

# ---- a transaction that does not fit

my ($other) = connect_many($standby, 1);
$other->run('LISTEN b');
$sender->run(qq(SELECT count(pg_notify('a', i || '$payload')) FROM generate_series(1, 1000) i));
are_disconnected(
	'The notifications of a transaction did not fit into the NOTIFY queue of the standby.',
	'a transaction that does not fit disconnects all, with the reason', $reader, $other);

# ---- pinpoint.max_listener_lag and pinpoint.on_lag

$reader = connect_to($standby);
$reader->run('LISTEN a; LISTEN s; LISTEN fence');
$observer->run(q(ALTER SYSTEM SET pinpoint.max_listener_lag = '400kB'));
$standby->reload;
my $slow = connect_to($standby);
$slow->run(q(SET application_name = 'the slow one'));
begin_to_listen('a', $slow);
$log = -s $standby->logfile;
send_kb(600, 'a');
my $pid = $slow->pid;
ok( wait_until(
		sub { $standby->log_contains(qr/WARNING:  a listener is \d+ kB behind in the NOTIFY queue\n.*DETAIL:  The listener that is furthest behind is the server process with PID $pid, user "[^"]+", application "the slow one", in a transaction/, $log) }),
	'a listener of a standby is behind by more than pinpoint.max_listener_lag: a warning in the log');
cmp_ok($observer->value(q(SELECT sum(warned) FROM pinpoint.stat_notify WHERE datname = 'postgres')), '>=', 1, 'it is counted');
ok(stat_listener($observer, $pid), 'and nothing more');
$observer->run(q(ALTER SYSTEM SET pinpoint.on_lag = 'disconnect'));
$standby->reload;
are_disconnected(
	'The backlog of this listener exceeded "pinpoint.max_listener_lag".',
	'with pinpoint.on_lag = disconnect it is disconnected, though nobody sends', $slow);
send_kb(80, 'a');
pass('a session that reads stays');

$reader->close;
server_is_clean($observer, 'nothing is left');

# ---- the file of the queue cannot grow

# A limit on the size of files that only the startup process has.
$observer->run('ALTER SYSTEM RESET ALL');
$observer->close;
$standby->append_conf('postgresql.conf', "pinpoint.queue_size = 64MB\npinpoint.queue_memory = 64kB");
$standby->restart;
($observer, $reader, $slow) = connect_many($standby, 3);
my $startup = $observer->value(q(SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'));
system_or_bail('prlimit', "--pid=$startup", '--fsize=' . 15 * 1024 * 1024 . ':');
$reader->run('LISTEN a; LISTEN s; LISTEN fence');
begin_to_listen('a', $slow);
$log = -s $standby->logfile;
send_kb(120, 'a');
are_disconnected($furthest, 'if the file cannot grow, the one that is furthest behind is disconnected', $slow);
my $text = substr(slurp_file($standby->logfile), $log);
like(
	$text,
	qr/LOG:  could not extend file "pg_notify\/pg_pinpoint": File too large\n.*HINT:  If this error remains, set "pinpoint\.queue_size" and "pinpoint\.queue_memory" to the same value/,
	'the log has the reason, and what to do');
unlike($text, qr/increase "pinpoint\.queue_size"/, 'a larger queue would not help');
send_kb(40, 'a');
pass('replay goes on');

$reader->close;
server_is_clean($observer, 'nothing is left');

done_testing();
