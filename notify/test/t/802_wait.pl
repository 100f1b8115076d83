# pinpoint.wait(): which transactions end it, what it holds while it waits, and how else
# it ends.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node  = new_node('main', max_connections => 120);
my $admin = connect_to($node);
my $position;

# Has a session wait, from now on or from a position, and returns when it does.
sub begin_wait
{
	my ($session, $channels, $timeout, $since) = @_;
	$since //= $session->value('SELECT pinpoint.position()');
	$session->send_query("CALL pinpoint.wait('{$channels}', '$since', $timeout)");
	wait_until_waiting($session);
	return;
}

sub wait_until_waiting
{
	my ($session) = @_;
	wait_until(
		sub {
			$admin->value('SELECT count(*) FROM pinpoint.waiting WHERE pid = ' . $session->pid) && is_asleep($session);
		}) or die 'the session does not wait';
	return;
}

sub is_waiting
{
	my ($session) = @_;
	return $admin->value('SELECT count(*) FROM pinpoint.waiting WHERE pid = ' . $session->pid);
}

# What it returns; keeps the next position.
sub changed
{
	my ($session) = @_;
	my $result = $session->result;
	return $result->error->{C} . ' ' . $result->error->{M} if $result->error;
	(my $changed, $position) = @{ $result->rows->[0] };
	return $changed;
}

sub nobody_waits
{
	my ($name) = @_;
	return ok(wait_until(sub { !$admin->value('SELECT count(*) FROM pinpoint.waiting') }), $name);
}

# ---- which transactions end it

my $waiter = connect_to($node);
begin_wait($waiter, 'c,d', 'NULL');
$admin->run('BEGIN; NOTIFY c');
ok(is_waiting($waiter), 'not before the commit');
$admin->run('ROLLBACK');
$admin->run('NOTIFY e');
ok(is_waiting($waiter), 'not by a rollback, and not by another channel');
$admin->run('BEGIN; SAVEPOINT s; NOTIFY c; ROLLBACK TO s; NOTIFY e; COMMIT');
ok(is_waiting($waiter), 'not by a savepoint that is rolled back');
$admin->run('NOTIFY d');
is(changed($waiter), '{d}', 'by a NOTIFY');
begin_wait($waiter, 'c,d', 'NULL', $position);
$admin->run(q{BEGIN; SELECT pg_notify('d', ''), pg_notify('c', ''); COMMIT});
is(changed($waiter), '{c,d}', 'by both channels of a transaction, since the position that it returned');
begin_wait($waiter, 'c,d', 'NULL', $position);
$admin->run(q{SELECT count(pg_notify(CASE i WHEN 700 THEN 'c' ELSE 'many' || i END, '')) FROM generate_series(1, 1000) AS i});
like(changed($waiter), qr/c/, 'by a transaction with very many channels');
begin_wait($waiter, join(',', map { "w$_" } 1 .. 1000), 'NULL');
$admin->run('NOTIFY w1000');
like(changed($waiter), qr/w1000/, 'for very many channels');
begin_wait($waiter, 'c', 'NULL');
$admin->run('SET pinpoint.enabled = off; NOTIFY f; RESET pinpoint.enabled');
is(changed($waiter), '{c}', "by a notification in PostgreSQL's own queue");
$admin->run('CREATE DATABASE other');
my $other = connect_to($node, dbname => 'other');
$other->run('CREATE EXTENSION pg_pinpoint');
begin_wait($waiter, 'c', 'NULL');
$other->run('NOTIFY c');
$other->run('SET pinpoint.enabled = off; NOTIFY c');
ok(is_waiting($waiter), 'not in another database');
$admin->run('NOTIFY c');
is(changed($waiter), '{c}', 'but in this one');
$waiter->send_query(q{CALL pinpoint.wait('{c}', pinpoint.position(), '100 ms')});
is(changed($waiter), '{}', 'the timeout');
$waiter->send_statement(q{CALL pinpoint.wait('{c}', NULL)});
$waiter->send_sync;
is(changed($waiter), '{c}', 'the extended protocol');
# A session that is notified while it waits receives that after the result.
$waiter->run('LISTEN e; LISTEN c');
begin_wait($waiter, 'c', 'NULL');
$admin->run('NOTIFY e');
$admin->run('NOTIFY c');
my $result = $waiter->result;
is($result->types, 'TDCAAZ', 'a listener receives its notifications after the result');
$waiter->run('UNLISTEN *');
$waiter->take_notifications;

# ---- very many sessions, one of which ends with the waker

my @many = connect_many($node, 60);

