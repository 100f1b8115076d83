# COMMIT PREPARED and watched tables: requests to cancel and to terminate, errors after the
# commit, which listeners they concern, here and on a standby, and what the statement reads of
# other transactions.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $library = compile_interference();
my $node    = new_node('main', init => { allows_streaming => 1 }, preload => "$library, pg_pinpoint", conf => <<'EOC');
max_prepared_transactions = 70
max_locks_per_transaction = 500
pinpoint.queue_memory = 256kB
pinpoint.queue_size = 256kB
pinpoint.channel_memory = 1MB
EOC
my ($owner, $writer, $listener, $bystander) = connect_many($node, 4);
$owner->run($_) foreach split /\n\n/, <<'EOS';
CREATE TABLE t (id int)

CREATE TABLE plain (id int)

SELECT pinpoint.watch('t')
EOS

# Prepares a transaction with these statements, in $writer.
sub prepare
{
	my (@statements) = @_;
	$writer->run($_) for 'BEGIN', @statements, q{PREPARE TRANSACTION 'p'};
	return;
}

# What this session received until now.
my $fences = 0;
sub received
{
	my ($session) = @_;
	my $fence = ++$fences;
	$owner->run("NOTIFY fence, '$fence'");
	return join ' ', grep { !/^fence/ } @{ all_as_text($session->notifications_until('fence', $fence)) };
}

my $position;
sub changed { return $owner->value("SELECT changed FROM pinpoint.changed_since('$position', 't', 'b', 'new')"); }

# $listener listens on t, $bystander on something else; both are connected again if they
# were disconnected.
sub reconnect
{
	$_->close for $listener, $bystander;
	($listener, $bystander) = connect_many($node, 2);
	$listener->run('LISTEN t; LISTEN fence');
	$bystander->run('LISTEN b; LISTEN fence');
	$position = $owner->value('SELECT pinpoint.position()');
	return;
}

# ---- a request to cancel or to terminate, between the two commits

my $id = 0;
foreach my $table ('t', 'plain')
{
	foreach my $place ('after_commit_prepared', 'pre_commit')
	{
		foreach my $request ('cancel', 'terminate')
		{
			my $case = "$request in $place, table $table";
			reconnect();
			prepare("INSERT INTO $table VALUES (" . ++$id . ')');
			begin_and_pause($owner, $writer, $place, q{COMMIT PREPARED 'p'});
			$owner->run("SELECT pg_${request}_backend(" . $writer->pid . ')');
			open_gate();
			my $result = $writer->result;
			is(($result->messages)[0]->{tag}, 'COMMIT PREPARED', "$case: the statement succeeds");
			if ($request eq 'terminate')
			{
				is($result->types =~ /\$$/ ? $result->error->{C} : $writer->receive_until('EOF')->error->{C},
					'57P01', "$case: and the session ends");
				$writer = connect_to($node);
			}
			else
			{
				is($result->error, undef, "$case: without an error");
				$writer->run('RESET interference.pause');
			}
			is($owner->value("SELECT count(*) FROM $table WHERE id = $id"), 1, "$case: the row is there");
			is(received($listener), $table eq 't' ? 't/' : '', "$case: the listener is notified of a change");
			is(received($bystander), '', "$case: the other one stays connected");
			is(changed(), $table eq 't' ? '{t}' : '{}', "$case: and the position says the same");
		}
	}
}

