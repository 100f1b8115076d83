# Databases: each has its own channels, and may or may not have the extension.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node     = new_node('main');
my $observer = connect_to($node);

sub session { return connect_to($node, dbname => $_[0]); }

# How many batches the engine published while $action ran.
sub published_by
{
	my ($action) = @_;
	my $before = stat_queue($observer)->{published};
	$action->();
	return stat_queue($observer)->{published} - $before;
}

# ---- the same channel name in several databases

$observer->run("CREATE DATABASE $_") for qw(one two plain);
$node->safe_psql($_, 'CREATE EXTENSION pg_pinpoint') for qw(one two);

my %listener = map { $_ => session($_) } qw(one two plain);
my %sender   = map { $_ => session($_) } qw(one two plain);
$_->run('LISTEN a') for values %listener;

for my $round (1 .. 3)
{
	for my $dbname (sort keys %sender)
	{
		my $through_engine = published_by(
			sub { $sender{$dbname}->run("NOTIFY a, 'to $dbname $round'") });
		is($through_engine, $dbname eq 'plain' ? 0 : 1,
			$dbname eq 'plain'
			? 'without the extension NOTIFY goes PostgreSQL\'s own way'
			: "in database $dbname NOTIFY goes through the engine");
	}
}
for my $dbname (sort keys %listener)
{
	$sender{$dbname}->run("NOTIFY a, 'end'");
	is_deeply(
		all_as_text($listener{$dbname}->notifications_until('a', 'end')),
		[ map { "a/to $dbname $_" } 1 .. 3 ],
		"the listener in database $dbname gets what was sent there and nothing else");
}
is_deeply(
	$sender{one}->run(
		q{SELECT datname, channel, listeners FROM pinpoint.stat_channels
		   ORDER BY datname})->rows,
	[ [ 'one', 'a', 1 ], [ 'plain', undef, 1 ], [ 'two', undef, 1 ] ],
	'the view of the channels has those of all databases, and names its own');
is_deeply(
	$observer->run(
		q{SELECT datname, channels FROM pinpoint.stat_listeners ORDER BY datname}
	)->rows,
	[ [ 'one', 1 ], [ 'plain', 1 ], [ 'two', 1 ] ],
	'so has the view of the listeners');

# Also when they read the same stretch of the queue.
$listener{$_}->run('BEGIN') for qw(one two);
for my $round (1 .. 3)
{
	$sender{$_}->run("NOTIFY a, 'again to $_ $round'") for qw(one two);
}
for my $dbname (qw(one two))
{
	is_deeply(
		all_as_text($listener{$dbname}->run('COMMIT')->notifications),
		[ map { "a/again to $dbname $_" } 1 .. 3 ],
		"a listener in database $dbname that was behind gets what was sent there");
	$listener{$dbname}->take_notifications;
}

# ---- a function that looks like the extension's is not called

$observer->run('CREATE ROLE intruder LOGIN');
$observer->run('GRANT CREATE ON DATABASE plain TO intruder');
my $intruder = connect_to($node, dbname => 'plain', user => 'intruder');
$intruder->run(
	q{CREATE SCHEMA pinpoint;
	  CREATE FUNCTION pinpoint.notify(text, text) RETURNS void LANGUAGE plpgsql
		AS $$ BEGIN RAISE EXCEPTION 'called as %', current_user; END $$;
	  CREATE FUNCTION pinpoint.notification_queue_usage() RETURNS float8
		LANGUAGE plpgsql
		AS $$ BEGIN RAISE EXCEPTION 'called as %', current_user; END $$;
	  GRANT USAGE ON SCHEMA pinpoint TO PUBLIC});
for my $session ($sender{plain}, $intruder)
{
	my $user = $session->value('SELECT current_user');
	is( published_by(
			sub { $session->run("SELECT pg_notify('a', 'call by $user')") }),
		0, "pg_notify() by $user goes PostgreSQL's own way");
	is(as_text($listener{plain}->wait_for(1)), "a/call by $user", 'and arrives');
	is($session->value('SELECT pg_notification_queue_usage()'),
		0, 'likewise pg_notification_queue_usage()');
	$session->run('SET search_path = pinpoint, pg_catalog');
	$session->run("SELECT pg_notify('a', 'by path'); NOTIFY a, 'statement'");
	is_deeply(
		all_as_text($listener{plain}->wait_for(2)),
		[ 'a/by path', 'a/statement' ],
		'whatever the search path');
	$session->run('RESET search_path');
}
like($intruder->query("SELECT pinpoint.notify('a', '')")->error->{M},
	qr/^called as intruder$/, 'called by its own name it is what it is');

# Nor one that its owner puts beside the extension's own.
$observer->run('CREATE ROLE neighbour LOGIN');
my $neighbour = connect_to($node, dbname => 'one', user => 'neighbour');
error_is(
	$neighbour->query(
		'CREATE FUNCTION pinpoint.notify(varchar, varchar) RETURNS void'
		  . q( LANGUAGE sql AS 'SELECT')),
	'42501', 'permission denied for schema pinpoint', undef,
	'the schema of the extension is not open to everyone');

# ---- CREATE EXTENSION and DROP EXTENSION while sessions listen and notify

$sender{plain}->run('DROP SCHEMA pinpoint CASCADE');
$sender{plain}->run('PREPARE by_function AS SELECT pg_notify($1, $2)');
$sender{plain}->run('SET plan_cache_mode = force_generic_plan');
$sender{plain}->run(
	q{CREATE FUNCTION from_plpgsql(text) RETURNS void LANGUAGE plpgsql
		AS $$ BEGIN PERFORM pg_notify('a', $1); END $$});