# The channels that count as changed.  Channels can share a place, by chance.
sub changed_since
{
	my ($since, @channels) = @_;
	my $list = join ',', @channels;
	my $rows = $admin->run("SELECT unnest(changed) FROM pinpoint.changed_since('$since', VARIADIC '{$list}')")->rows;
	return map { $_->[0] => 1 } @$rows;
}
foreach my $waker (1, 0)
{
	my $since = $admin->value('SELECT pinpoint.position()');
	foreach my $session (@many)
	{
		$session->send_query("CALL pinpoint.wait('{all,c" . $session->pid . "}', '$since', NULL)");
	}
	wait_until_waiting($_) foreach @many;
	$admin->run("SELECT pg_notify('c" . $many[42]->pid . "', '')");
	my %changed = changed_since($since, 'all', map { 'c' . $_->pid } @many);
	my %waits = map { $_->pid => 1 } grep { !$changed{all} && !$changed{ 'c' . $_->pid } } @many;
	like(changed($many[42]), qr/\bc@{[ $many[42]->pid ]}\b/, 'one of many sessions');
	wait_until(sub { $admin->value('SELECT count(*) FROM pinpoint.waiting') <= keys %waits })
	  or die 'one that is woken does not return';
	is($admin->value('SELECT count(*) FROM pinpoint.waiting'), keys %waits, 'the others wait');
	if (!$waker)
	{
		kill 'TERM', $admin->value(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker'});
	}
	$admin->run('NOTIFY "all"');
	my @results = map { [ $_->pid, changed($_) ] } grep { $_ != $many[42] } @many;
	is(scalar(grep { $waits{ $_->[0] } && $_->[1] !~ /\ball\b/ } @results),
		0, 'all of them' . ($waker ? '' : ', while the waker ends'));
	nobody_waits('nobody waits any more');
}
$_->close foreach @many;

# ---- what it holds

begin_wait($waiter, 'c', 'NULL');
is_deeply($admin->run('SELECT backend_xmin, backend_xid, state FROM pg_stat_activity WHERE pid = ' . $waiter->pid)->rows->[0],
	[ undef, undef, 'active' ], 'no snapshot and no transaction ID');
like($admin->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $waiter->pid), qr/^(PinpointWait|Extension)$/, 'a wait event');
is($admin->value('SELECT count(*) FROM pg_locks WHERE locktype <> $$virtualxid$$ AND pid = ' . $waiter->pid), 0, 'no lock');
$admin->run('CREATE TABLE dead AS SELECT generate_series(1, 1000) AS i; DELETE FROM dead');

# VACUUM passes over a page that another process, as the checkpointer, uses.
ok( wait_until(
		sub {
			$admin->run('VACUUM dead');
			$admin->value(q{SELECT pg_relation_size('dead')}) == 0;
		}),
	'VACUUM removes what was deleted meanwhile');
$admin->run('CREATE ROLE nosy LOGIN');
is_deeply($admin->run('SELECT pid, datname, usename = current_user, channels, now() - since < interval $$1 h$$ FROM pinpoint.waiting')->rows,
	[ [ $waiter->pid, 'postgres', 't', 1, 't' ] ], 'the view');
my $nosy = connect_to($node, user => 'nosy');
is_deeply($nosy->run('SELECT pid, datname, usename, channels, since FROM pinpoint.waiting')->rows,
	[ [ $waiter->pid, 'postgres', undef, undef, undef ] ], 'the view of another role');

# ---- how else it ends

$admin->run('SELECT pg_cancel_backend(' . $waiter->pid . ')');
is(changed($waiter), '57014 canceling statement due to user request', 'a cancelled statement');
nobody_waits('its session does not wait');
is($waiter->value('SELECT 1'), 1, 'it goes on');

my $ended = connect_to($node);
begin_wait($ended, 'c', 'NULL');
$admin->run('SELECT pg_terminate_backend(' . $ended->pid . ')');
is(changed($ended), '57P01 terminating connection due to administrator command', 'a terminated session');
nobody_waits('it does not wait');

$ended = connect_to($node);
begin_wait($ended, 'c', 'NULL');
$ended->hang_up;
nobody_waits('the client has gone');

$ended = connect_to($node, dbname => 'other');
begin_wait($ended, 'c', 'NULL', $ended->value('SELECT pinpoint.position()'));
$_->close for $other;
drop_database($admin, 'other');
is(changed($ended), '57P01 terminating connection due to administrator command', 'DROP DATABASE');
nobody_waits('the session of the dropped database does not wait');

# A process signal barrier waits for all sessions.
begin_wait($waiter, 'c', 'NULL');
$admin->run('CREATE DATABASE barrier');
$admin->run('DROP DATABASE barrier');
ok(is_waiting($waiter), 'a session that waits absorbs the barrier of DROP DATABASE');

$admin->run('DROP EXTENSION pg_pinpoint');
$admin->run('NOTIFY c');
is(changed($waiter), '{c}', 'DROP EXTENSION does not end it, and the next notification does');
$admin->run('CREATE EXTENSION pg_pinpoint');

# ---- the limit of a role

$admin->run('ALTER ROLE nosy SET pinpoint.max_waiting = 2');
$nosy->close;
my @limited = connect_many($node, 3, user => 'nosy');
begin_wait($_, 'c', 'NULL') foreach @limited[ 0, 1 ];
$limited[2]->send_query(q{CALL pinpoint.wait('{c}', pinpoint.position(), NULL)});
is(changed($limited[2]), '53400 too many sessions of role "nosy" wait', 'one too many');
is_deeply($limited[2]->run(q{CALL pinpoint.wait('{c}', NULL)})->rows->[0][0], '{c}', 'a session that need not wait is not limited');
begin_wait($waiter, 'c', 'NULL');
$admin->run('SELECT pg_cancel_backend(' . $limited[0]->pid . ')');
$limited[0]->result;
begin_wait($limited[2], 'c', 'NULL');
$admin->run('NOTIFY c');
is(changed($_), '{c}', 'the others are woken') foreach @limited[ 1, 2 ], $waiter;

# ---- the postmaster dies

begin_wait($waiter, 'c', 'NULL');
kill 'KILL', $node->{_pid};
is(changed($waiter), '57P01 terminating connection due to unexpected postmaster exit', 'the postmaster dies');
$node->stop('immediate', fail_ok => 1);

done_testing();
