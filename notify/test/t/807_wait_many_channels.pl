# pinpoint.wait() for more than 64 channels: only transactions of the same database wake
# the session, it pauses between two looks, and nothing is lost.  And when the call fails,
# which does not depend on whether it has to wait.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant { WAITERS => 4, PAUSE => 0.02 };

my $node  = new_node('main', max_connections => 150);
my $admin = connect_to($node);
$admin->run('CREATE DATABASE other');
my $other = connect_to($node, dbname => 'other');
$other->run('CREATE EXTENSION pg_pinpoint');
$_->run('CREATE PROCEDURE notify_often(n int) LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1 .. n LOOP NOTIFY often; COMMIT; END LOOP; END $$')
  for $admin, $other;

# Two databases can share a place, by chance: not after another start.
while (1)
{
	my $start = $admin->value('SELECT pinpoint.position()');
	$other->run('SET pinpoint.enabled = off; NOTIFY c; RESET pinpoint.enabled');
	last if $admin->value("SELECT changed FROM pinpoint.changed_since('$start', 'c')") eq '{}';
	$_->close for $admin, $other;
	stop_and_start($node, 'fast');
	$admin = connect_to($node);
	$other = connect_to($node, dbname => 'other');
}
my @channels = map { "many$_" } 1 .. 100;
my $list     = join ',', @channels;

sub begin_wait
{
	my ($position, @sessions) = @_;
	$_->send_query("CALL pinpoint.wait('{$list}', '$position', NULL)") foreach @sessions;
	wait_until(
		sub {
			$admin->value('SELECT count(*) FROM pinpoint.waiting') == @sessions && !grep { !is_asleep($_) } @sessions;
		}) or die 'the sessions do not wait';
	return;
}

# How often the processes of the sessions have gone to sleep.
sub sleeps
{
	my $sum = 0;
	foreach my $pid (map { $_->pid } @_)
	{
		slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)$/m or die 'no such line';
		$sum += $1;
	}
	return $sum;
}

# Whether all of them return this.
sub all_return
{
	my ($expected, $name, @sessions) = @_;
	my @results = map { $_->error ? $_->error->{M} : $_->rows->[0][0] } map { $_->result } @sessions;
	return is_deeply([ grep { $_ !~ $expected } @results ], [], $name);
}

# ---- who wakes them

my @waiters = connect_many($node, WAITERS);
my $start   = $admin->value('SELECT pinpoint.position()');
$_->run('NOTIFY often') for $admin, $other;

# Channels can share a place, by chance: not with this one, in either database.
@channels = grep { $admin->value("SELECT changed FROM pinpoint.changed_since('$start', '$_')") eq '{}' } @channels;
$list = join ',', @channels;
begin_wait($admin->value('SELECT pinpoint.position()'), @waiters);
my $before = sleeps(@waiters);
$other->run('CALL notify_often(1000)');
cmp_ok(sleeps(@waiters) - $before, '<=', WAITERS, '1,000 transactions of another database do not wake them');

my $begin = time;
$before = sleeps(@waiters);
$admin->run('CALL notify_often(5000)');
my $seconds = time - $begin;
my $sleeps  = sleeps(@waiters) - $before;

# Each look costs two sleeps, and now and then one for a lock.
my $most = 3 * WAITERS * ($seconds / PAUSE + 2);
note("$sleeps sleeps in $seconds s");
cmp_ok($sleeps, '>=', WAITERS, '5,000 transactions of their database wake them');
cmp_ok($sleeps, '<=', $most, 'but not each of them');
is($admin->value('SELECT count(*) FROM pinpoint.waiting'), WAITERS, 'they wait nevertheless');
$admin->run("NOTIFY often; NOTIFY $channels[42]");
all_return(qr/\b$channels[42]\b/, 'their own channel', @waiters);

begin_wait($admin->value('SELECT pinpoint.position()'), @waiters);
$other->run('SET pinpoint.enabled = off; NOTIFY c; RESET pinpoint.enabled');
is($admin->value('SELECT count(*) FROM pinpoint.waiting'), WAITERS, "not PostgreSQL's own queue, in another database");
$admin->run('SET pinpoint.enabled = off; NOTIFY c; RESET pinpoint.enabled');
all_return(qr/^\{$list\}$/, 'but in this one', @waiters);

# ---- they can be ended while they pause

my $notifies = connect_to($node);
begin_wait($admin->value('SELECT pinpoint.position()'), @waiters);
$notifies->send_query('CALL notify_often(1000000)');
$admin->run('SELECT pg_cancel_backend(' . $_->pid . ')') foreach @waiters;
all_return(qr/^canceling statement due to user request$/, 'cancelled', @waiters);
$admin->run('SELECT pg_cancel_backend(' . $notifies->pid . ')');
$notifies->result;

# ---- when the call fails

$admin->run('CREATE TABLE t (i int)');
$admin->run(<<'SQL');
CREATE PROCEDURE change_and_wait(since text) LANGUAGE plpgsql AS $$
DECLARE
	changed text[] := '{c}';
	next text := since;
BEGIN
	INSERT INTO t VALUES (1);
	CALL pinpoint.wait(changed, next, '0');
END $$
SQL
$admin->run(<<'SQL');
CREATE PROCEDURE query_and_wait(since text) LANGUAGE plpgsql AS $$
DECLARE
	changed text[] := '{c}';
	next text := since;
	name name;
BEGIN
	FOR name IN SELECT relname FROM pg_class LOOP
		CALL pinpoint.wait(changed, next, '0');
	END LOOP;
END $$
SQL
my $old = $admin->value('SELECT pinpoint.position()');
$admin->run('NOTIFY c');
my $now = $admin->value('SELECT pinpoint.position()');
foreach my $case ([ "'$now'", 'has not changed' ], [ "'$old'", 'has changed' ], [ 'NULL', 'has no position' ])
{
	my ($since, $name) = @$case;
	error_is($admin->query("CALL change_and_wait($since)"),
		'25001', 'pinpoint.wait() cannot run in a transaction that has changed data', undef, "after a change, a channel that $name");
	error_is($admin->query("CALL query_and_wait($since)"),
		'25001', 'pinpoint.wait() cannot run while a query is active', undef, "within a query, a channel that $name");
}
is($admin->value("CALL pinpoint.wait('{c}', '$old', '0')"), '{c}', 'alone, it does not fail');
$node->stop;

# ---- without a waker, sessions that were woken wake others

$node->append_conf('postgresql.conf', 'pinpoint.waker = off');
$node->start;
$admin = connect_to($node);
is($admin->value(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker'}), 0, 'no waker');
foreach my $n (1, 100)
{
	$list    = join ',', map { "c$_" } 1 .. $n;
	@waiters = connect_many($node, 100);
	begin_wait($admin->value('SELECT pinpoint.position()'), @waiters);
	$admin->run('NOTIFY c1');
	all_return(qr/\bc1\b/, "100 sessions return, for channels: $n", @waiters);
	$_->close foreach @waiters;
}
$node->stop;

done_testing();
