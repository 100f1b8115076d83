# The shared memory for channels: how much it is, and what happens when it is full.
# LISTEN never fails for lack of it, and no role can take all of it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;
use Time::HiRes qw(time);

my $node     = new_node('main', conf => 'pinpoint.channel_memory = 1MB');
my $observer = connect_to($node);
$observer->run("CREATE ROLE $_ LOGIN") for 'hog', 'app', map { "role_$_" } 1 .. 8;
$observer->run('CREATE DATABASE other');
my $sender   = connect_to($node);
my $listener = connect_to($node, user => 'hog');
my $witness  = connect_to($node, user => 'app');
$witness->run('LISTEN a');

is($observer->value('SHOW pinpoint.channel_memory'), '1MB', 'it can be set');

sub listener { return stat_listener($observer, $_[0]->pid); }

sub wakes_for_all { return listener($_[0])->{wakes_for_all}; }

# Listens on ever more channels of a name, until one does not fit.  Returns how many
# there are then.
sub fill
{
	my ($session, $name) = @_;
	my $channels = 0;
	do
	{
		my $result = $session->query(
			join ';', map { "LISTEN ${name}_" . ($channels + $_) } 1 .. 50);
		die $result->error->{M} if $result->error;
		$channels += 50;
		die 'it is never full' if $channels > 100_000;
	} while (wakes_for_all($session) eq 'f');
	return $channels;
}

sub mapped { return $observer->value('SELECT count(*) FROM pinpoint.stat_channels'); }

# ---- a session whose channels do not fit

my $log      = -s $node->logfile;
my $channels = fill($listener, 'c');
my $mapped   = mapped();
cmp_ok($mapped, '>=', 3900, "$mapped channels fit");
cmp_ok($mapped, '<', $channels + 1, 'and not all of them');
is($listener->value('SELECT count(*) FROM pg_listening_channels()'), $channels, 'LISTEN does not fail');
is(listener($listener)->{channels}, $channels, 'the engine knows of all channels');
ok($node->log_contains('not enough shared memory for a channel on which the session with PID ' . $listener->pid . ' listens', $log),
	'the log says so');

$sender->run("NOTIFY c_1, 'first'; NOTIFY c_$channels, 'last'; NOTIFY a, 'witness'");
is_deeply(all_as_text($listener->wait_for(2)), [ 'c_1/first', "c_$channels/last" ],
	'channels that fit and channels that do not work alike');
is_deeply(all_as_text($witness->wait_for(1)), ['a/witness'], 'so do those of others');
is(wakes_for_all($witness), 'f', 'who do not notice');

wait_until_idle($observer, $listener->pid);
my $wakeups = listener($listener)->{wakeups};
my $began   = time;
$sender->run(q(NOTIFY b, 'for nobody'));
woken_times(listener($listener)->{wakeups} - $wakeups, 1, $began, 'it is woken for everything in its database');
my $elsewhere = connect_to($node, dbname => 'other');
$elsewhere->run('CREATE EXTENSION pg_pinpoint');
wait_until_idle($observer, $listener->pid);
$wakeups = listener($listener)->{wakeups};
$began   = time;
$elsewhere->run(q(NOTIFY b, 'elsewhere'));
$sender->run("SELECT count(pg_notify('x' || i, '')) FROM generate_series(1, 100) i; NOTIFY c_$channels, 'many'");
is_deeply(all_as_text($listener->wait_for(1)), ["c_$channels/many"],
	'it gets what it listens on, and nothing else; also from a transaction with very many channels');
woken_times(listener($listener)->{wakeups} - $wakeups, 1, $began, 'and is not woken for other databases');

# ---- others

my $other = connect_to($node, user => 'app', dbname => 'other');
$other->run('LISTEN river_insert');
is(wakes_for_all($other), 'f', 'the channel of another role fits');
$elsewhere->run(q(LISTEN more; NOTIFY river_insert, 'job'));
is(wakes_for_all($elsewhere), 'f', 'so does that of a superuser');
is_deeply(all_as_text($other->wait_for(1)), ['river_insert/job'], 'and works');

my @sharers = connect_many($node, 2, user => 'hog', options => '-c pinpoint.shared_channels=s -c pinpoint.share_limit=1');
$_->run('LISTEN s') for @sharers;
is_deeply([ map { wakes_for_all($_) } @sharers ], [ 't', 't' ],
	'channels of the role that takes more than its share do not');
