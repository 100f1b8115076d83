# What pinpoint.changed_since() tells while commits are under way, held back, or visible
# and not yet published, and through restarts.  Each fault that can be planted here is
# found.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node = new_node('main', conf => 'restart_after_crash = on', init => { allows_streaming => 1 });

# These do not wait for the standby, which does not exist.
my %local    = (options => '-c synchronous_commit=local');
my $observer = connect_to($node, %local);
my $writer   = connect_to($node, %local);
my $client   = connect_to($node, %local);
my $library  = compile_interference();

$observer->run('CREATE TABLE rows (what text)');
$observer->run(q{ALTER SYSTEM SET synchronous_standby_names = 'nobody'});
$observer->run('SELECT pg_reload_conf()');
wait_until_commits_wait($node);

sub position { return $client->value('SELECT pinpoint.position()'); }

# Which of these channels have changed, as one text.
sub changed
{
	my ($position, @channels) = @_;
	return $client->value("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', "
		  . join(', ', map { "'$_'" } @channels) . ')');
}

sub next_position
{
	my ($position) = @_;
	return $client->value("SELECT position FROM pinpoint.changed_since('$position', 'x')");
}

sub rows { return $client->value(q{SELECT coalesce(string_agg(what, ' ' ORDER BY what), '') FROM rows}); }

# A session in the midst of a commit, before it is visible.
sub slow_commit
{
	my $session = connect_to($node);
	$session->send_query(q{BEGIN; INSERT INTO rows VALUES ('slow'); NOTIFY slow; COMMIT});
	wait_until(
		sub {
			$observer->value(q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = }
				  . $session->pid);
		}) or die 'the commit does not wait';
	return $session;
}

sub finish_slow_commit
{
	my ($session) = @_;
	$observer->run('SELECT pg_cancel_backend(' . $session->pid . ')');
	is($session->result->error, undef, 'the slow commit succeeds');
	$session->close;
	return;
}

sub held_back { return stat_queue($observer)->{held_back}; }

# ---- in flight, and held back

{
	my $before = position();
	my $slow   = slow_commit();
	my $during = position();
	is(rows(), '', 'a commit is in flight, and its row is not visible');
	is(changed($during, 'slow'), '', 'it is not reported');

	$writer->run(q{INSERT INTO rows VALUES ('held back'); NOTIFY held_back});
	is(held_back(), 1, 'another one is held back behind it');
	is(changed($during, 'slow', 'held_back', 'x'), 'held_back', 'and reported as soon as its COMMIT has returned');
	is(rows(), 'held back', 'when its row is visible');
	my $next = next_position($during);
	is(changed($next, 'slow', 'held_back'), '', 'and not a second time');

	finish_slow_commit($slow);
	is(held_back(), 0, 'both are published');
	is(changed($next, 'slow', 'held_back'), 'slow', 'the slow one is reported now, and the other not again');
	is(changed($during, 'slow', 'held_back'), 'slow held_back', 'for a session that asked before it, both are');
	is(changed($before, 'slow', 'held_back', 'x'), 'slow held_back', 'likewise');
	is(rows(), 'held back slow', 'and both rows are visible');
}

# ---- visible, and not yet counted

{
	my $paused = connect_to($node, %local);
	$paused->run("LOAD '$library'");
	my $before = position();
	begin_and_pause($observer, $paused, 'commit', q{INSERT INTO rows VALUES ('visible'); NOTIFY visible});
	my $during = position();
	is(rows(), 'held back slow visible', 'a transaction is visible, and its COMMIT has not returned');
	is(changed($before, 'visible'), '', 'it is not counted yet');
	my $next = next_position($before);
	open_gate();
	is($paused->result->error, undef, 'its COMMIT returns');
	is(changed($next, 'visible'), 'visible', 'it is counted for a session that has been told nothing');
	is(changed($during, 'visible'), 'visible', 'and for one that may have seen it before');
	$paused->close;

	# A session that ends between the two.
	$paused = connect_to($node, %local);
	$paused->run("LOAD '$library'");
	$before = position();
	begin_and_pause($observer, $paused, 'commit', q{NOTIFY ended});
	$observer->run('SELECT pg_terminate_backend(' . $paused->pid . ')');
	open_gate();
	wait_until(sub { changed($before, 'ended') eq 'ended' });
	is(changed($before, 'ended'), 'ended', 'what a session has committed counts, though it was terminated then');
}

# ---- the same, through PostgreSQL's own queue

{
	my $paused = connect_to($node, %local);
	$paused->run("LOAD '$library'; SET pinpoint.enabled = off");
	begin_and_pause($observer, $paused, 'commit', q{INSERT INTO rows VALUES ('z own queue'); NOTIFY own_queue});
	my $during = position();
	is(rows(), 'held back slow visible z own queue', 'a transaction that has used the queue of PostgreSQL is visible');
	is(changed($during, 'own_queue', 'x'), '', 'and not counted yet');
	open_gate();
	is($paused->result->error, undef, 'its COMMIT returns');
	is(changed($during, 'own_queue', 'x'), 'own_queue x', 'it is counted for all channels');
	$paused->close;
}

