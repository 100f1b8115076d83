# Commits that do not replicate their notifications, on a primary that has said that it
# replicates: a session with another value, a statement that began before, PostgreSQL's own
# queue, and a setting that is switched off and on again quickly.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use Test::More;

my $library = compile_interference();
my $primary = new_node('primary',
	init    => { allows_streaming => 1 },
	preload => "$library, pg_pinpoint",
	conf    => <<'EOC');
pinpoint.heartbeat_interval = 50ms
pinpoint.replicate = on
max_prepared_transactions = 1
pinpoint.queue_memory = 256kB
pinpoint.queue_size = 256kB
EOC
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_pinpoint'");
$standby->start;
my ($admin, $writer) = connect_many($primary, 2);
my $client = connect_to($standby);
$admin->run('CREATE DATABASE other');
my $other_writer = connect_to($primary, dbname => 'other');
$other_writer->run('CREATE EXTENSION pg_pinpoint');
catch_up();
my $other = connect_to($standby, dbname => 'other');

sub position
{
	my ($session) = @_;
	return ($session // $client)->value('SELECT pinpoint.position()');
}

sub changed
{
	my ($position, $session) = @_;
	return ($session // $client)
	  ->value("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', 'c', 'never')");
}

sub catch_up
{
	my $lsn = $admin->value('SELECT pg_current_wal_flush_lsn()');
	wait_until(sub { $client->value("SELECT pg_last_wal_replay_lsn() >= '$lsn'") eq 't' })
	  or die 'the standby does not catch up';
	return;
}

sub is_exact { return changed(position()) eq ''; }

sub set_replicate
{
	my ($value, @sessions) = @_;
	$primary->append_conf('postgresql.conf', "pinpoint.replicate = $value");
	$primary->reload;
	for my $session (@sessions)
	{
		wait_until(sub { $session->value('SHOW pinpoint.replicate') eq $value }) or die 'not reloaded';
	}
	return;
}

# What is committed counts for all channels of its database, and for no other.
sub counts_for_all
{
	my ($name, $notify) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(\&is_exact) or die 'the standby does not know that its primary replicates';
	my ($before, $elsewhere) = (position(), position($other));
	$notify->();
	catch_up();
	is(changed($before), 'c never', $name);
	is(changed($elsewhere, $other), '', 'in no other database');
	return;
}

# ---- a session with another value; heartbeats

wait_until(\&is_exact) or die 'the standby does not know that its primary replicates';
my ($beats, $plain) = map { connect_to($standby) } 1, 2;
$beats->run('LISTEN c; LISTEN pinpoint_heartbeat');
$plain->run('LISTEN c');
my $elsewhere = connect_to($standby, dbname => 'other');
$elsewhere->run('LISTEN pinpoint_heartbeat');
$_->wait_for(1) for $beats, $elsewhere;
my $unreplicated = connect_to($primary, options => '-c pinpoint.replicate=off');
counts_for_all('a session that does not replicate', sub { $unreplicated->run('NOTIFY c') });
wait_until(sub { !$client->value('SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $beats->pid) })
  or die 'a listener of heartbeats is not disconnected';
my ($error) = map { $_->{fields} } grep { $_->{type} eq 'E' } $beats->receive_until('EOF')->messages;
is_deeply(
	[ @{$error}{qw(C D)} ],
	[ '57P01', 'This listener may have missed notifications that were not replicated, and the next heartbeat would cover them.' ],
	'listeners of heartbeats in its database are disconnected');
is($elsewhere->query('SELECT 1')->error, undef, 'those in another database are not');
error_is(
	$plain->query('LISTEN pinpoint_heartbeat'),
	'55000',
	'cannot listen on "pinpoint_heartbeat" because this session may have missed notifications',
	undef,
	'others cannot listen for heartbeats any more');

# A session that begins to listen has missed nothing, also if such a transaction is replayed
# between two LISTENs of one transaction.  It may be disconnected as soon as it listens for
# heartbeats.
wait_until(\&is_exact) or die 'the standby does not know that its primary replicates';
$unreplicated->send_query(q{DO $$ BEGIN LOOP PERFORM pg_notify('c', ''); COMMIT; END LOOP; END $$});
my $listen = join '; ', map { "LISTEN c$_" } 1 .. 5000;
my %codes;
foreach (1 .. 10)
{
	my $begins = connect_to($standby);
	my $error  = $begins->query("$listen; LISTEN pinpoint_heartbeat")->error;
	$codes{$error->{C}}++ if $error;
	$begins->close;
}
$admin->run('SELECT pg_cancel_backend(' . $unreplicated->pid . ')');
is($unreplicated->result->error->{C}, '57014', 'transactions that do not replicate have committed all the time');
delete $codes{'57P01'};
is_deeply(\%codes, {}, 'a session that begins to listen may listen for heartbeats');
catch_up();

# ---- PostgreSQL's own queue

$writer->run(q{CREATE TABLE checked (i int CHECK (pg_notify('c', '') IS NOT NULL))});
$unreplicated->close;
counts_for_all('pinpoint.enabled = off', sub { $writer->run('SET pinpoint.enabled = off; NOTIFY c; RESET pinpoint.enabled') });
counts_for_all('a call that is not replaced', sub { $writer->run('INSERT INTO checked VALUES (1)') });
counts_for_all('a call that is not replaced, where each error ends the session',
	sub { $writer->run($_) for 'SET exit_on_error = on', 'INSERT INTO checked VALUES (10)', 'RESET exit_on_error' });
counts_for_all('NOTIFY in a transaction that also listens',
	sub { $writer->run('BEGIN; LISTEN x; SET LOCAL pinpoint.enabled = off; NOTIFY c; COMMIT; UNLISTEN x') });
$writer->run(q{CREATE TABLE live (i int)});
$writer->run(q{SELECT pinpoint.watch('live', 'c')});
is(as_text($plain->wait_for(1)), 'c/', 'watch() notifies the channel');
counts_for_all('a change of a watched table in a transaction that also listens',
	sub { $writer->run('BEGIN; LISTEN x; SET LOCAL pinpoint.enabled = off; INSERT INTO live VALUES (1); COMMIT; UNLISTEN x') });
counts_for_all('a transaction that replicates another one',
	sub { $writer->run(q{BEGIN; NOTIFY c, 'both'; INSERT INTO checked VALUES (2); COMMIT}) });
is(as_text($plain->wait_for(1)), 'c/both', 'which arrives');
my $before = position();
$writer->run('LISTEN x; UNLISTEN x; NOTIFY c');
catch_up();
is(changed($before), 'c', 'LISTEN and a transaction that replicates count for no more');

# ---- a statement that began when it was off

set_replicate('off', $admin, $writer);
wait_until(sub { !is_exact() }) or die 'the standby does not know that it is off';
$admin->run('SELECT pg_advisory_lock(1)');
$writer->send_query(q{DO $$ BEGIN PERFORM pg_advisory_lock(1); PERFORM pg_notify('c', ''); END $$});
wait_until(sub { $admin->value('SELECT count(*) FROM pg_locks WHERE NOT granted') }) or die 'it does not wait';
set_replicate('on', $admin);
counts_for_all('a statement that began before it was switched on',
	sub { $admin->run('SELECT pg_advisory_unlock(1)'); $writer->result; });
$writer->run('SELECT pg_advisory_unlock(1)');

# ---- a commit under way: it has looked before, so "on" waits for it

set_replicate('off', $admin, $writer);
wait_until(sub { !is_exact() }) or die 'the standby does not know that it is off';
begin_and_pause($admin, $writer, 'pre_commit', q{CREATE TABLE under_way (); NOTIFY c});
set_replicate('on', $admin);

# The waker sends a heartbeat each time it looks.
my $here = connect_to($primary);
$here->run('LISTEN pinpoint_heartbeat');
$here->wait_for(5);
catch_up();
ok(!is_exact(), 'while a commit is under way the standby is not told "on"');
$before = position();
open_gate();
is($writer->result->error, undef, 'it commits');
ok(wait_until(\&is_exact), 'after it, it is');
is(changed($before), 'c never', 'and positions from before are not good any more');

# ---- off and on between two looks of the waker

counts_for_all(
	'off and on so quickly that the waker does not notice',
	sub {
		my $waker = stop_waker($admin);
		set_replicate('off', $writer);
		$writer->run('NOTIFY c');
		set_replicate('on', $writer);
		kill 'CONT', $waker;
	});

# ---- COMMIT PREPARED that cannot notify, because the queue is full

$writer->run(q{CREATE TABLE watched (i int)});
$writer->run(q{SELECT pinpoint.watch('watched', 'c')});
my $slow = connect_to($primary);
$slow->run($_) for 'LISTEN fill', 'BEGIN', 'SELECT 1';

# When another listener reads what it has before this one, a full queue gets room again.
$here->close;
wait_until(sub { $admin->value('SELECT count(*) FROM pinpoint.stat_listeners') == 1 }) or die 'another listens';
$writer->run(q{BEGIN; INSERT INTO watched VALUES (1); PREPARE TRANSACTION 'no room'});
wait_until(\&is_exact) or die 'the standby does not know that its primary replicates';
foreach my $size (7000, 1)
{
	wait_until(sub { $writer->query("SELECT pg_notify('fill', repeat('x', $size))")->error }) or die 'the queue is not full';
}
catch_up();
$before = position();
is($writer->query(q{COMMIT PREPARED 'no room'})->error->{C}, '54000', 'COMMIT PREPARED cannot notify');
ok(wait_until(sub { changed($before) eq 'c' && is_exact() }), 'but PREPARE TRANSACTION has told the standby of the channel');

done_testing;
