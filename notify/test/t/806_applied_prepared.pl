# Prepared transactions that the workers of a subscription apply: each commit notifies the
# watched tables, whichever worker has prepared the transaction, and whatever ends in between.
# A worker is cancelled, terminated or fails after a commit record: the listeners are notified
# or told.  Entries of prepared transactions are overwritten.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# The library is loaded after pg_pinpoint, so its callbacks run before those of pg_pinpoint.
my $library = compile_interference();
my $file    = "$PostgreSQL::Test::Utils::tmp_check/worker";
my $node    = new_node('main', preload => "pg_pinpoint, $library", init => { allows_streaming => 'logical' }, conf => <<"EOC");
interference.worker = '$file'
max_prepared_transactions = 7
pinpoint.queue_memory = 256kB
pinpoint.queue_size = 256kB
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

# All sessions end, and the server stops.
sub stop
{
	$_->close for $owner, $listener, $bystander, $publisher;
	$node->stop('immediate');
	return;
}

sub connect_again
{
	($owner, $listener, $bystander) = connect_many($node, 3);
	$publisher = connect_to($node, dbname => 'publisher');
	$listener->run('LISTEN t; LISTEN m70; LISTEN fence');
	$bystander->run('LISTEN b; LISTEN fence');
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

# again: it may be notified twice, by a worker and by its reserve.
sub notifies
{
	my ($expected, $name, %options) = @_;
	my @first = $expected ? $listener->wait_for(1 + ($expected =~ tr/ //)) : ();
	catch_up();
	my $told = join ' ', sort(map { as_text($_) } @first), received($listener) || ();
	$told = $expected if $options{again} && $told eq "$expected $expected";
	is($told, $expected, $name);
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

my $worker = q{SELECT pid FROM pg_stat_activity WHERE datname = 'postgres'}
  . q{ AND backend_type IN ('logical replication worker', 'logical replication apply worker')};

# Another worker is there than this one.
sub replaced
{
	my ($pid, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(wait_until(sub { my $rows = $owner->run($worker)->rows; @$rows && $rows->[0][0] != $pid }), "$name: another worker");
}

foreach my $insert ($small, $large)
{
	my $pid = $owner->value($worker);
	prepare($insert);
	$owner->run("SELECT pg_terminate_backend($pid)");
	replaced($pid, 'terminated before the commit');
	finish('COMMIT');
	notifies('t/', 'notifies');
}

prepare($large);
stop();
$node->start;
connect_again();
finish('COMMIT');
notifies('t/', 'after a crash, another server notifies');

# ---- requests and errors after a commit record

# What a worker does from now on: see interference.c.
sub let_worker
{
	my ($what) = @_;
	append_to_file("$file.new", $what);
	rename "$file.new", $file or die "could not rename $file.new: $!";
	return;
}

sub go_on { unlink $file or die "could not remove $file: $!"; return; }

my $xid = 'SELECT transaction FROM pg_prepared_xacts WHERE database = current_database()';

# The PID of the worker that pauses.
sub paused
{
	my $rows;
	wait_until(sub { $rows = $owner->run(q{SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Extension'}
			  . q{ AND backend_type LIKE 'logical replication%'})->rows; @$rows })
	  or die 'no worker pauses';
	return $rows->[0][0];
}

# Commits on the publisher.  The worker pauses after it has committed the prepared transaction,
# in its own commit.  Returns its PID.
sub commit_and_pause
{
	let_worker('pre_commit pause ' . $owner->value($xid));
	finish('COMMIT');
	return paused();
}

# Commits on the publisher.  The worker fails there.
sub commit_and_fail
{
	my ($name) = @_;
	my $pid = $owner->value($worker);
	let_worker('pre_commit fail ' . $owner->value($xid));
	finish('COMMIT');
	replaced($pid, $name);
	return;
}

# This worker does not go on: after a while, all listeners of the database are told.
sub all_are_told
{
	my ($pid, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_told($listener, "$name: the listener");
	is_told($bystander, '... and all others of the database');
	is(changed(), '{t,b,m70}', '... and the position says the same');
	go_on();
	ok( wait_until(sub { $owner->value("SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'LogicalApplyMain'") }),
		'it goes on');
	$_->close for $listener, $bystander;
	($listener, $bystander) = connect_many($node, 2);
	$listener->run('LISTEN t; LISTEN m70; LISTEN fence');
	$bystander->run('LISTEN b; LISTEN fence');
	return;
}

sub is_notified_after_requests
{
	my ($place) = @_;
	foreach my $request ('cancel', 'terminate')
	{
		prepare($small);
		my $pid = commit_and_pause();
		$owner->run("SELECT pg_${request}_backend($pid)");
		go_on();
		replaced($pid, "$request $place");
		notifies('t/', "$request $place: notifies");
	}
	return;
}

foreach my $insert ($small, $large)
{
	foreach my $request ('cancel', 'terminate')
	{
		my $leader = $owner->value($worker);
		let_worker('prepare pause 0');
		prepare($insert);
		my $pid = paused();
		$owner->run("SELECT pg_${request}_backend($pid)");
		go_on();
		replaced($leader, "$request after PREPARE TRANSACTION");
		finish('COMMIT');
		notifies('t/', "$request after PREPARE TRANSACTION: notifies");
	}
}

is_notified_after_requests('before the callback');
prepare($small);
commit_and_fail('an error before the callback');
notifies('t/', 'the next worker notifies');

# ---- entries that are overwritten

# A subscription of another database, which prepares two transactions as soon as it is enabled.
# The numbers that have become free last are used first.  These are the number of the transaction
# on the publisher, in the same server, and that of the applied one, in any order.
$owner->run('CREATE DATABASE second');
$owner->run('CREATE DATABASE second_publisher');
my $second           = connect_to($node, dbname => 'second');
my $second_publisher = connect_to($node, dbname => 'second_publisher');
$_->run('CREATE TABLE other (id int)') for $second, $second_publisher;
$second_publisher->run('CREATE PUBLICATION p FOR ALL TABLES');
$second_publisher->run(q{SELECT pg_create_logical_replication_slot('second', 'pgoutput', false, true)});
$second->run("CREATE SUBSCRIPTION second CONNECTION '" . $here =~ s/dbname=publisher/dbname=second_publisher/r
	  . q{' PUBLICATION p WITH (create_slot = false, slot_name = 'second', copy_data = false, two_phase = true)});
ok(wait_until(sub { $second->value('SELECT subtwophasestate FROM pg_subscription WHERE subname = $$second$$') eq 'e' }),
	'a second subscription');
my $in_second = q{FROM pg_stat_activity WHERE datname = 'second' AND backend_type LIKE 'logical replication%'};

sub disable_second
{
	$second->run('ALTER SUBSCRIPTION second DISABLE');
	ok(wait_until(sub { $owner->value("SELECT count(*) $in_second") == 0 }), 'it is disabled') or die;
	foreach my $name ('q', 'r')
	{
		$second_publisher->run($_) for 'BEGIN', 'INSERT INTO other VALUES (1)', "PREPARE TRANSACTION '$name'";
	}
	return;
}

sub enable_second
{
	$second->run('ALTER SUBSCRIPTION second ENABLE');
	ok(wait_until(sub { $second->value($prepared) == 2 }), 'it prepares two transactions') or die;

	# The entries are written after the transactions are visible there.
	wait_until(sub { $owner->value("SELECT count(*) $in_second AND wait_event = 'LogicalApplyMain'") == 1 })
	  or die 'the worker does not end PREPARE TRANSACTION';
	return;
}

sub finish_second
{
	$second_publisher->run("COMMIT PREPARED '$_'") for 'q', 'r';
	ok(wait_until(sub { $second->value($prepared) == 0 }), 'and commits them') or die;
	return;
}

disable_second();
prepare($small);
my $paused = commit_and_pause();
enable_second();
go_on();
notifies('m70/ t/', 'overwritten after the commit record: all watched tables are notified');
is($owner->value($worker), $paused, 'by the same worker');
prepare($small);
finish('COMMIT');
notifies('t/', 'the next transaction notifies its own table again');
finish_second();

# The first worker stands still.
disable_second();
prepare($small);
$paused = commit_and_pause();
enable_second();
all_are_told($paused, 'a worker stands still, and its entry is overwritten');
finish_second();

# The first worker has gone.
disable_second();
prepare($small);
$paused = commit_and_pause();
$owner->run("SELECT pg_terminate_backend($paused)");
enable_second();
go_on();
replaced($paused, 'terminated after its entry was overwritten');
notifies('m70/ t/', 'the next worker notifies all watched tables', again => 1);
finish_second();

$second->run($_) for 'ALTER SUBSCRIPTION second DISABLE', 'ALTER SUBSCRIPTION second SET (slot_name = NONE)',
  'DROP SUBSCRIPTION second';
$_->close for $second, $second_publisher;

# ---- the same after the callback of pg_pinpoint

stop();
$node->append_conf('postgresql.conf', "shared_preload_libraries = '$library, pg_pinpoint'");
$node->start;
connect_again();
is_notified_after_requests('after the callback');

# The listener is told instead of notified.
sub tells
{
	my ($name) = @_;
	is_told($listener, "$name: the listener");
	$listener->close;
	$listener = connect_to($node);
	$listener->run('LISTEN t; LISTEN m70; LISTEN fence');
	is(changed(), '{t}', "$name: and the position says the same");
	catch_up();
	is(received($listener) . received($bystander), '', "$name: nobody else, and not again");
	return;
}

prepare($small);
commit_and_fail('an error after the callback');
tells('an error after the callback');

# ---- no worker follows

stop();
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_pinpoint, $library'");
$node->start;
connect_again();
prepare($small);
$paused = commit_and_pause();
all_are_told($paused, 'a worker stands still after the commit record');
prepare($small);
finish('COMMIT');
notifies('t/', 'the next transaction');

my $slow = connect_to($node);
$slow->run($_) for 'LISTEN filler', 'BEGIN', 'SELECT 1';
prepare($small);
foreach my $size (7000, 1)
{
	my $result;
	do { $result = $owner->query("SELECT pg_notify('filler', repeat('x', $size))") } until $result->error;
	is($result->error->{C}, '54000', "the queue has no room for $size bytes");
}
my $full = $owner->value($worker);
finish('COMMIT');
replaced($full, 'a full queue');
$slow->run('COMMIT');
$slow->close;
tells('a full queue');

# ---- the subscription is off

# The subscription is off, and somebody commits the transaction by its name on the
# subscriber, which notifies.  The next worker may notify again.
prepare($large);
$owner->run('ALTER SUBSCRIPTION s DISABLE');
ok(wait_until(sub { !@{ $owner->run($worker)->rows } }), 'there is no worker');
my $gid = $owner->value('SELECT gid FROM pg_prepared_xacts WHERE database = current_database()');
$owner->run("COMMIT PREPARED '$gid'");
is(received($listener), 't/', 'COMMIT PREPARED by hand notifies');
$publisher->run(q{ROLLBACK PREPARED 'p'});

# Nothing is left to a worker: neither this nor a transaction that is rolled back.
$owner->run('ALTER SUBSCRIPTION s ENABLE');
prepare($small);
$owner->run('ALTER SUBSCRIPTION s DISABLE');
ok(wait_until(sub { !@{ $owner->run($worker)->rows } }), 'there is no worker');
$gid = $owner->value('SELECT gid FROM pg_prepared_xacts WHERE database = current_database()');
$owner->run("ROLLBACK PREPARED '$gid'");
$publisher->run(q{ROLLBACK PREPARED 'p'});
my $begin = time;
wait_until(sub { $owner->run('NOTIFY other'); return time - $begin >= 13 }) or die 'the time stands still';
is(received($listener), '', 'after 13 seconds, nobody is told');

# Other sessions prepare transactions, which have the same entries.
$owner->run($_) for map { ('BEGIN', 'INSERT INTO plain VALUES (1)', "PREPARE TRANSACTION 'o$_'", "COMMIT PREPARED 'o$_'") } 1 .. 5;
$owner->run('ALTER SUBSCRIPTION s ENABLE');
$publisher->run('INSERT INTO plain VALUES (2)');
ok(wait_until(sub { $owner->value('SELECT count(*) FROM plain WHERE id = 2') == 1 }), 'the subscription goes on');
unlike(received($listener), qr/m70/, 'without other notifications');

$owner->run($_) for 'ALTER SUBSCRIPTION s DISABLE', 'ALTER SUBSCRIPTION s SET (slot_name = NONE)', 'DROP SUBSCRIPTION s';
$_->close for $owner, $listener, $bystander, $publisher;
done_testing();
