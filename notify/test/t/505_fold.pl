# pinpoint.fold: identical notifications that wait for a session together are told
# once, in the place of the first, as by the last sender.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node = new_node('main');
my ($observer, $sender, $second, $listener, $plain) = connect_many($node, 5);
$_->run('LISTEN a; LISTEN b') for $listener, $plain;

is($listener->value('SHOW pinpoint.fold'), 'off', 'off by default');
$observer->run('CREATE ROLE worker LOGIN');
my $worker = connect_to($node, user => 'worker');
is($worker->query('SET pinpoint.fold = on')->error, undef, 'anyone may set it');
$worker->close;

# Collects what is sent meanwhile, in a transaction, and returns what a session is
# told at its end.
sub collected
{
	my ($session, $send) = @_;
	$session->run('BEGIN');
	$send->();
	$session->run('COMMIT');
	return [ $session->take_notifications ];
}

sub notify
{
	my ($session, @texts) = @_;
	foreach my $text (@texts)
	{
		my ($channel, $payload) = split '/', $text, 2;
		$session->run("NOTIFY $channel, '$payload'");
	}
	return;
}

my @texts = qw(a/1 a/2 a/1 b/1 a/1 a/ a/2 b/1 a/ b/2 a/1);
my @once  = qw(a/1 a/2 b/1 a/ b/2);

is_deeply(all_as_text(@{ collected($listener, sub { notify($sender, @texts) }) }),
	\@texts, 'without it everything is told');
$listener->run('SET pinpoint.fold = on');
is_deeply(all_as_text(@{ collected($listener, sub { notify($sender, @texts) }) }),
	\@once, 'with it each once, in the place of the first');
$plain->run('');
is_deeply(all_as_text($plain->take_notifications), [ @texts, @texts ], 'others are told everything');

# Whose?
my $folded = collected($listener,
	sub { notify($sender, 'a/x', 'a/y'); notify($second, 'a/x'); notify($sender, 'a/z'); });
is_deeply(
	[ map { [ $_->{payload}, $_->{pid} ] } @$folded ],
	[ [ 'x', $second->pid ], [ 'y', $sender->pid ], [ 'z', $sender->pid ] ],
	"the last sender's");

# In one delivery, not from one to the next.
notify($sender, 'a/again');
is(as_text($listener->wait_for(1)), 'a/again', 'one');
notify($sender, 'a/again');
is(as_text($listener->wait_for(1)), 'a/again', 'and the same again, later');

# Its own.
is_deeply(
	all_as_text($listener->query("NOTIFY a, 'own'")->notifications),
	['a/own'], 'a notification to itself');
$listener->take_notifications;

# Within a transaction PostgreSQL folds already; across transactions of one command.
$sender->run('CREATE PROCEDURE many() LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1 .. 1000 LOOP PERFORM pg_notify(\'a\', (i % 10)::text); COMMIT; END LOOP; END $$');
is_deeply(
	all_as_text(@{ collected($listener, sub { $sender->run('CALL many()') }) }),
	[ map { 'a/' . $_ % 10 } 1 .. 10 ],
	'a thousand transactions');

# ---- with pinpoint.latency_target

$listener->run(q(SET pinpoint.latency_target = '1h'));
notify($sender, 'b/first');
$listener->wait_for(1);
notify($sender, @texts);
is_deeply(all_as_text($listener->query('SELECT 1')->notifications), \@once, 'what was collected');
$listener->take_notifications;
$listener->run('RESET pinpoint.latency_target');

# ---- switched on and off

is_deeply(
	all_as_text(@{ collected($listener,
			sub { notify($sender, 'a/1', 'a/1'); $listener->run('SET LOCAL pinpoint.fold = off'); notify($sender, 'a/1'); }) }),
	['a/1'], 'what counts is the setting when it is delivered');
is_deeply(
	all_as_text(@{ collected($listener,
			sub { notify($sender, 'a/1', 'a/1'); $listener->run('SET pinpoint.fold = off') }) }),
	[ 'a/1', 'a/1' ], 'off');
$listener->run('SET pinpoint.fold = on');
is_deeply(all_as_text(@{ collected($listener, sub { notify($sender, 'a/1', 'a/1') }) }), ['a/1'], 'on');
$listener->run('RESET pinpoint.fold');
is_deeply(all_as_text(@{ collected($listener, sub { notify($sender, 'a/1', 'a/1') }) }),
	[ 'a/1', 'a/1' ], 'RESET');
$listener->run('SET pinpoint.fold = on');
$listener->run('DISCARD ALL');
is($listener->value('SHOW pinpoint.fold'), 'off', 'DISCARD ALL');
$listener->run('SET pinpoint.fold = on; LISTEN a; LISTEN b');

# ---- the bound

# More than a megabyte of different ones; then the same once more.
my $large = sub {
	$sender->run("DO \$\$ BEGIN FOR j IN 1 .. 2 LOOP FOR i IN 1 .. 400 LOOP PERFORM pg_notify('a', i || repeat('x', 7000)); COMMIT; END LOOP; END LOOP; END \$\$");
};
my @told = map { $_->{payload} =~ /^(\d+)/ ? $1 : '' } @{ collected($listener, $large) };
cmp_ok(scalar @told, '<=', 800, 'what does not fit ' . @told . ' times is told more often');
my %seen;
is_deeply([ grep { !$seen{$_}++ } @told ], [ 1 .. 400 ], 'but nothing is lost, and the order is kept');
my $memory = $listener->value(
	q{SELECT coalesce(sum(total_bytes), 0) FROM pg_backend_memory_contexts WHERE name = 'pg_pinpoint fold'});
cmp_ok($memory, '<', 64 * 1024, 'nor is memory kept');

# Small ones: as many as there are.
my $count = 20_000;
@told = map { $_->{payload} } @{ collected($listener,
		sub { $sender->run("DO \$\$ BEGIN FOR i IN 1 .. $count LOOP PERFORM pg_notify('a', (i % 5000)::text); COMMIT; END LOOP; END \$\$") }) };
is_deeply(\@told, [ 1 .. 4999, 0 ], "5,000 different ones of $count");

ok(wait_until_idle($observer, $listener->pid), 'nothing is left to read');
is(stat_listener($observer, $listener->pid)->{backlog_bytes}, 0, 'or kept');

$_->close for $listener, $plain;
server_is_clean($observer, 'nothing is left');

done_testing();