$sender->run("NOTIFY s, '$_'") for 1 .. 5;
is_deeply(all_as_text($_->wait_for(5)), [ map { "s/$_" } 1 .. 5 ],
	'a session that cannot share its channel for that gets everything')
  for @sharers;
$_->run('BEGIN; LISTEN t; ROLLBACK') for @sharers;
$_->close for @sharers;

my $rolls_back = connect_to($node, user => 'hog');
$rolls_back->run('BEGIN; LISTEN s; ROLLBACK');
is(listener($rolls_back), undef, 'a rollback leaves nothing');
$rolls_back->close;

# ---- leaving

# Those that fit are the first ones.
$listener->run(join ';', map { "UNLISTEN c_$_" } 1 .. 100);
is(wakes_for_all($listener), 't', 'UNLISTEN of channels that fit changes nothing');
$listener->run('LISTEN c_1');
$listener->run(join ';', map { "UNLISTEN c_$_" } $mapped - 10 .. $channels);
is(wakes_for_all($listener), 'f', 'UNLISTEN of those that do not fit ends it');
wait_until_idle($observer, $listener->pid);
$wakeups = listener($listener)->{wakeups};
$began   = time;
$sender->run(q(NOTIFY b, 'for nobody'));
$sender->run(q(NOTIFY c_1, 'again'));
is_deeply(all_as_text($listener->wait_for(1)), ['c_1/again'], 'it listens on the others');
woken_times(listener($listener)->{wakeups} - $wakeups, 1, $began, 'and is woken for them only');

# What is given back can be used again.
$listener->run('UNLISTEN *');
is(mapped(), 3, 'UNLISTEN empties the map');
cmp_ok(fill($listener, 'd'), '>=', 3900, 'and then as many fit again');
$listener->close;
ok(wait_until(sub { mapped() == 3 }), 'as does the end of a session');
my @more = connect_many($node, 20);
$_->run('LISTEN e') for @more;
$sender->run("NOTIFY e, 'to all'");
is_deeply([ map { as_text($_->wait_for(1)) } @more ],
	[ ('e/to all') x @more ], 'there is room for others');
$_->close for @more;

# ---- many roles that take as much as they can

my @hogs = map { connect_to($node, user => "role_$_") } 1 .. 8;
my @fit;
foreach my $hog (@hogs)
{
	my $before = mapped();
	fill($hog, 'h' . @fit);
	push @fit, mapped() - $before;
}
is_deeply([ sort { $b <=> $a } @fit ], \@fit, "each one finds less than the one before it: @fit");
cmp_ok($fit[7], '>', 0, 'and all find something');
my $late = connect_to($node, user => 'app');
$late->run('LISTEN l');
is(wakes_for_all($late), 'f', 'there is room for one who comes then');
my @all = connect_many($node, 20, user => 'app');
my $failures = grep { $_->query(join ';', map { "LISTEN a$_" } 1 .. 300)->error } @all;
is($failures, 0, 'and nothing ever makes LISTEN fail');
$sender->run(q(NOTIFY l, 'late'; NOTIFY a300, 'all'));
is_deeply(all_as_text($late->wait_for(1)), ['l/late'], 'all channels work');
is_deeply([ map { as_text($_->wait_for(1)) } @all ], [ ('a300/all') x @all ], 'for everybody');

$_->close for @all, $late, @hogs, $witness, $elsewhere, $other;
server_is_clean($observer, 'nothing is left');

# ---- how much it is if nobody says

$_->close for $observer, $sender;
$node->append_conf('postgresql.conf', 'pinpoint.channel_memory = -1');
$node->restart;
$observer = connect_to($node);
my $allocated =
  q{SELECT size FROM pg_shmem_allocations WHERE name = 'pg_pinpoint channel map'};
my $few = $observer->value($allocated);
cmp_ok($few, '>=', 16 * 1024 * 1024, 'at least 16 MB');
$observer->close;
$node->append_conf('postgresql.conf', 'max_connections = 550');
$node->restart;
$observer = connect_to($node);
is(int(($observer->value($allocated) - $few) / 500 / 1024), 32, 'and 32 kB for each possible session');
is($observer->value('SHOW pinpoint.channel_memory'), '-1', 'as -1 asks for');

$observer->close;
$log = -s $node->logfile;
$node->append_conf('postgresql.conf', 'pinpoint.channel_memory = 1023kB');
$node->restart;
ok($node->log_contains('"pinpoint.channel_memory" must be at least 1024 kB, or -1', $log),
	'too little is refused');

done_testing();
