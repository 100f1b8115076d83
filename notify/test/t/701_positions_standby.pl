# Positions and heartbeats on a standby, and through its promotion.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use Test::More;
use Time::HiRes;

my $conf = join "\n", 'pinpoint.replicate = on', 'pinpoint.heartbeat_interval = 100ms', 'wal_log_hints = on';
my $primary = new_node('primary', conf => $conf, init => { allows_streaming => 1 });
$primary->backup('base');
my $standby = standby('standby', $primary);
my $writer  = connect_to($primary);
my $client  = connect_to($standby);
my $library = compile_interference();
$writer->run('CREATE TABLE rows (what text)');

sub standby
{
	my ($name, $source) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init_from_backup($source, 'base', has_streaming => 1);
	$node->append_conf('postgresql.conf', "hot_standby = on\nprimary_slot_name = ''\n");
	$node->start;
	return $node;
}

# All that was committed on the primary is replayed.
sub catch_up
{
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	return;
}

sub position { return $client->value('SELECT pinpoint.position()'); }

sub changed
{
	my ($position, @channels) = @_;
	return $client->value("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', "
		  . join(', ', map { "'$_'" } @channels) . ')');
}

sub set_on
{
	my ($node, $session, $name, $value) = @_;
	$node->append_conf('postgresql.conf', "$name = $value");
	$node->reload;
	wait_until(sub { $session->value("SHOW $name") eq $value }) or die "$name is not $value";
	return;
}

# The standby reads its configuration when it likes, and judges it when it replays
# something.
sub wait_until_never_changed_is
{
	my ($what) = @_;
	wait_until(
		sub {
			$writer->run('INSERT INTO rows SELECT $$judge$$');
			catch_up();
			return changed(position(), 'never') eq $what;
		}) or die 'the standby does not judge its configuration';
	return;
}

# ---- exact, if both replicate

$writer->run('NOTIFY begin');
catch_up();
wait_until_counting($client);
my $before = position();
is(changed($before, 'a', 'b'), '', 'nothing has changed on the standby');
isnt($before, $writer->value('SELECT pinpoint.position()'), 'its positions are its own');
$writer->run(q{INSERT INTO rows VALUES ('1'); NOTIFY a});
catch_up();
is($client->value('SELECT count(*) FROM rows'), 1, 'a commit is replayed');
is(changed($before, 'a', 'b'), 'a', 'and reported');
my $next = position();
is(changed($next, 'a', 'b'), '', 'once');
$writer->run('BEGIN; NOTIFY b; ROLLBACK');
catch_up();
is(changed($next, 'a', 'b'), '', 'not what was rolled back');

# (Channels that did not change may share a place with one of these.)
$writer->run('INSERT INTO rows SELECT count(pg_notify(i::text, repeat($$x$$, 1000))) FROM generate_series(1, 1000) AS i');
catch_up();
is(changed($next, 1 .. 3, 1000), '1 2 3 1000', 'many channels');
like($client->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pinpoint.position()')->error->{M},
	qr/isolation level REPEATABLE READ/, 'the error is that of a primary');
$client->run('ROLLBACK');

# A position of the primary is unknown.
is(changed($writer->value('SELECT pinpoint.position()'), 'never'), 'never', 'positions of the primary are unknown');

# ---- the standby's own setting

my ($alive, $plain) = map { connect_to($standby) } 1, 2;
$plain->run('LISTEN c');
$alive->run('LISTEN c; LISTEN pinpoint_heartbeat');
$alive->wait_for(1);
$next = position();
set_on($standby, $client, 'pinpoint.replicate', 'off');
wait_until_never_changed_is('never');
$writer->run(q{NOTIFY a});
catch_up();
is(changed($next, 'a', 'never'), 'a never', 'with replicate off on the standby all have changed');
is(changed(position(), 'a', 'never'), 'a never', 'always');

# Nor do heartbeats say that all is well there.
ok( wait_until(
		sub {
			$alive->query('');
			$alive->take_notifications;
			my $until = Time::HiRes::time() + 0.5;
			while (Time::HiRes::time() < $until) { $alive->receive_available; Time::HiRes::sleep(0.01); }
			return !$alive->take_notifications;
		}),
	'there are no heartbeats');
$client->run('SET pinpoint.replicate = on');
is(changed(position(), 'a', 'never'), 'a never', 'whatever a session sets');
$client->run('RESET pinpoint.replicate');

# What the primary does not replicate meanwhile is in no position.
$next = position();
my $unreplicated = connect_to($primary, options => '-c pinpoint.replicate=off');
$unreplicated->run(q{INSERT INTO rows VALUES ('unreplicated'); NOTIFY c});
catch_up();
set_on($standby, $client, 'pinpoint.replicate', 'on');
wait_until_never_changed_is('');

