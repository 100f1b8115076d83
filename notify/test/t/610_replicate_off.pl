# A primary that does not replicate notifications any more says so, and listeners on its
# standbys are disconnected instead of hearing nothing.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use Test::More;

my $primary = new_node('primary', init => { allows_streaming => 1 },
	conf => "wal_level = logical\npinpoint.replicate = on");
$primary->backup('base');
my ($next, $standby) = map {
	my $node = PostgreSQL::Test::Cluster->new($_);
	$node->init_from_backup($primary, 'base', has_streaming => 1);
	$node->append_conf('postgresql.conf', "wal_retrieve_retry_interval = 100ms\nprimary_slot_name = ''");
	$node->append_conf('postgresql.conf', 'pinpoint.replicate = off') if $_ eq 'next';
	$node->start;
	$node
} qw(next standby);
my $admin = connect_to($primary);
$admin->run(q(SELECT pg_create_logical_replication_slot('notifications', 'test_decoding')));
my $log = 0;

# A session that listens, and hears what is notified on a server.
sub listens
{
	my ($on, $sender) = @_;
	my $session = connect_to($on);
	$session->run('LISTEN a');
	if ($sender)
	{
		# What was notified for another session may come first.
		my $payload = 'sent to ' . $on->name;
		$sender->run("NOTIFY a, '$payload'");
		my @before = map { $_->{payload} } $session->notifications_until('a', $payload);
		is_deeply([ grep { !/^sent to / } @before ], [], 'a session listens on ' . $on->name);
	}
	return $session;
}

sub is_disconnected
{
	my ($session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($error) = map { $_->{fields} } grep { $_->{type} eq 'E' } $session->receive_until('EOF')->messages;
	is_deeply(
		[ @{$error}{qw(C D)} ],
		[
			'57P01',
			'The primary no longer sends notifications to standbys, because "pinpoint.replicate" or "pinpoint.enabled" is off there.'
		],
		$name);
	ok(wait_until(sub { $standby->log_contains('the primary no longer replicates notifications', $log) }), 'the log says so');
	$log = -s $standby->logfile;
	return;
}

sub set_replicate
{
	my ($node, $session, $value) = @_;
	$session->run("ALTER SYSTEM SET pinpoint.replicate = $value");
	$node->reload;
	wait_until(sub { $session->value('SHOW pinpoint.replicate') eq $value }) or die 'not reloaded';
	return;
}

# ---- the setting changes

my $elsewhere = listens($next, $admin);
my $listener = listens($standby, $admin);
$admin->run('SET pinpoint.replicate = off');
$admin->run(q(NOTIFY a, 'here'));
$admin->run('RESET pinpoint.replicate');
$admin->run(q(NOTIFY a, 'everywhere'));
is(as_text($listener->wait_for(1)), 'a/everywhere', 'a session that turns it off for itself means nothing');
set_replicate($primary, $admin, 'off');
is_disconnected($listener, 'when it is turned off, listeners are disconnected');
$elsewhere->receive_until('EOF');

$listener = listens($standby);
stop_and_start($primary, 'fast');
$admin = connect_to($primary);
$primary->wait_for_catchup($standby);
is($listener->query('SELECT 1')->error, undef, 'it was off before: a restart of the primary disconnects nobody');
set_replicate($primary, $admin, 'on');
my $other_listener = listens($standby, $admin);
$listener->run('SELECT 1');
is(as_text($listener->wait_for(1)), 'a/sent to standby', 'when it is turned on nobody is disconnected');
$other_listener->close;

# What a server tells in this way is nothing for those who read from a slot.
is( $admin->value(
		q(SELECT count(*) FROM pg_logical_slot_get_changes('notifications', NULL, NULL) WHERE data LIKE '%transactional: 0%')),
	0, 'a replication slot does not hand it out');
is($admin->value(q(SELECT count(*) FROM pg_drop_replication_slot('notifications'))), 1, 'the slot is dropped');

# ---- another server becomes the primary, and has it off

wait_until_counting(connect_to($standby));
$primary->wait_for_catchup($_) for $next, $standby;
$_->close for $admin;
$primary->stop;
$next->promote;
$admin = connect_to($next);
wait_until(sub { $admin->value('SELECT pg_is_in_recovery()') eq 'f' }) or die 'not promoted';
$standby->append_conf('postgresql.conf',
	"primary_conninfo = '" . $next->connstr . " application_name=standby'");
$standby->reload;
is_disconnected($listener, 'after a promotion');
$listener = listens($standby);
set_replicate($next, $admin, 'on');
$listener->close;
$listener = listens($standby, $admin);

$_->close for $listener;
server_is_clean(connect_to($standby), 'nothing is left');

done_testing();
