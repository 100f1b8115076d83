# Notifications on standbys of every kind, and through what happens to them.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = "pinpoint.replicate = on\nwal_log_hints = on\nmax_connections = 50";
my $primary = new_node('primary', conf => $conf,
	init => { allows_streaming => 1, has_archiving => 1 });
$primary->backup('base');
my $admin = connect_to($primary);
$admin->run('CREATE TABLE rows (i int)');
my ($listener, @listeners);

# A standby of a server.
sub standby
{
	my ($name, $source, %params) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init_from_backup($source, $params{backup} // 'base',
		$params{restore} ? (has_restoring => 1) : (has_streaming => 1));
	$node->append_conf('postgresql.conf',
		join "\n", 'hot_standby = on', "primary_slot_name = ''", $params{conf} // '', '');
	$node->start;
	return $node;
}

sub listen_on
{
	my ($node) = @_;
	my $session = connect_to($node);
	$session->run('LISTEN a; LISTEN fence');
	return $session;
}

# What a session is told up to a fence that is sent on a server.
my $fence = 0;
sub told
{
	my ($session, $from) = @_;
	$fence++;
	($from // $primary)->safe_psql('postgres', "NOTIFY fence, 'told $fence'");
	return all_as_text(
		grep { $_->{channel} ne 'fence' } $session->notifications_until('fence', "told $fence"));
}

# ---- cascade, and a standby without the library

my $standby = standby('standby', $primary);
my $stock   = standby('stock', $primary,
	conf => "shared_preload_libraries = ''");
$standby->backup('from_standby');
my $cascade = standby('cascade', $standby, backup => 'from_standby');
@listeners = map { listen_on($_) } $standby, $cascade;
$admin->run(qq(BEGIN; INSERT INTO rows VALUES ($_); NOTIFY a, '$_'; COMMIT)) for 1 .. 10;
is_deeply([ map { told($_) } @listeners ], [ ([ map { "a/$_" } 1 .. 10 ]) x 2 ], 'a standby and its standby');
$primary->wait_for_catchup($stock);
is($stock->safe_psql('postgres', 'SELECT count(*) FROM rows'), 10, 'a standby without the library replays the same');
is($stock->psql('postgres', 'LISTEN a'), 3, 'and refuses LISTEN');
$stock->stop;

# ---- remote_apply: when COMMIT returns, listeners on the standby are woken

$primary->append_conf('postgresql.conf',
	"synchronous_standby_names = 'standby'\nsynchronous_commit = remote_apply");
$primary->reload;
wait_until(sub { ($admin->value(q(SELECT sync_state FROM pg_stat_replication WHERE application_name = 'standby')) // '') eq 'sync' })
  or die 'it is not synchronous';
wait_until_commits_wait($primary);
my $observer = connect_to($standby);
$listeners[0]->run('BEGIN');
my $in_time = 0;
foreach my $i (1 .. 20)
{
	my $before = stat_queue($observer)->{published};
	$admin->run(qq(BEGIN; INSERT INTO rows VALUES ($i); NOTIFY a, 'sync $i'; COMMIT));
	$in_time++ if stat_queue($observer)->{published} == $before + 1
	  && stat_listener($observer, $listeners[0]->pid)->{state} eq 'signalled';
}
is($in_time, 20, 'with remote_apply a COMMIT returns when the standby has published');
$listeners[0]->run('COMMIT');
is_deeply(told($listeners[0]), [ map { "a/sync $_" } 1 .. 20 ], 'and everything comes');
told($listeners[1]);
$primary->append_conf('postgresql.conf', "synchronous_standby_names = ''\nsynchronous_commit = on");
$primary->reload;
wait_until(sub { $admin->value('SHOW synchronous_standby_names') eq '' }) or die;

# ---- replay that is paused, or late

$observer->run('SELECT pg_wal_replay_pause()');
wait_until(sub { $observer->value('SELECT pg_get_wal_replay_pause_state()') eq 'paused' }) or die 'not paused';
$admin->run(q(NOTIFY a, 'paused'));
$listeners[0]->run('SELECT 1');
is_deeply([ grep { $_->{channel} eq 'a' } $listeners[0]->take_notifications ], [], 'nothing comes while replay is paused');
my $new = listen_on($standby);
$observer->run('SELECT pg_wal_replay_resume()');
is_deeply(told($_), ['a/paused'], 'it comes when replay goes on, also to a session that has listened meanwhile')
  for $listeners[0], $new;
$new->close;
told($listeners[1]);
$_->close for $observer, @listeners;

$cascade->append_conf('postgresql.conf', "recovery_min_apply_delay = '1h'");
$cascade->restart;
my $late = listen_on($cascade);
$admin->run(q(BEGIN; INSERT INTO rows VALUES (100); NOTIFY a, 'delayed'; COMMIT));
$primary->wait_for_catchup($standby);
$late->receive_available;
is_deeply([ $late->take_notifications ], [], 'a standby that is late tells late');
is($late->value('SELECT count(*) FROM rows WHERE i = 100'), 0, 'with the row');
$cascade->append_conf('postgresql.conf', 'recovery_min_apply_delay = 0');
$cascade->reload;
is(as_text($late->wait_for(1)), 'a/delayed', 'when its time has come');
is($late->value('SELECT count(*) FROM rows WHERE i = 100'), 1, 'with the row');
$late->close;
$cascade->stop;

# ---- the standby is restarted

$listener = listen_on($standby);
$standby->stop('fast');
$admin->run(qq(NOTIFY a, 'nobody listens $_')) for 1 .. 5;
$standby->start;
$listener = listen_on($standby);
$admin->run(q(NOTIFY a, 'after a restart'));
is((told($listener))->[-1], 'a/after a restart', 'after a restart');
$listener->close;
$standby->stop('immediate');
$standby->start;
$listener = listen_on($standby);
$admin->run(q(NOTIFY a, 'after a crash'));
is((told($listener))->[-1], 'a/after a crash', 'after an immediate shutdown');

# ---- the primary crashes between message and commit

my $library = compile_interference();
$admin->close;
$primary->append_conf('postgresql.conf', "shared_preload_libraries = '$library, pg_pinpoint'");
$primary->restart;
$admin = connect_to($primary);
my $dying = connect_to($primary);
begin_and_pause($admin, $dying, 'pre_commit', q(BEGIN; INSERT INTO rows VALUES (200); NOTIFY a, 'never'; COMMIT));
$admin->run(q(BEGIN; INSERT INTO rows VALUES (201); NOTIFY a, 'committed meanwhile'; COMMIT));
is((told($listener))->[-1], 'a/committed meanwhile', 'another transaction is not held back there');
$observer = connect_to($standby);
cmp_ok(stat_queue($observer)->{used_bytes}, '>', 0, 'the message is there, but not its commit');
$admin->close;
$primary->stop('immediate');
open_gate();
$primary->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_pinpoint'");
$primary->start;
$admin = connect_to($primary);
is($admin->value('SELECT coalesce(sum(transactions), 0) FROM pinpoint.stat_notify'), 0, 'the primary publishes nothing when it recovers');
$admin->run(q(NOTIFY a, 'after the crash of the primary'));
is_deeply(told($listener), ['a/after the crash of the primary'], 'nothing comes of what was not committed');
$admin->run('CHECKPOINT');
ok(wait_until(sub { stat_queue($observer)->{used_bytes} == 0 }), 'and nothing is kept of it');

# ---- promotion, with listeners connected, one of them in a transaction

my $busy = listen_on($standby);
$busy->run('BEGIN');
$admin->run(q(NOTIFY a, 'before'));
$primary->wait_for_catchup($standby);
$standby->promote;
ok(wait_until(sub { $observer->value('SELECT pg_is_in_recovery()') eq 'f' }), 'promoted');
$observer->run(q(NOTIFY a, 'after'));
like($busy->query('COMMIT')->types, qr/^CAAS*Z$/, 'a session in a transaction gets both');
is_deeply(all_as_text($busy->take_notifications), [ 'a/before', 'a/after' ], 'in order');
is_deeply(told($listener, $standby), [ 'a/before', 'a/after' ], 'and so does an idle one');
is($listener->query(q(NOTIFY a, 'own'))->error, undef, 'it can notify now');
$listener->run('LISTEN later');
$observer->run(q(SET pinpoint.enabled = off; NOTIFY later, 'own way'));
is(as_text((grep { $_->{channel} eq 'later' } $listener->notifications_until('later', 'own way'), { channel => 'later', payload => 'own way' })[-1]),
	'later/own way', q(also by PostgreSQL's own way));
$busy->close;

# ---- pg_rewind: the old primary becomes a standby of the new one

$admin->run(q(NOTIFY a, 'lost with the old primary'));
$admin->close;
$primary->stop;
$standby->safe_psql('postgres', 'CHECKPOINT');
command_ok(
	[
		'pg_rewind', '--target-pgdata', $primary->data_dir,
		'--source-server', $standby->connstr('postgres'), '--no-sync'
	],
	'pg_rewind');
$primary->append_conf('postgresql.conf',
	"port = " . $primary->port . "\nunix_socket_directories = '" . $primary->host . "'");
$primary->append_conf('postgresql.conf',
	"primary_conninfo = '" . $standby->connstr . " application_name=rewound'\nrestore_command = ''\narchive_mode = off");
$primary->set_standby_mode;
$primary->start;
my $rewound = listen_on($primary);
$standby->safe_psql('postgres', q(NOTIFY a, 'to the old primary'));
is((told($rewound, $standby))->[-1], 'a/to the old primary', 'the old primary is a standby now');
$rewound->close;
$primary->stop;

# ---- archive recovery, and a point in time

$standby->append_conf('postgresql.conf', $conf);
my $source = new_node('source', conf => $conf, init => { allows_streaming => 1, has_archiving => 1 });
$source->backup('base');
my $archive = standby('archive', $source, restore => 1);
my $from_archive = listen_on($archive);
$source->safe_psql('postgres', q(NOTIFY a, 'by the archive'));
$source->safe_psql('postgres', q(SELECT pg_create_restore_point('here')));
$source->safe_psql('postgres', q(NOTIFY a, 'behind the point'));
$source->safe_psql('postgres', 'SELECT pg_switch_wal()');
is_deeply(all_as_text($from_archive->wait_for(2)), [ 'a/by the archive', 'a/behind the point' ],
	'a standby that gets its WAL from the archive');
$from_archive->close;
$archive->stop;

my $point = PostgreSQL::Test::Cluster->new('point');
$point->init_from_backup($source, 'base', has_restoring => 1);
$point->append_conf('postgresql.conf',
	"recovery_target_name = 'here'\nrecovery_target_action = 'pause'\nhot_standby = on");
$point->start;
my $at_point = listen_on($point);
ok( wait_until(sub { $at_point->value('SELECT pg_get_wal_replay_pause_state()') eq 'paused' }),
	'recovery to a point in time');
$at_point->run('SELECT pg_wal_replay_resume()');
ok(wait_until(sub { $at_point->value('SELECT pg_is_in_recovery()') eq 'f' }), 'ends there');
$at_point->run(q(NOTIFY a, 'a new time'));
my @received = map { $_->{payload} } $at_point->notifications_until('a', 'a new time');
is_deeply([ grep { /behind/ } @received ], [], 'and tells nothing from behind it');
$at_point->close;

# ---- a primary without the library

$source->append_conf('postgresql.conf', "shared_preload_libraries = ''\npinpoint.replicate = on");
$source->restart;
$source->backup('without');
my $alone = standby('alone', $source, backup => 'without',
	conf => "shared_preload_libraries = 'pg_pinpoint'");
my $deaf  = listen_on($alone);
$source->safe_psql('postgres', q(NOTIFY a, 'without the library'));
$source->safe_psql('postgres', q(CREATE TABLE afterwards ()));
$source->wait_for_catchup($alone);
$deaf->receive_available;
is_deeply([ $deaf->take_notifications ], [], 'a primary without the library sends nothing');
is($deaf->value(q(SELECT count(*) FROM pg_class WHERE relname = 'afterwards')), 1, 'and the standby goes on');
$deaf->close;

done_testing();
