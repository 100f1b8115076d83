# A standby whose primary says that it does not replicate notifications: all channels count
# as changed, and there are no heartbeats.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use Test::More;
use Time::HiRes;

my $primary = new_node('primary',
	init => { allows_streaming => 1 },
	conf => "pinpoint.replicate = on\npinpoint.heartbeat_interval = 50ms");
$primary->backup('base');
my ($next, $standby) = map {
	my $node = PostgreSQL::Test::Cluster->new($_);
	$node->init_from_backup($primary, 'base', has_streaming => 1);
	$node->append_conf('postgresql.conf', "wal_retrieve_retry_interval = 100ms\nprimary_slot_name = ''");
	$node->append_conf('postgresql.conf', 'pinpoint.replicate = off') if $_ eq 'next';
	$node->start;
	$node
} qw(next standby);
my $writer = connect_to($primary);
my $client = connect_to($standby);
$writer->run('CREATE TABLE rows (i int); NOTIFY a');
$primary->wait_for_catchup($_, 'replay', $primary->lsn('insert')) for $next, $standby;

sub listener
{
	my $session = connect_to($standby);
	$session->run('LISTEN a; LISTEN pinpoint_heartbeat');
	return $session;
}

wait_until_counting($client);
my $listener = listener();
is(($listener->wait_for(1))[0]{channel}, 'pinpoint_heartbeat', 'heartbeats come while the primary replicates');

# A server takes over that does not, and cannot know what it has missed.
my ($beats_next, $plain_next) = map { connect_to($next) } 1, 2;
$plain_next->run('LISTEN a');
$beats_next->run('LISTEN a; LISTEN pinpoint_heartbeat');
$primary->stop;
$standby->append_conf('postgresql.conf', "primary_conninfo = '" . $next->connstr . "'");
$next->promote;
$standby->reload;
$writer = connect_to($next);
my $unreplicated =
  'This listener may have missed notifications that were not replicated, and the next heartbeat would cover them.';

# What comes next to a session: the reason why it is disconnected, if that is it.
sub next_is
{
	my ($session) = @_;
	my $message = $session->receive;
	return $message->{type} eq 'E' ? "$message->{fields}{C}: $message->{fields}{D}" : $message->{type};
}
is(next_is($beats_next), "57P01: $unreplicated",
	'those that listen for heartbeats there are disconnected before any comes');
$writer->run(q{NOTIFY a, 'new primary'});
is(as_text($plain_next->wait_for(1)), 'a/new primary', 'other listeners stay connected');
my ($error) = map { $_->{fields} } grep { $_->{type} eq 'E' } $listener->receive_until('EOF')->messages;
like("$error->{C}: $error->{D}", qr/^57P01: The primary no longer/, 'and all listeners on its standby are disconnected');

$listener = listener();
my $position = $listener->value('SELECT pinpoint.position()');
$writer->run('INSERT INTO rows VALUES (1); NOTIFY a');
$next->wait_for_catchup($standby, 'replay', $next->lsn('insert'));
is($client->value('SELECT count(*) FROM rows'), 1, 'a row is replayed');
is($client->value("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', 'a', 'never')"),
	'a never', 'all channels count as changed');
my $until = Time::HiRes::time() + 0.5;
while (Time::HiRes::time() < $until) { $listener->receive_available; Time::HiRes::sleep(0.01); }
is_deeply([ map { as_text($_) } $listener->take_notifications ], [], 'and no heartbeat says that all is well');

# It begins to replicate.  The listener may have missed something.
$writer->run('ALTER SYSTEM SET pinpoint.replicate = on');
$writer->run('SELECT pg_reload_conf()');
wait_until(sub { $writer->value('SHOW pinpoint.replicate') eq 'on' }) or die 'not reloaded';
is(next_is($listener), "57P01: $unreplicated", 'when it replicates the listener is disconnected before any heartbeat comes');
$listener = listener();
is(($listener->wait_for(1))[0]{channel}, 'pinpoint_heartbeat', 'and there are heartbeats again');
is($listener->value("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', 'a', 'never')"),
	'a never', 'which the client does not need to believe in: all channels have changed');

done_testing();
