# Random transactions, the same on a server without the library and on one with
# it: every session must be told the same, at the same step.
#
# A few sessions take turns, one statement at a time.  After each statement the
# sessions that are not in a transaction block run an empty query, before whose
# end all that was sent to them has come.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $steps    = 3000;
my $sessions = 4;
my @channels = qw(a b c d);

my $seed = $ENV{PINPOINT_TEST_SEED} // 20260103;
srand $seed;
note("PINPOINT_TEST_SEED=$seed");

my %node = (
	postgresql => new_node('postgresql', preload => ''),
	pinpoint   => new_node('pinpoint'));
my %session = map { $_ => [ connect_many($node{$_}, $sessions) ] } keys %node;

# What a session is told is the same only if it is told by the same sender.
my %number_of;
foreach my $server (keys %session)
{
	$number_of{$server}{ $session{$server}[$_]->pid } = $_ for 0 .. $sessions - 1;
}

sub pick { return $_[ rand @_ ]; }

# What the generator knows of each session: whether it is in a transaction
# block, the channels of its LISTENs and NOTIFYs in there, and those of what was
# sent since the session was last out of a block, of which it was not told yet.
my @state = map { { block => 0, listens => {}, notifies => {}, sent => {} } } 1 .. $sessions;

# Is a session whose LISTEN is not yet committed told of what others commit
# meanwhile?  PostgreSQL's versions differ, depending also on what else the
# session listens on, so nobody does that here.
sub channel_for_notify
{
	my ($number) = @_;
	my @others  = grep { $_ != $number } 0 .. $#state;
	my %pending = map { %{ $state[$_]{listens} } } @others;
	my $channel = pick(grep { !$pending{$_} } @channels) // return;
	$state[$number]{notifies}{$channel} = 1;
	return $channel;
}

sub channel_for_listen
{
	my ($number) = @_;
	my %pending = map { %{ $state[$_]{notifies} } } grep { $_ != $number } 0 .. $#state;
	my $channel =
	  pick(grep { !$pending{$_} && !$state[$number]{sent}{$_} } @channels) // return;
	$state[$number]{listens}{$channel} = 1;
	return $channel;
}

sub random_notify
{
	my ($number) = @_;
	my $channel = channel_for_notify($number) // return 'SELECT 1';
	my $payload = int rand 4;
	return pick(
		"NOTIFY $channel",
		"NOTIFY $channel, '$payload'",
		"SELECT pg_notify('$channel', '$payload')",
		"SELECT pg_notify('$channel', (i % 5)::text) FROM generate_series(1, 12) i",
		"SELECT pg_notify('$channel', i::text) FROM generate_series(1, 40) i",
		"DO \$\$ BEGIN NOTIFY $channel, '$payload'; PERFORM pg_notify('$channel', 'do'); END \$\$",

		# a subtransaction that is released, and one that is rolled back
		"DO \$\$ BEGIN NOTIFY $channel, '1'; BEGIN NOTIFY $channel, '$payload';"
		  . ' EXCEPTION WHEN OTHERS THEN NULL; END; END $$',
		"DO \$\$ BEGIN NOTIFY $channel, '1'; BEGIN NOTIFY $channel, '$payload';"
		  . " RAISE EXCEPTION 'x'; EXCEPTION WHEN OTHERS THEN NOTIFY $channel, 'x'; END; END \$\$");
}

sub random_statement
{
	my ($number) = @_;
	my $state    = $state[$number];
	my $kind     = rand;
	return random_notify($number) if $kind < 0.4;
	if ($kind < 0.55)
	{
		my $channel = channel_for_listen($number) // return 'SELECT 1';
		return "LISTEN $channel";
	}
	return 'UNLISTEN ' . pick(@channels, '*') if $kind < 0.60;
	return 'SELECT pg_listening_channels()' if $kind < 0.63;
	return 'SELECT 1/0' if $kind < 0.64;
	if (!$state->{block})
	{
		return 'DISCARD ALL' if $kind < 0.65;
		return join '; ', map { random_notify($number) } 1 .. 3 if $kind < 0.75;
		return pick('BEGIN', 'BEGIN', 'BEGIN READ ONLY', 'BEGIN ISOLATION LEVEL SERIALIZABLE');
	}
	return pick('COMMIT', 'COMMIT', 'ROLLBACK', 'COMMIT AND CHAIN') if $kind < 0.85;
	my $savepoint = int rand 3;
	return pick("SAVEPOINT s$savepoint", "SAVEPOINT s$savepoint",
		"ROLLBACK TO s$savepoint", "RELEASE s$savepoint");
}

# What a result tells: the kinds of messages, the rows, the error.
sub description
{
	my ($result) = @_;
	return join ' ', $result->types, ($result->error ? $result->error->{C} : ()),
	  map { join ',', map { $_ // 'null' } @$_ } @{ $result->rows };
}

sub told
{
	my ($server, $session) = @_;
	return join ' ',
	  map { as_text($_) . '<' . ($number_of{$server}{ $_->{pid} } // 'unknown') }
	  $session->take_notifications;
}

my (@history, $difference);
my %count = (told => 0, blocks => 0);
STEP: for my $step (1 .. $steps)
{
	my $number    = int rand $sessions;
	my $statement = random_statement($number);
	push @history, "$number: $statement";

	my (%description, %told, %status);
	foreach my $server (keys %session)
	{
		my $result = $session{$server}[$number]->query($statement);
		$status{$server}      = $result->status;
		$description{$server} = description($result);
		foreach my $other (0 .. $sessions - 1)
		{
			my $session = $session{$server}[$other];
			$session->run('') unless $other == $number || $state[$other]{block};
			$told{$server}[$other] = told($server, $session);
		}
	}

	my $state = $state[$number];
	$state->{block} = $status{postgresql} ne 'I';
	if (!$state->{block} || $statement eq 'COMMIT AND CHAIN')
	{
		my @sent = keys %{ $state->{notifies} };
		@$state{qw(listens notifies)} = ({}, {});
		foreach my $listener (@state)
		{
			$listener->{sent} = {} if !$listener->{block};
			$listener->{sent}{$_} = 1 for $listener->{block} ? @sent : ();
		}
	}
	$count{told}++ if "@{ $told{postgresql} }" =~ /\S/;
	$count{blocks}++ if $state[$number]{block};

	# Where in the result a session's own notifications stand is part of what
	# has to be the same.
	if ($description{postgresql} ne $description{pinpoint}
		|| "@{ $told{postgresql} }" ne "@{ $told{pinpoint} }")
	{
		$difference = "at step $step";
		diag("seed $seed, step $step, the last statements:");
		diag("  $_") for @history[ ($step > 30 ? $step - 30 : 0) .. $step - 1 ];
		foreach my $server (sort keys %session)
		{
			diag("$server: $description{$server}");
			diag("  session $_ was told: $told{$server}[$_]") for 0 .. $sessions - 1;
		}
		last STEP;
	}
}
is($difference, undef, 'all sessions were told the same');
cmp_ok($count{told}, '>', $steps / 20, "notifications came at $count{told} steps");
cmp_ok($count{blocks}, '>', $steps / 5, "$count{blocks} steps were in a transaction block");

my $observer = connect_to($node{pinpoint});
cmp_ok(stat_queue($observer)->{published}, '>', $steps / 20, 'through the engine');
$_->close for @{ $session{pinpoint} };
server_is_clean($observer, 'nothing is left');

done_testing();