# ---- a commit that fails

{
	my $before = position();
	$observer->run('CREATE TABLE once (i int UNIQUE DEFERRABLE INITIALLY DEFERRED)');
	my $result = $writer->query('BEGIN; NOTIFY failed; INSERT INTO once VALUES (1), (1); COMMIT');
	is($result->error->{C}, '23505', 'a commit fails');
	is(changed($before, 'failed'), '', 'and counts for nothing');
}

# ---- other databases

{
	$observer->run('CREATE DATABASE other');
	my $other = connect_to($node, %local, dbname => 'other');
	$other->run('CREATE EXTENSION pg_pinpoint');
	my $before = position();
	my $there  = $other->value('SELECT pinpoint.position()');
	$other->run('NOTIFY elsewhere');
	is(changed($before, 'elsewhere'), '', 'a channel of another database is another channel');
	is($other->value("SELECT changed FROM pinpoint.changed_since('$there', 'elsewhere', 'x')"),
		'{elsewhere}', 'a position is good in its database');
	is($other->value(q{SELECT changed FROM pinpoint.changed_since('} . position() . q{', 'x')}),
		'{x}', 'and in no other');
	$other->run('SET pinpoint.enabled = off; NOTIFY elsewhere');
	is(changed($before, 'elsewhere'), '', 'the own queue of another database, too');
	$other->close;

	# A database that takes the place of another one, as when it is restored.
	$observer->run('CREATE DATABASE beside TEMPLATE other');
	$observer->run('ALTER DATABASE other RENAME TO earlier');
	$observer->run('ALTER DATABASE beside RENAME TO other');
	$other = connect_to($node, %local, dbname => 'other');
	my $here = $other->value('SELECT pinpoint.position()');
	is($other->value("SELECT changed FROM pinpoint.changed_since('$there', 'x')"),
		'{x}', 'a position is unknown in a database that has taken the place of its own');
	is($other->value("SELECT changed FROM pinpoint.changed_since('$here', 'x')"), '{}', 'which has positions of its own');
	$other->close;
}

# ---- planted faults.  Each function tells whether something was missed.

my @found = (
	[
		'counter_first',
		sub {
			my $before = position();
			$writer->send_query('NOTIFY fault');
			wait_until(sub { position() ne $before }) or die 'nothing is counted';
			my $missed = changed($before, 'fault') eq '';
			$writer->result;
			return $missed;
		}
	],
	[
		'missing_place',
		sub {
			my $before = position();
			$writer->run('NOTIFY fault');
			return changed($before, 'fault') eq '';
		}
	],
	[
		'count_late',
		sub {
			my $slow   = slow_commit();
			my $before = position();
			$writer->run(q{DO $$ BEGIN FOR i IN 1 .. 4000 LOOP PERFORM pg_notify('fault' || i % 10, ''); COMMIT; END LOOP; END $$});
			my $held_back = held_back();
			my $changed   = changed($before, map { "fault$_" } 0 .. 9);
			finish_slow_commit($slow);

			# With the fault, the waker would count the rest of them during the next attempt.
			wait_until(sub { held_back() == 0 }) or die 'the commits are still held back';
			is($held_back, 4000, '4,000 commits were held back');
			return $changed ne join ' ', map { "fault$_" } 0 .. 9;
		}
	]);

foreach my $fault (@found)
{
	my ($name, $misses) = @$fault;
	my $attempts = $name eq 'count_late' ? 1 : 20;
	is((grep { $misses->() } 1 .. $attempts), 0, "nothing is missed ($name)");

	SKIP:
	{
		skip 'no fault can be planted: the server was built without assertions', 1 unless has_faults();

		$observer->run("ALTER SYSTEM SET pinpoint.debug_fault = '$name'");
		$observer->run('SELECT pg_reload_conf()');
		my $session = $writer;
		wait_until(sub { $session->value('SHOW pinpoint.debug_fault') eq $name }) or die 'the fault is not planted';
		ok((grep { $misses->() } 1 .. $attempts), "something is, with the fault $name");
		$observer->run('ALTER SYSTEM RESET pinpoint.debug_fault');
		$observer->run('SELECT pg_reload_conf()');
		wait_until(sub { $session->value('SHOW pinpoint.debug_fault') eq 'none' }) or die 'the fault stays';
	}
}

# ---- restarts

my $before = position();
is(changed($before, 'never'), '', 'before a restart nothing has changed');
$_->close for $observer, $writer, $client;
foreach my $mode (qw(fast immediate))
{
	stop_and_start($node, $mode);
	$client = connect_to($node, %local);
	is(changed($before, 'never', 'x'), 'never x', "after a restart ($mode) everybody looks");
	$before = position();
	is(changed($before, 'never', 'x'), '', 'once');
	$client->close if $mode eq 'fast';
}

# The same after a crash of one session.
my $victim = connect_to($node, %local);
kill 'KILL', $victim->pid;
$client->receive_until('EOF');
wait_until(sub { $client = eval { connect_to($node, %local) } }) or die 'the server does not come back';
is(changed($before, 'never'), 'never', 'and after a crash');

done_testing;