my $admin = session('plain');

# Each of the ways in which a session may hold a plan made before.
my @ways = (
	[ 'NOTIFY',            sub { "NOTIFY a, '$_[0]'" } ],
	[ 'pg_notify()',       sub { "SELECT pg_notify('a', '$_[0]')" } ],
	[ 'a cached plan',     sub { "EXECUTE by_function('a', '$_[0]')" } ],
	[ 'a PL/pgSQL function', sub { "SELECT from_plpgsql('$_[0]')" } ]);

sub check_ways
{
	my ($expected, $when) = @_;
	foreach my $way (@ways)
	{
		my ($name, $statement) = @$way;
		is( published_by(sub { $sender{plain}->run($statement->("$name, $when")) }),
			$expected,
			"$when: $name goes "
			  . ($expected ? 'through the engine' : "PostgreSQL's own way"));
		is(as_text($listener{plain}->wait_for(1)),
			"a/$name, $when", 'and arrives');
	}
	$sender{plain}->run("NOTIFY a, 'fence $when'");
	is_deeply(
		all_as_text($listener{plain}->notifications_until('a', "fence $when")),
		[], 'each once');
	return;
}

check_ways(0, 'before CREATE EXTENSION');
$admin->run('CREATE EXTENSION pg_pinpoint');
check_ways(1, 'after CREATE EXTENSION');
$admin->run('DROP EXTENSION pg_pinpoint');
check_ways(0, 'after DROP EXTENSION');
$admin->run('CREATE EXTENSION pg_pinpoint');
check_ways(1, 'after CREATE EXTENSION again');

# Not visible before its commit, and not after a rollback.
$admin->run('BEGIN; DROP EXTENSION pg_pinpoint; ROLLBACK');
check_ways(1, 'after DROP EXTENSION was rolled back');

# Within the transaction that makes it.
$admin->run('DROP EXTENSION pg_pinpoint');
$admin->run(
	q{BEGIN; NOTIFY a, '1'; CREATE EXTENSION pg_pinpoint; NOTIFY a, '2';
	  SELECT pg_notify('a', '3'); COMMIT});
is_deeply(
	[ sort @{ all_as_text($listener{plain}->wait_for(3)) } ],
	[ 'a/1', 'a/2', 'a/3' ],
	'NOTIFY before and after CREATE EXTENSION in one transaction');
$admin->run(
	q{BEGIN; NOTIFY a, '1'; DROP EXTENSION pg_pinpoint; NOTIFY a, '2';
	  SELECT pg_notify('a', '3'); COMMIT});
is_deeply(
	[ sort @{ all_as_text($listener{plain}->wait_for(3)) } ],
	[ 'a/1', 'a/2', 'a/3' ],
	'and before and after DROP EXTENSION');
check_ways(0, 'after DROP EXTENSION in a transaction that notified');

# A session that began to listen in the meantime, and one that stopped.
my $newcomer = session('plain');
$newcomer->run('LISTEN a');
$listener{plain}->run('UNLISTEN a; LISTEN fence');
$admin->run('CREATE EXTENSION pg_pinpoint');
$sender{plain}->run("NOTIFY a, 'for the newcomer'; NOTIFY fence, 'end'");
is(as_text($newcomer->wait_for(1)), 'a/for the newcomer',
	'LISTEN before CREATE EXTENSION is known to the engine');
is_deeply(
	all_as_text($listener{plain}->notifications_until('fence', 'end')),
	[], 'and so is UNLISTEN');

# ---- a database made from another, renamed, and dropped under its listeners

$_->close for $listener{one}, $sender{one}, $neighbour;
ok( wait_until(
		sub {
			$observer->value(
				q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'one'}
			) eq 't';
		}),
	'the sessions of the template have ended');

# PostgreSQL waits some seconds for processes that have not quite ended.
wait_until(sub { !$observer->query('CREATE DATABASE three TEMPLATE one')->error })
  or die 'could not copy the database';
my $in_one   = session('one');
my $in_three = session('three');
$_->run('LISTEN a') for $in_one, $in_three;
is( published_by(
		sub {
			my $session = session('three');
			$session->run("NOTIFY a, 'in the copy'");
			$session->close;
		}),
	1, 'a copy of a database has the extension');
is(as_text($in_three->wait_for(1)), 'a/in the copy', 'and works by itself');
$in_one->run("NOTIFY a, 'in the original'");
is_deeply(
	all_as_text($in_one->wait_for(1)), ['a/in the original'],
	'as does the original');

drop_database($observer, 'three');
is($in_three->receive_until('EOF')->error->{C},
	'57P01', 'listeners of a database dropped by force are terminated');
ok( wait_until(
		sub {
			$observer->value(
				'SELECT count(*) = 0 FROM pinpoint.stat_channels c'
				  . ' LEFT JOIN pg_database d ON d.oid = c.datid WHERE d.oid IS NULL'
			) eq 't';
		}),
	'and leave no channel');

$in_one->close;
wait_until(
	sub {
		$observer->query('ALTER DATABASE one RENAME TO renamed')->error ? 0 : 1;
	}) or die 'could not rename the database';
my $in_renamed = session('renamed');
$in_renamed->run("LISTEN a; NOTIFY a, 'renamed'");
is(as_text($in_renamed->wait_for(1)), 'a/renamed', 'a renamed database');
is( $observer->value(
		q{SELECT datname FROM pinpoint.stat_listeners WHERE pid = }
		  . $in_renamed->pid),
	'renamed', 'is shown by its new name');

$_->close for $in_renamed, $newcomer, $admin, $listener{two}, $listener{plain};
server_is_clean($observer, 'nothing is left');

done_testing();