# A request that comes before the commit has its effect.
foreach my $case ([ 'cancel', '57014' ], [ 'terminate', '57P01' ])
{
	my ($request, $code) = @$case;
	reconnect();
	prepare('INSERT INTO t VALUES (' . ++$id . ')');
	$owner->run($_) for 'BEGIN', 'LOCK TABLE pg_inherits IN ACCESS EXCLUSIVE MODE';
	my $waits = 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $writer->pid;
	$writer->send_query(q{COMMIT PREPARED 'p'});
	ok(wait_until(sub { ($owner->value($waits) // '') eq 'Lock' }), "$request: COMMIT PREPARED waits before it commits");
	$owner->run("SELECT pg_${request}_backend(" . $writer->pid . ')');
	is($writer->result->error->{C}, $code, "$request: and fails");
	$owner->run('COMMIT');
	is(changed(), '{}', "$request: which changes nothing");
	$writer = connect_to($node) if $request eq 'terminate';
	$writer->run(q{COMMIT PREPARED 'p'});
	is(received($listener), 't/', "$request: it can be repeated");
}

# ---- the wait for a synchronous standby can be cancelled

foreach my $request ('cancel', 'terminate')
{
	reconnect();
	prepare('INSERT INTO t VALUES (' . ++$id . ')');
	$node->append_conf('postgresql.conf', q{synchronous_standby_names = 'missing'});
	$node->reload;
	wait_until_commits_wait($node);
	$owner->run('SET synchronous_commit = local');
	$writer->send_query(q{COMMIT PREPARED 'p'});
	my $waits_for = 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $writer->pid;
	ok(wait_until(sub { ($owner->value($waits_for) // '') eq 'SyncRep' }), "$request: COMMIT PREPARED waits for a standby");
	$owner->run("SELECT pg_${request}_backend(" . $writer->pid . ')');
	my $result = $writer->result;
	if ($request eq 'terminate')
	{
		like($result->types, qr/\$$/, 'terminate: the session ends');
		$writer = connect_to($node);
	}
	else
	{
		is($result->error, undef, 'cancel: there is no error');
	}
	is(received($listener), 't/', "$request: the listener is notified");
	is(received($bystander), '', "$request: the other one stays connected");
	$node->append_conf('postgresql.conf', q{synchronous_standby_names = ''});
	$node->reload;
}

# ---- an error between the two commits

sub fails
{
	my ($code, $name) = @_;
	is($writer->query(q{COMMIT PREPARED 'p'})->error->{C}, $code, "$name: COMMIT PREPARED fails");
	is($owner->value(q{SELECT count(*) FROM pg_prepared_xacts WHERE gid = 'p'}), 0, "$name: after its commit");
	return;
}

# Its role has no room for more channels.
$owner->run('CREATE ROLE many LOGIN');
my $does_not_fit = connect_to($node, user => 'many');
my $nchannels = 0;
do
{
	my $block = join ';', map { 'LISTEN c' . ++$nchannels } 1 .. 100;
	$does_not_fit->run($block);
} until stat_listener($owner, $does_not_fit->pid)->{wakes_for_all} eq 't';

reconnect();
my $sharer = connect_to($node, options => '-c pinpoint.shared_channels=t');
$sharer->run('LISTEN t');
prepare('INSERT INTO t VALUES (' . ++$id . ')');
$writer->run('SET interference.fail_commit_prepared = on');
fails('XX000', 'a watched table');
is_told($listener, 'a listener');
is_told($sharer, 'one that shares the channel');
is_told($does_not_fit, 'one whose channels do not fit into the map');
is(received($bystander), '', 'the other one stays connected');
is(changed(), '{t}', 'only this channel has changed');

reconnect();
prepare('INSERT INTO plain VALUES (' . ++$id . ')');
fails('XX000', 'a table that is not watched');
is(received($listener) . received($bystander), '', 'no listener is disconnected');
is(changed(), '{}', 'and no channel has changed');

reconnect();
$owner->run('CREATE TABLE later (id int)');
prepare('INSERT INTO later VALUES (1)', q{SELECT pinpoint.watch('later', 'new')});
fails('XX000', 'a table that the prepared transaction watches');
is_told($listener, 'a listener');
is_told($bystander, 'another one, because the channel is not known,');
is(changed(), '{t,b,new}', 'all channels have changed');

# It fails before it commits.
$writer->run('RESET interference.fail_commit_prepared');
reconnect();
prepare('INSERT INTO t VALUES (' . ++$id . ')');
is($writer->query(q{COMMIT PREPARED 'other'})->error->{C}, '42704', 'there is no such transaction');
$owner->run('CREATE ROLE stranger LOGIN');
my $stranger = connect_to($node, user => 'stranger');
is($stranger->query(q{COMMIT PREPARED 'p'})->error->{C}, '42501', 'another role cannot commit it');
is($writer->query(q{SELECT 1; COMMIT PREPARED 'p'})->error->{C}, '25001', 'nor can a statement in a transaction');
$stranger->close;
is(received($listener) . received($bystander), '', 'no listener is disconnected');
is(changed(), '{}', 'and no channel has changed');
$writer->run(q{COMMIT PREPARED 'p'});
is(received($listener), 't/', 'then it is committed');
$writer->send_query('SELECT pg_sleep(1000)');
ok(wait_until(sub { ($owner->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $writer->pid) // '') eq 'PgSleep' }),
	'the session sleeps');
$owner->run('SELECT pg_cancel_backend(' . $writer->pid . ')');
is($writer->result->error->{C}, '57014', 'the session can be cancelled again');

# The queue is full.
my $slow = connect_to($node);
$slow->run($_) for 'LISTEN a', 'BEGIN', 'SELECT 1';
reconnect();
prepare('INSERT INTO t VALUES (' . ++$id . ')');
foreach my $size (7000, 1)
{
	my $result;
	do { $result = $writer->query("SELECT pg_notify('a', repeat('x', $size))") } until $result->error;
	is($result->error->{C}, '54000', "the queue has no room for $size bytes");
}
fails('54000', 'a full queue');
is_told($listener, 'the listener');
is(changed(), '{t}', 'its channel has changed');
is($slow->query('COMMIT')->error, undef, 'who fills the queue stays connected');
$slow->close;
is(received($bystander), '', 'so does another one');

# ---- other prepared transactions

# PREPARE TRANSACTION ends while COMMIT PREPARED begins.
reconnect();
begin_and_pause($owner, $writer, 'before_commit_prepared', q{COMMIT PREPARED 'p'});
$owner->run($_) for 'BEGIN', 'INSERT INTO t VALUES (' . ++$id . ')', q{PREPARE TRANSACTION 'p'};
open_gate();
is($writer->result->error, undef, 'a transaction is prepared and committed at the same time');
is(join(' ', grep { $_ eq 't/' } split / /, received($listener)), 't/', 'and notifies');
$writer->run('RESET interference.pause');

# One that has locked many tables.
$owner->run("CREATE TABLE t$_ (id int); SELECT pinpoint.watch('t$_', 'many')") for 1 .. 100;
$owner->run(q{SELECT pinpoint.watch('t100', 'last')});
reconnect();
$listener->run('LISTEN many; LISTEN last');
prepare(map { "INSERT INTO t$_ VALUES (1)" } 1 .. 100);
$writer->run(q{COMMIT PREPARED 'p'});
is(join(' ', sort split / /, received($listener)), 'last/ many/', 'a transaction with 100 tables notifies them all');

# COMMIT PREPARED does not read the locks of others.
sub virtual_memory { return slurp_file('/proc/' . $_[0]->pid . '/status') =~ /^VmPeak:\s+(\d+) kB$/m && $1; }
my $greedy = connect_to($node);
$greedy->run($_) for 'BEGIN', 'SELECT count(pg_advisory_xact_lock(i)) FROM generate_series(1, 25000) i';
prepare('INSERT INTO t VALUES (' . ++$id . ')');
my $before = virtual_memory($writer);
$writer->run(q{COMMIT PREPARED 'p'});
cmp_ok(virtual_memory($writer), '<=', $before + 1024, 'it allocates no memory for the locks of another session');
$greedy->close;

# Where nothing is watched, it does not read the other prepared transactions.
$owner->run('CREATE DATABASE unwatched');
my $elsewhere = connect_to($node, dbname => 'unwatched');
my $file = "$PostgreSQL::Test::Utils::tmp_check/allocations";
append_to_file($file, pack('q5', 0, 1, 0, 0, 0));
$elsewhere->run($_) for
  "CREATE FUNCTION fail_allocations(text) RETURNS void LANGUAGE c AS '$library', 'interference_fail_allocations'",
  "SELECT fail_allocations('$file')", 'CREATE TABLE t (id int)';

sub allocations
{
	$elsewhere->run($_) for 'BEGIN', 'INSERT INTO t VALUES (1)', q{PREPARE TRANSACTION 'here'};
	overwrite($file, pack('q5', 1 << 40, 1, 0, 0, 0));
	$elsewhere->run(q{COMMIT PREPARED 'here'});
	my $counted = (unpack 'q5', slurp_file($file))[3];
	overwrite($file, pack('q', 0));
	return $counted;
}

sub overwrite
{
	my ($name, $bytes) = @_;
	open my $handle, '+<', $name or die "could not open $name: $!";
	syswrite $handle, $bytes or die "could not write $name: $!";
	close $handle or die "could not write $name: $!";
	return;
}
allocations() for 1 .. 2;
my $alone = allocations();
$owner->run($_) for map { ('BEGIN', "INSERT INTO plain VALUES ($_)", "PREPARE TRANSACTION 'other $_'") } 1 .. 50;
cmp_ok(allocations(), '<', $alone + 50, 'it reads no other prepared transactions where nothing is watched');
$owner->run("ROLLBACK PREPARED 'other $_'") for 1 .. 50;

# ... but the prepared transaction may be the one that watches.  So if the statement fails after
# its commit, all listeners of the database are told.
$elsewhere->run('CREATE EXTENSION pg_pinpoint');
my $first = connect_to($node, dbname => 'unwatched');
$first->run('LISTEN first');
$elsewhere->run($_) for 'SET interference.fail_commit_prepared = on', 'BEGIN', 'INSERT INTO t VALUES (1)', q{PREPARE TRANSACTION 'p'};
is($elsewhere->query(q{COMMIT PREPARED 'p'})->error->{C}, 'XX000', 'where nothing is watched, COMMIT PREPARED fails');
is_told($first, 'a listener');
$elsewhere->run('RESET interference.fail_commit_prepared');
$first = connect_to($node, dbname => 'unwatched');
$first->run('LISTEN first; LISTEN fence');
$elsewhere->run($_) for 'BEGIN', 'INSERT INTO t VALUES (1)', q{SELECT pinpoint.watch('t', 'first')}, q{PREPARE TRANSACTION 'watches'},
  q{COMMIT PREPARED 'watches'}, 'NOTIFY fence';
is_deeply(all_as_text($first->notifications_until('fence', '')), ['first/'], 'it notifies the first table that is watched');

# ---- DROP EXTENSION

$elsewhere->run($_) for 'CREATE TABLE u (id int)', q{SELECT pinpoint.watch('u', 'second')};
$first->run('LISTEN second');
$elsewhere->run($_) for 'BEGIN', 'DROP EXTENSION pg_pinpoint', q{PREPARE TRANSACTION 'drops'};
$elsewhere->run('NOTIFY fence');
is_deeply(all_as_text($first->notifications_until('fence', '')), [], 'DROP EXTENSION that is only prepared does not notify');
# Afterwards, a notification uses PostgreSQL's queue, so its order says nothing.
$elsewhere->run(q{COMMIT PREPARED 'drops'});
is_deeply([ sort @{ all_as_text($first->wait_for(2)) } ], [ 'first/', 'second/' ], 'when it is committed, it notifies all channels');

$_->close for $elsewhere, $first;

# ---- a standby

$node->append_conf('postgresql.conf', 'pinpoint.replicate = on');
$node->reload;
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
my ($reader, $other) = connect_many($standby, 2);
wait_until_counting($reader);
$reader->run('LISTEN t; LISTEN fence');
$other->run('LISTEN b; LISTEN fence');
reconnect();
prepare('INSERT INTO t VALUES (' . ++$id . ')');
my $on_standby = $reader->value('SELECT pinpoint.position()');
$writer->run('SET interference.fail_commit_prepared = on');
fails('XX000', 'with a standby');
is_told($listener, 'a listener on the primary');
is(received($bystander), '', 'the other one stays connected');
is(received($reader), 't/', 'the listener on the standby is notified, because PREPARE TRANSACTION has written this');
is(received($other), '', 'and another one there stays connected');
is($reader->value("SELECT changed FROM pinpoint.changed_since('$on_standby', 't', 'b')"), '{t}', 'its position says the same');
is($reader->value("SELECT count(*) FROM t WHERE id = $id"), 1, 'and the row is there');

$_->close for $owner, $writer, $listener, $bystander, $reader, $other;
done_testing();
