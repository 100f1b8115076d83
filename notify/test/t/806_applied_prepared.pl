# Prepared transactions that the workers of a subscription apply: each commit notifies the
# watched tables, whichever worker has prepared the transaction, and whatever ends in between.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', init => { allows_streaming => 'logical' }, conf => <<'EOC');
max_prepared_transactions = 5
logical_decoding_work_mem = 64kB
wal_retrieve_retry_interval = 100ms
EOC
my ($owner, $listener, $bystander) = connect_many($node, 3);
my $has_parallel = $owner->value('SHOW server_version_num') >= 160000;
my $tables       = 'CREATE TABLE t (id int, v text); CREATE TABLE plain (id int);'
  . join '', map { "CREATE TABLE m$_ (id int);" } 1 .. 70;
$owner->run($tables);
$owner->run(q{SELECT pinpoint.watch('t'), pinpoint.watch('m70')});
$listener->run('LISTEN t; LISTEN m70; LISTEN fence');
$bystander->run('LISTEN b; LISTEN fence');
$node->safe_psql('postgres', 'CREATE DATABASE publisher');
my $publisher = connect_to($node, dbname => 'publisher');
$publisher->run($tables);
$publisher->run('CREATE PUBLICATION p FOR ALL TABLES');
$publisher->run(q{SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, true)});
my $here = 'host=' . $node->host . ' port=' . $node->port . ' user=' . getpwuid($>) . ' dbname=publisher';
my $streaming = $has_parallel ? 'parallel' : 'on';
$owner->run("CREATE SUBSCRIPTION s CONNECTION '$here' PUBLICATION p WITH (create_slot = false,"
	  . " slot_name = 's', copy_data = false, two_phase = true, streaming = $streaming)");
ok(wait_until(sub { $owner->value('SELECT subtwophasestate FROM pg_subscription') eq 'e' }), 'a subscription with two_phase');

my $prepared = 'SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()';
my $fences   = 0;
my $position = $owner->value('SELECT pinpoint.position()');

# What this session received until now.
sub received
{
	my ($session) = @_;
	my $fence = ++$fences;
	$owner->run("NOTIFY fence, '$fence'");
	return join ' ', sort grep { !/^fence/ } @{ all_as_text($session->notifications_until('fence', $fence)) };
}

# Prepares a transaction on the publisher, and waits until the subscriber has done so.
sub prepare
{
	my (@statements) = @_;
	$publisher->run($_) for 'BEGIN', @statements, q{PREPARE TRANSACTION 'p'};
	ok(wait_until(sub { $owner->value($prepared) == 1 }), 'the transaction is prepared on the subscriber') or die;
	is(received($listener), '', 'and notifies nothing yet');
	$position = $owner->value('SELECT pinpoint.position()');
	return;
}

sub finish
{
	my ($how) = @_;
	$publisher->run(qq{$how PREPARED 'p'});
	ok(wait_until(sub { $owner->value($prepared) == 0 }), 'it is finished there') or die;
	return;
}

# An apply worker has handled all that the publisher did, and committed a transaction.
sub catch_up
{
	my $lsn = $publisher->value('SELECT pg_current_wal_insert_lsn()');
	$publisher->run('INSERT INTO plain VALUES (1)');
	my $count = $publisher->value('SELECT count(*) FROM plain');
	ok(wait_until(sub { $owner->value('SELECT count(*) FROM plain') == $count }), 'the subscriber catches up') or die;
	return;
}

sub changed { return $owner->value("SELECT changed FROM pinpoint.changed_since('$position', 't', 'b', 'm70')"); }

