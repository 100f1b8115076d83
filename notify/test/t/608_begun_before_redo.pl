# A standby that begins to replay between the message of a transaction and its commit
# disconnects those who have listened when it replays the commit.  Other transactions of
# that time disconnect nobody.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $library = compile_interference();
my $primary = new_node('primary', init => { allows_streaming => 1 },
	preload => "$library, pg_pinpoint", conf => 'pinpoint.replicate = on');
my $admin = connect_to($primary);
$admin->run('CREATE TABLE rows (i int)');
$admin->run('CREATE DATABASE elsewhere');

# Transactions that have begun when the standby is made: one that writes, one that has
# written what it notifies, and is about to write its commit record.
my ($writes, $notifies) = connect_many($primary, 2);
$writes->run('BEGIN; INSERT INTO rows VALUES (1)');
begin_and_pause($admin, $notifies, 'pre_commit', q(BEGIN; INSERT INTO rows VALUES (2); NOTIFY a, 'lost'; COMMIT));
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_pinpoint'");
$standby->start;
my $observer = connect_to($standby);
my $listener = connect_to($standby);
$listener->run('LISTEN a');

$admin->run(q(BEGIN; INSERT INTO rows VALUES (3); NOTIFY a, 'begun later'; COMMIT));
is(as_text($listener->wait_for(1)), 'a/begun later', 'a transaction that began later');
$writes->run('COMMIT');
wait_until(sub { $observer->value('SELECT count(*) FROM rows WHERE i = 1') }) or die 'the commit is not replayed';
is($listener->query('SELECT 1')->error, undef, 'one that began before, and has notified nothing, disconnects nobody');

my $log = -s $standby->logfile;
open_gate();
is($notifies->result->error, undef, 'one that had written what it notifies commits');
my ($error) = map { $_->{fields} } grep { $_->{type} eq 'E' } $listener->receive_until('EOF')->messages;
is_deeply(
	[ @{$error}{qw(C D)} ],
	[
		'57P01',
		'A transaction may have sent notifications just before the WAL location at which the standby began to replay.'
	],
	'and the listener is disconnected');
ok( wait_until(
		sub {
			$standby->log_contains(
				'cannot deliver the notifications of a transaction\n.*DETAIL:  The transaction may have written them before the WAL location at which replay began\.',
				$log);
		}),
	'the log says so');
is($observer->value('SELECT count(*) FROM rows WHERE i = 2'), 1, 'with its row visible');

# From then on nothing is left of that time, and a lock that is exclusive means nothing.
$listener = connect_to($standby);
$listener->run('LISTEN a');
$admin->run('CHECKPOINT');
$admin->run('BEGIN; LOCK TABLE rows IN ACCESS EXCLUSIVE MODE; INSERT INTO rows VALUES (4); COMMIT');
$admin->run(q(NOTIFY a, 'after'));
is(as_text($listener->wait_for(1)), 'a/after', 'the others notify as ever');

$_->close for $writes, $notifies;
$listener->close;
server_is_clean($observer, 'nothing is left');

done_testing();
