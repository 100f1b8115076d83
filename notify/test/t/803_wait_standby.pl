# pinpoint.wait(), pinpoint.listen() and pinpoint.notify_on_listen on a standby, and
# through its promotion.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use Test::More;

my $primary = new_node('primary', conf => 'pinpoint.replicate = on', init => { allows_streaming => 1 });
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "hot_standby = on\nprimary_slot_name = ''\n");
$standby->start;

my $writer   = connect_to($primary);
my $observer = connect_to($standby);
my $waiter   = connect_to($standby);

sub catch_up
{
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	return;
}

# Waits until the standby knows that its primary replicates: until then, wait() returns at
# once.  Calls $before_each before it looks.
sub wait_until_exact
{
	my ($before_each) = @_;
	wait_until(
		sub {
			$before_each->() if $before_each;
			return $waiter->value(q{CALL pinpoint.wait('{c,d}', pinpoint.position(), '0')}) eq '{}';
		}) or die 'the standby does not know that its primary replicates';
	return;
}

sub begin_wait
{
	my $since = $observer->value('SELECT pinpoint.position()');
	$waiter->send_query("CALL pinpoint.wait('{c,d}', '$since', NULL)");
	wait_until(sub { $observer->value('SELECT count(*) FROM pinpoint.waiting') && is_asleep($waiter) })
	  or die 'the session does not wait';
	return;
}

sub is_waiting { return $observer->value('SELECT count(*) FROM pinpoint.waiting'); }

sub changed
{
	my $result = $waiter->result;
	return $result->error->{M} if $result->error;
	return $result->rows->[0][0];
}

# ---- replayed transactions

$writer->run('CREATE TABLE rows (i int); NOTIFY begin');
catch_up();
wait_until_exact();
begin_wait();
$writer->run('INSERT INTO rows VALUES (1); NOTIFY e');
catch_up();
ok(is_waiting(), 'not by another channel');
$writer->run('BEGIN; INSERT INTO rows VALUES (2); NOTIFY d; COMMIT');
is(changed(), '{d}', 'by a replayed transaction');
is($waiter->value('SELECT count(*) FROM rows'), 2, 'its rows are visible');
begin_wait();
is($observer->value('SELECT backend_xmin FROM pg_stat_activity WHERE pid = ' . $waiter->pid), undef, 'no snapshot');
$writer->run(q{SELECT count(pg_notify(CASE i WHEN 700 THEN 'c' ELSE 'many' || i END, '')) FROM generate_series(1, 1000) AS i});
like(changed(), qr/c/, 'by a transaction with very many channels');

# ---- an incomplete transaction, and a change of the status

begin_wait();
$writer->run('CREATE DATABASE other');
$writer->run('DROP DATABASE other');
catch_up();
ok(is_waiting(), 'replay of DROP DATABASE does not wait for it');
$primary->safe_psql('postgres', 'CREATE DATABASE other2');
$primary->safe_psql('other2', 'CREATE EXTENSION pg_pinpoint');
is(changed(), '{c,d}', 'CREATE EXTENSION: all have changed');

begin_wait();
$standby->append_conf('postgresql.conf', 'pinpoint.replicate = off');
$standby->reload;
wait_until(sub { $observer->value('SHOW pinpoint.replicate') eq 'off' }) or die 'not reloaded';
wait_until(
	sub {
		$writer->run('INSERT INTO rows VALUES (3)');
		catch_up();
		return !is_waiting();
	}) or die 'the session still waits';
is(changed(), '{c,d}', 'pinpoint.replicate is switched off: all have changed');
is($waiter->value(q{CALL pinpoint.wait('{c,d}', pinpoint.position(), NULL)}), '{c,d}', 'without a wait, always');
$standby->append_conf('postgresql.conf', 'pinpoint.replicate = on');
$standby->reload;
wait_until_exact(
	sub {
		$writer->run('INSERT INTO rows VALUES (3)');
		catch_up();
	});
pass('until it is on again');

begin_wait();
$primary->append_conf('postgresql.conf', 'pinpoint.replicate = off');
$primary->reload;
is(changed(), '{c,d}', 'the primary reports that it does not replicate: all have changed');
$primary->append_conf('postgresql.conf', 'pinpoint.replicate = on');
$primary->reload;
wait_until_exact();

# ---- LISTEN

$waiter->run(q{SET pinpoint.notify_on_listen = '*'});
is_deeply(all_as_text($waiter->run(q{SELECT pinpoint.listen('c', 'X y')})->notifications), [ 'c/', 'X y/' ],
	'pinpoint.listen() and pinpoint.notify_on_listen');
$waiter->take_notifications;
$writer->run(q{SELECT pg_notify('X y', 'from the primary')});
is_deeply(all_as_text($waiter->wait_for(1)), ['X y/from the primary'], 'notifications arrive');
$waiter->run(q{SELECT pinpoint.unlisten('X y', 'c')});
is($waiter->value('SELECT count(*) FROM pg_listening_channels()'), 0, 'pinpoint.unlisten()');
$waiter->run('RESET pinpoint.notify_on_listen');

# ---- conflicts with replay, and the promotion

begin_wait();
$primary->safe_psql('postgres', 'DELETE FROM rows');
$primary->safe_psql('postgres', 'VACUUM FREEZE rows; ALTER TABLE rows ADD COLUMN j int; DROP TABLE rows');
catch_up();
ok(is_waiting(), 'it does not conflict with replay');
$standby->promote;
is(changed(), '{c,d}', 'the promotion: all have changed');
begin_wait();
$observer->run('NOTIFY c');
is(changed(), '{c}', 'it waits on the new primary');

done_testing();
