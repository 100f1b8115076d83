# Work of a session before its commit, and a client that does not read, delay no
# notifications of other sessions, and no VACUUM.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node     = new_node('main', conf => "wal_level = minimal\nmax_wal_senders = 0");
my $library  = compile_interference();
my $observer = connect_to($node);
my $sender   = connect_to($node);
my $slow     = connect_to($node);
my $listener = connect_to($node);
$listener->run('LISTEN a');
$slow->run("LOAD '$library'");
$slow->run("CREATE FUNCTION look_at_channels(int) RETURNS void LANGUAGE c AS '$library', 'interference_look_at_channels'");

sub go_on
{
	open_gate();
	return $slow->result;
}

# ---- a session that leaves

# It comes to its UNLISTENs, which take long if there are many, when it has published.
my $leaver = connect_to($node);
$leaver->run('LISTEN b');
begin_and_pause($observer, $slow, 'nowhere', 'SELECT look_at_channels(128)');
$leaver->send_query(q(BEGIN; UNLISTEN *; NOTIFY a, 'bye'; COMMIT));
ok( wait_until(
		sub {
			$observer->value(q(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PinpointChannelMap' AND pid = )
				  . $leaver->pid);
		}),
	'a session leaves its channels');
$sender->run(q{BEGIN; CREATE TABLE after_it (i int); NOTIFY a, 'next'; DROP TABLE after_it; COMMIT});
is_deeply(all_as_text($listener->wait_for(2)), [ 'a/bye', 'a/next' ], 'and holds back nobody');
is(go_on()->error, undef, 'nobody looks any more');
is($leaver->result->error, undef, 'it has left');
$leaver->close;

# ---- temporary tables

# The session is about to drop one, which takes long if there are many.
begin_and_pause($observer, $slow, 'drop',
	q{BEGIN; CREATE TEMP TABLE dropped ON COMMIT DROP AS SELECT 1 AS i; NOTIFY a, 'slow'; COMMIT});
is(stat_queue($observer)->{in_flight}, 0, 'a commit that still drops tables is not announced');
is(stat_queue($observer)->{used_bytes}, 0, 'and keeps no space in the queue');
$sender->run("NOTIFY a, 'quick'");
$sender->run(q{BEGIN; CREATE TABLE kept (i int); NOTIFY a, 'quick, with a row'; COMMIT});
is_deeply(
	all_as_text($listener->wait_for(2)),
	[ 'a/quick', 'a/quick, with a row' ],
	'and holds back nobody');
is(go_on()->error, undef, 'it commits in the end');
is_deeply(all_as_text($listener->wait_for(1)), ['a/slow'], 'and its notification comes');
$slow->run(q{SET interference.pause = 'nowhere'});
is($slow->query('SELECT * FROM dropped')->error->{C}, '42P01', 'the table is gone');

# What happens at commit happens as ever.
$slow->run('CREATE TEMP TABLE emptied (i int PRIMARY KEY, t text) ON COMMIT DELETE ROWS');
$slow->run('CREATE TEMP TABLE preserved (i int) ON COMMIT PRESERVE ROWS');
$slow->run(
	q{BEGIN; INSERT INTO emptied SELECT i, repeat('x', 3000) FROM generate_series(1, 100) AS i;
	  INSERT INTO preserved VALUES (1); NOTIFY a, 'emptied'; COMMIT});
is($slow->value('SELECT count(*) FROM emptied'), 0, 'ON COMMIT DELETE ROWS');
is($slow->value('SELECT count(*) FROM preserved'), 1, 'ON COMMIT PRESERVE ROWS');
is($slow->query(q{BEGIN; INSERT INTO emptied VALUES (1, ''); SELECT * FROM emptied; NOTIFY a, 'again'; COMMIT})->error,
	undef, 'and again');
is($slow->value('SELECT count(*) FROM emptied'), 0, 'it is empty once more');
is( $slow->query(
		q{BEGIN; CREATE TEMP TABLE once (i int UNIQUE DEFERRABLE INITIALLY DEFERRED) ON COMMIT DELETE ROWS;
		  INSERT INTO once VALUES (1), (1); NOTIFY a, 'failed'; COMMIT})->error->{C},
	'23505', 'a commit that fails');
is($slow->query('SELECT * FROM once')->error->{C}, '42P01', 'takes back its tables');
is_deeply(
	all_as_text($listener->wait_for(2)),
	[ 'a/emptied', 'a/again' ],
	'and tells nobody');

# ---- files that are synced instead of logged

$slow->run(
	q{BEGIN; CREATE TABLE large AS SELECT i, repeat('x', 500) AS t FROM generate_series(1, 20000) AS i;
	  CREATE TABLE small AS SELECT 1 AS i; CREATE INDEX ON large (i);
	  CREATE TABLE gone AS SELECT i FROM generate_series(1, 100000) AS i; DROP TABLE gone;
	  NOTIFY a, 'synced'; COMMIT});
is_deeply(all_as_text($listener->wait_for(1)), ['a/synced'], 'with wal_level = minimal');
$_->close for $listener, $slow, $sender, $observer;
$node->stop('immediate');
$node->start;
$observer = connect_to($node);
is( $observer->value(
		'SELECT (SELECT count(*) FROM large) || \' \' || (SELECT count(*) FROM small)'),
	'20000 1', 'what was committed outlives a crash');
is($observer->value('SET enable_seqscan = off; SELECT t IS NOT NULL FROM large WHERE i = 7'),
	't', 'indexes, too');

# ---- PostgreSQL's own trace, which goes to the client in the midst of the commit

sub traced
{
	my ($sql) = @_;
	return grep { $_->{type} eq 'N' && $_->{fields}{M} eq 'PreCommit_Notify' } $sender->run($sql)->messages;
}

$sender = connect_to($node);
$sender->run('SET trace_notify = on; SET client_min_messages = debug1');
cmp_ok(scalar(traced('LISTEN t')), '>', 0, 'trace_notify tells of a commit');
is(scalar(traced('LISTEN u; NOTIFY t')), 0, 'but not where others wait for it');
is($sender->value('SHOW trace_notify'), 'on', 'and stays on');
$sender->query('BEGIN; LISTEN u; NOTIFY t; ROLLBACK');
cmp_ok(scalar(traced('LISTEN v')), '>', 0, 'afterwards it tells again');
$sender->close;

# ---- a client that does not read

$sender = connect_to($node);
$observer->run('CREATE TABLE vacuumed (i int)');

# Some of PostgreSQL's own way come first, for which it takes a snapshot.
foreach my $isolation ('read committed', 'repeatable read')
{
	my $stuck = connect_to($node);
	$stuck->run("SET default_transaction_isolation = '$isolation'; LISTEN a");
	$sender->run("SET pinpoint.enabled = off; NOTIFY a, 'own way'; SET pinpoint.enabled = on");
	$stuck->wait_for(1);
	$stuck->run('BEGIN');
	$sender->run("SET pinpoint.enabled = off; NOTIFY a, 'own way'; SET pinpoint.enabled = on");
	$sender->run(
		q{DO $$ BEGIN FOR i IN 1 .. 200 LOOP PERFORM pg_notify('a', i || repeat('x', 7000)); COMMIT; END LOOP; END $$})
	  for 1 .. 10;
	$stuck->send_query('COMMIT');
	ok( wait_until(
			sub {
				$observer->value(
					q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND pid = }
					  . $stuck->pid);
			}),
		"$isolation: a listener waits for its client to read");
	is($observer->value('SELECT backend_xmin IS NULL FROM pg_stat_activity WHERE pid = ' . $stuck->pid),
		't', 'and holds no snapshot');
	$observer->run('INSERT INTO vacuumed SELECT generate_series(1, 1000); DELETE FROM vacuumed');

	# It passes over a page that another process, as the checkpointer, has just in use.
	ok( wait_until(
			sub {
				$observer->run('VACUUM vacuumed');
				return $observer->value(q{SELECT pg_relation_size('vacuumed')}) == 0;
			}),
		'VACUUM removes what is dead');
	$stuck->result;
	is_deeply(
		[ map { $_->{payload} =~ s/x+$//r } $stuck->wait_for(2001) ],
		[ 'own way', (1 .. 200) x 10 ],
		'it gets everything when it reads');
	$stuck->close;
}

server_is_clean($observer, 'nothing is left');

done_testing();