sub notifies
{
	my ($expected, $name) = @_;
	my @first = $expected ? $listener->wait_for(1 + ($expected =~ tr/ //)) : ();
	catch_up();
	is(join(' ', sort(map { as_text($_) } @first), received($listener) || ()), $expected, $name);
	is(received($bystander), '', 'nobody else is notified or disconnected');
	is(changed(), '{' . join(',', sort { $b cmp $a } map { s/\/$//r } split / /, $expected) . '}', 'and the position says the same');
	return;
}

my $small = q{INSERT INTO t VALUES (1, 'small')};
my $large = q{INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 3000) i};

foreach my $case ([ 'small' => $small ], [ 'large' => $large ])
{
	my ($name, $insert) = @$case;
	prepare($insert);
	finish('COMMIT');
	notifies('t/', "$name: COMMIT PREPARED notifies");

	prepare($insert);
	finish('ROLLBACK');
	notifies('', "$name: ROLLBACK PREPARED does not");

	prepare($insert =~ s/INTO t/INTO plain/r =~ s/, repeat\('x', 100\)//r =~ s/, 'small'//r);
	finish('COMMIT');
	notifies('', "$name: nor does a table that is not watched");

	prepare($insert, map { "INSERT INTO m$_ VALUES (1)" } 1 .. 70);
	finish('COMMIT');
	notifies('m70/ t/', "$name: more tables than an entry has room for");
}
if ($has_parallel)
{
	like($owner->value(q{SELECT string_agg(backend_type, ' ') FROM pg_stat_activity}),
		qr/logical replication parallel worker/, 'a parallel worker has taken part');
}

# ---- workers and servers that end between the two commits

my $worker = q{SELECT pid FROM pg_stat_activity WHERE backend_type IN ('logical replication worker', 'logical replication apply worker')};

foreach my $insert ($small, $large)
{
	my $pid = $owner->value($worker);
	prepare($insert);
	$owner->run("SELECT pg_terminate_backend($pid)");
	ok(wait_until(sub { my $rows = $owner->run($worker)->rows; @$rows && $rows->[0][0] != $pid }), 'another worker');
	finish('COMMIT');
	notifies('t/', 'notifies');
}

prepare($large);
$_->close for $owner, $listener, $bystander, $publisher;
$node->stop('immediate');
$node->start;
($owner, $listener, $bystander) = connect_many($node, 3);
$publisher = connect_to($node, dbname => 'publisher');
$listener->run('LISTEN t; LISTEN m70; LISTEN fence');
$bystander->run('LISTEN b; LISTEN fence');
$position = $owner->value('SELECT pinpoint.position()');
finish('COMMIT');
notifies('t/', 'after a crash, another server notifies');

# The subscription is off, and somebody commits the transaction by its name on the
# subscriber, which notifies.  The next worker may notify again.
prepare($large);
$owner->run('ALTER SUBSCRIPTION s DISABLE');
ok(wait_until(sub { !@{ $owner->run($worker)->rows } }), 'there is no worker');
my $gid = $owner->value('SELECT gid FROM pg_prepared_xacts WHERE database = current_database()');
$owner->run("COMMIT PREPARED '$gid'");
is(received($listener), 't/', 'COMMIT PREPARED by hand notifies');
$publisher->run(q{ROLLBACK PREPARED 'p'});

# Other sessions prepare transactions, which have the same entries.
$owner->run($_) for map { ('BEGIN', 'INSERT INTO plain VALUES (1)', "PREPARE TRANSACTION 'o$_'", "COMMIT PREPARED 'o$_'") } 1 .. 5;
$owner->run('ALTER SUBSCRIPTION s ENABLE');
$publisher->run('INSERT INTO plain VALUES (2)');
ok(wait_until(sub { $owner->value('SELECT count(*) FROM plain WHERE id = 2') == 1 }), 'the subscription goes on');
unlike(received($listener), qr/m70/, 'without other notifications');

$owner->run($_) for 'ALTER SUBSCRIPTION s DISABLE', 'ALTER SUBSCRIPTION s SET (slot_name = NONE)', 'DROP SUBSCRIPTION s';
$_->close for $owner, $listener, $bystander, $publisher;
done_testing();