# A heartbeat from now on would cover that.
my $message = $alive->receive;
is($message->{type}, 'E', 'when it is switched on those that listen for heartbeats are disconnected before they get one');
is_deeply(
	[ map { $message->{fields}{$_} } qw(C D) ],
	[
		'57P01',
		'This listener may have missed notifications that were not replicated, and the next heartbeat would cover them.'
	],
	'and told why');
$alive = connect_to($standby);
$alive->run('LISTEN pinpoint_heartbeat');
like(($alive->wait_for(1))[0]{payload}, qr/ standby$/, 'then there are heartbeats again');
$writer->run(q{NOTIFY c, 'again'});
is(as_text($plain->wait_for(1)), 'c/again', 'other listeners stay connected');
$_->close for $alive, $plain;
is(changed($next, 'c', 'never'), 'c never', 'positions from before it was switched on are unknown');
$next = position();
is(changed($next, 'c', 'never'), '', 'those from after it are not');
$writer->run('NOTIFY c');
catch_up();
is(changed($next, 'c', 'never'), 'c', 'and are exact');

# ---- what cannot be told

$writer->run("CREATE FUNCTION emit(bytea) RETURNS void AS '$library', 'interference_emit' LANGUAGE C");
$next = position();
$writer->run(q{SELECT emit(convert_to(E'1 1 1 1 56 8\n', 'UTF8'))});
catch_up();
is(changed($next, 'never'), 'never', 'after a transaction that was not replayed in full all have changed');
$next = position();
is(changed($next, 'never'), '', 'once');

$writer->run('CREATE DATABASE other');
my $other = connect_to($primary, dbname => 'other');
$next = position();
$other->run('CREATE EXTENSION pg_pinpoint');
catch_up();
is(changed($next, 'never'), 'never', 'and after CREATE EXTENSION');
$other->close;

# ---- heartbeats; an old primary may have let others notify

my $beats = connect_to($standby);
$beats->run('LISTEN pinpoint_heartbeat; LISTEN "Pinpoint_heartbeat"; LISTEN a');
my ($heartbeat) = $beats->wait_for(1);
like($heartbeat->{payload}, qr/^[0-9a-f-]{76} standby$/, 'a standby has a heartbeat');
is(substr($heartbeat->{payload}, 0, 76), position(), 'with its own position');
$writer->run(q{SELECT emit(convert_to(E'1 1 1 1 40 0\npinpoint_heartbeat\n0\tforged\n', 'UTF8'))});
catch_up();
my @told;
wait_until(
	sub {
		$beats->query('');
		push @told, $beats->take_notifications;
		return grep { $_->{payload} eq 'forged' } @told;
	}) or die 'nothing comes';
is_deeply([ map { $_->{channel} } grep { $_->{payload} eq 'forged' } @told ],
	['Pinpoint_heartbeat'], 'a forged heartbeat becomes another channel');

# ---- promotion

$next = position();
is(changed($next, 'never'), '', 'before the promotion nothing has changed');
$standby->promote;
wait_until(sub { $client->value('SELECT NOT pg_is_in_recovery()') eq 't' }) or die 'it is not promoted';
is(changed($next, 'a', 'never'), 'a never', 'after it everybody looks');
$next = position();
is(changed($next, 'a', 'never'), '', 'once');
$client->run('NOTIFY a');
is(changed($next, 'a', 'never'), 'a', 'and goes on');
my @roles;
wait_until(
	sub {
		$beats->query('');
		push @roles, map { $_->{payload} =~ /(\w+)$/ } grep { $_->{channel} eq 'pinpoint_heartbeat' } $beats->take_notifications;
		return grep { $_ eq 'primary' } @roles;
	}) or die 'it does not say so';
like(join(' ', @roles), qr/^(standby )*(primary ?)+$/, 'the heartbeat goes on, and says primary from then on');

# ---- back to the old primary as a standby of the new one

$_->close for $writer, $unreplicated;
$primary->stop;
my $old = $writer = undef;
$client->run('CHECKPOINT');
$standby->backup('base');
$old = standby('old', $standby);
my $there = connect_to($old);
wait_until(
	sub {
		$there->value("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$next', 'never')") eq 'never';
	});
is($there->value("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$next', 'never')"),
	'never', 'a position of one server is unknown on the other');

# ---- restart of a standby

my $there_before = $there->value('SELECT pinpoint.position()');
$there->close;
stop_and_start($old, 'fast');
$there = connect_to($old);
is($there->value("SELECT changed FROM pinpoint.changed_since('$there_before', 'never')"),
	'{never}', 'a restart makes positions unknown');

done_testing;
