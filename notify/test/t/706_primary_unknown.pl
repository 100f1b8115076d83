# A standby that does not know whether its primary replicates says that all channels have
# changed: after a start, a restart of the primary without the library, a failover to such
# a server.  When it knows again, positions from before are not good any more.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use Test::More;

my $primary = new_node('primary',
	init => { allows_streaming => 1 },
	conf => "pinpoint.heartbeat_interval = 50ms\npinpoint.replicate = off");
my $writer = connect_to($primary);
$writer->run('CREATE TABLE rows (what text)');

# A standby that says of its own configuration that notifications are replicated.
sub standby
{
	my ($name, $source) = @_;
	$source->backup($name);
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init_from_backup($source, $name, has_streaming => 1);
	$node->append_conf('postgresql.conf',
		"pinpoint.replicate = on\nwal_retrieve_retry_interval = 100ms\nprimary_slot_name = ''");
	$node->start;
	return $node;
}

sub position { return $_[0]->value('SELECT pinpoint.position()'); }

sub changed
{
	my ($session, $position, @channels) = @_;
	return $session->value("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', "
		  . join(', ', map { "'$_'" } @channels) . ')');
}

# All that is committed on one server is replayed on another.
sub catch_up
{
	my ($from, $to) = @_;
	my $lsn = $from->value('SELECT pg_current_wal_flush_lsn()');
	wait_until(sub { $to->value("SELECT pg_last_wal_replay_lsn() >= '$lsn'") eq 't' }) or die 'it does not catch up';
	return;
}

sub becomes_exact
{
	my ($session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_until(sub { changed($session, position($session), 'never') eq '' }), $name);
	return;
}

sub set_replicate
{
	my ($node, $session, $value) = @_;
	$node->append_conf('postgresql.conf', "pinpoint.replicate = $value");
	$node->reload;
	wait_until(sub { $session->value('SHOW pinpoint.replicate') eq $value }) or die 'not reloaded';
	return;
}

# A notification that the standby cannot know of.
sub missed
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $before = position($_[1]);
	$writer->run(q{INSERT INTO rows VALUES ('x'); NOTIFY a});
	catch_up($writer, $_[1]);
	is(changed($_[1], $before, 'a', 'never'), 'a never', $name);
	return $before;
}

# ---- a new base backup of a primary that does not replicate

my $standby = standby('standby', $primary);
my $client  = connect_to($standby);
my $missed  = missed('a new standby does not take it for granted that its primary replicates', $client);

# ---- a restarted standby

$client->close;
stop_and_start($standby, 'fast');
$client = connect_to($standby);
$missed = missed('nor does one that is restarted', $client);

# ---- switched on

my ($beats, $plain) = connect_many($standby, 2);
$beats->run('LISTEN a; LISTEN pinpoint_heartbeat');
$plain->run('LISTEN a');
set_replicate($primary, $writer, 'on');
becomes_exact($client, 'it knows when it is switched on');
is(changed($client, $missed, 'a', 'never'), 'a never', 'positions from before are not good any more');
is($beats->receive->{fields}{C}, '57P01', 'a session that listens for heartbeats is disconnected before one comes');

# A session that has missed something cannot begin to listen for heartbeats.
error_is(
	$plain->query('LISTEN pinpoint_heartbeat'),
	'55000',
	'cannot listen on "pinpoint_heartbeat" because this session may have missed notifications',
	undef,
	'a session that has listened before cannot listen for heartbeats later');
$plain->run('UNLISTEN *');
$plain->run('LISTEN a; LISTEN pinpoint_heartbeat');
is(($plain->wait_for(1))[0]{channel}, 'pinpoint_heartbeat', 'but can if it begins to listen again');

my $exact = position($client);
$writer->run('NOTIFY a');
catch_up($writer, $client);
is(changed($client, $exact, 'a', 'never'), 'a', 'from then on answers are exact');

# ---- after a restart, a standby meets the status that is repeated after each checkpoint

$writer->run('CHECKPOINT');
$_->close for $client, $plain;
stop_and_start($standby, 'fast');
$client = connect_to($standby);
becomes_exact($client, 'a restarted standby knows it without a change on the primary');
my $second = standby('second', $primary);
my $there  = connect_to($second);
becomes_exact($there, 'and so does a new one');

# ---- the primary is restarted without the library

$writer->close;
$primary->append_conf('postgresql.conf', "shared_preload_libraries = ''");
my $before = position($client);
stop_and_start($primary, 'fast');
$writer = connect_to($primary);
$missed = missed('if the primary is restarted without the library, all have changed', $client);
is(changed($client, $before, 'never'), 'never', 'since earlier positions, too');

# It is restarted with it: after a crash.
$writer->close;
$primary->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_pinpoint'");
stop_and_start($primary, 'immediate');
$writer = connect_to($primary);
becomes_exact($client, 'with the library it is known again');
is(changed($client, $missed, 'a', 'never'), 'a never', 'and what was missed counts');
$exact = position($client);
$writer->run('NOTIFY a');
catch_up($writer, $client);
is(changed($client, $exact, 'a', 'never'), 'a', 'answers are exact again');

# ---- failover to a server without the library.  The other standby follows it.

becomes_exact($there, 'the second standby knows it, too');
$_->close for $writer, $client;
catch_up(connect_to($primary), $there);
$before = position($there);
$standby->append_conf('postgresql.conf', "shared_preload_libraries = ''\npinpoint.replicate = on");
stop_and_start($standby, 'fast');
$second->append_conf('postgresql.conf', "primary_conninfo = '" . $standby->connstr . "'");
$second->reload;

# Nothing may be on the second standby only, so it has left the primary first.
$primary->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_replication WHERE application_name = 'second'})
  or die 'the second standby stays';
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
$primary->stop('immediate');
$standby->promote;
$writer = connect_to($standby);
wait_until(sub { $writer->value('SELECT pg_is_in_recovery()') eq 'f' }) or die 'it is not promoted';
missed('after a failover to a server without the library all have changed', $there);
is(changed($there, $before, 'never'), 'never', 'since earlier positions, too');

done_testing;
