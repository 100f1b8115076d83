# Senders and listeners are ended and killed at random moments, again and again,
# and so is the whole server, with a backlog.
#
# SIGTERM ends one session; nobody else notices.  After SIGKILL PostgreSQL
# starts again with everything shared empty; clients connect, and it works.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $terminations = $ENV{PINPOINT_TEST_KILLS} // 60;
my $crashes      = 1 + int($terminations / 12);

my $seed = $ENV{PINPOINT_TEST_SEED} // 20260104;
srand $seed;
note("PINPOINT_TEST_SEED=$seed PINPOINT_TEST_KILLS=$terminations");

# A queue that needs its file nearly all the time.
my $node = new_node('main', conf => <<'EOC');
restart_after_crash = on
pinpoint.queue_memory = 64kB
pinpoint.queue_size = 64MB
EOC
my $file = $node->data_dir . '/pg_notify/pg_pinpoint';
$node->safe_psql('postgres',
	'CREATE TABLE sent (run int, sender int, n int, PRIMARY KEY (run, sender, n))');

# Senders and listeners are opened anew when they are ended; the witness and the
# observer live as long as the server does.
my $run = 0;
my ($observer, $witness, @senders, @listeners);

sub open_sessions
{
	$run++;
	($observer, $witness) = connect_many($node, 2);
	$witness->run('LISTEN all_of_it');
	$senders[$_]   = new_sender($_) for 0 .. 3;
	$listeners[$_] = new_listener() for 0 .. 3;
	return;
}

sub new_sender
{
	my ($number) = @_;
	return {
		number  => $number,
		session => connect_to($node),
		sent    => $senders[$number] && $senders[$number]{run} == $run
		? $senders[$number]{sent} : 0,
		run     => $run,
		busy    => 0
	};
}

sub new_listener
{
	my $session = connect_to($node);
	$session->run('LISTEN all_of_it; LISTEN own_' . int rand 5);
	return $session;
}

# A transaction with a row, some notifications, and a life of its own kind.
sub send_one
{
	my ($sender) = @_;
	my $n    = ++$sender->{sent};
	my $own  = 'own_' . int rand 5;
	my $row  = "INSERT INTO sent VALUES ($run, $sender->{number}, $n)";
	my $tell = "SELECT pg_notify('all_of_it', '$run $sender->{number} $n')";
	my $fill = "SELECT count(pg_notify('$own', i || repeat('x', 4000)))"
	  . ' FROM generate_series(1, ' . int(rand 30) . ') i';
	my $sql = join ';',
	    rand() < 0.2 ? ("LISTEN $own", 'BEGIN') : 'BEGIN',
	    $row, $tell,
	    rand() < 0.3 ? ('SAVEPOINT s', $fill, rand() < 0.5 ? 'ROLLBACK TO s' : 'RELEASE s')
	  : $fill,
	  'COMMIT';
	$sender->{session}->send_query($sql);
	$sender->{busy} = 1;
	return;
}

# Listeners read, most of the time, what is sent to them.
sub read_along
{
	foreach my $listener (@listeners)
	{
		next if rand() < 0.3;
		$listener->receive_available;
		$listener->take_notifications;
	}
	$witness->receive_available;
	return;
}

# Senders that have got an answer send the next.
sub send_along
{
	foreach my $sender (@senders)
	{
		if ($sender->{busy})
		{
			my $result = $sender->{session}->result;
			die $result->error->{M} if $result->error;
			$sender->{session}->take_notifications;
		}
		send_one($sender);
	}
	return;
}

# The witness has been told exactly of the rows of this run, each sender's in
# their order, and each when its row could be seen.
sub witness_saw_all
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $sender (@senders)
	{
		$sender->{session}->result if $sender->{busy};
		$sender->{busy} = 0;
	}
	my $session = connect_to($node);
	$session->run("NOTIFY all_of_it, 'end of $name'");
	$session->close;
	my @got = map { $_->{payload} } $witness->notifications_until('all_of_it', "end of $name");
	my @expected = map { "@$_" }
	  @{ $observer->run("SELECT * FROM sent WHERE run = $run ORDER BY sender, n")->rows };
	my @sorted = map { $_->[0] }
	  sort { $a->[1] <=> $b->[1] || $a->[2] <=> $b->[2] }
	  map { [ $_, (split)[ 1, 2 ] ] } @got;
	is_deeply(\@sorted, \@expected, "$name: what was committed arrived, and nothing else");
	my (%last, @unordered);
	foreach my $notification (@got)
	{
		my (undef, $sender, $n) = split ' ', $notification;
		push @unordered, $notification if $n <= ($last{$sender} // 0);
		$last{$sender} = $n;
	}
	is_deeply(\@unordered, [], "$name: each sender's in order");
	cmp_ok(scalar @got, '>', 0, "$name: something did");
	return;
}

# ---- sessions are told to end

open_sessions();
for (1 .. $terminations)
{
	send_along();
	sleep rand 0.02;
	if (rand() < 0.5)
	{
		my $victim = $senders[ rand @senders ];
		kill 'TERM', $victim->{session}->pid;
		$victim->{session}->receive_until('EOF');
		$senders[ $victim->{number} ] = new_sender($victim->{number});
	}
	else
	{
		my $number = int rand @listeners;
		kill 'TERM', $listeners[$number]->pid;
		$listeners[$number] = new_listener();
	}
	read_along();
}
witness_saw_all("$terminations times SIGTERM");
ok( wait_until(
		sub {
			$observer->value(
				q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'})
			  == 2 + @senders + @listeners;
		}),
	'no session hangs');

# ---- server processes are killed

sub wait_for_server
{
	wait_until(sub { eval { connect_to($node)->close; 1 } })
	  or die 'the server does not start again';
	return;
}

# All clients have lost their connections, and what was shared is gone.
sub works_afresh
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	open_sessions();
	my $queue = stat_queue($observer);
	is_deeply([ @$queue{qw(used_bytes batches in_flight held_back file_bytes)} ],
		[ (0) x 5 ], "$name: the queue is empty");
	is(-s $file, 0, "$name: and so is its file");
	is($observer->value('SELECT count(*) FROM pinpoint.stat_listeners'),
		1 + @listeners, "$name: the sessions that listen are those that connected again");
	for (1 .. 3)
	{
		send_along();
		read_along();
	}
	witness_saw_all($name);
	return;
}

for my $crash (1 .. $crashes)
{
	send_along();
	read_along();
	send_along();
	sleep rand 0.02;
	my $victim = rand() < 0.5 ? $senders[ rand @senders ]{session} : $listeners[ rand @listeners ];
	kill 'KILL', $victim->pid or die "could not kill: $!";
	$_->receive_until('EOF')
	  for $observer, $witness, @listeners, map { $_->{session} } @senders;
	wait_for_server();
	works_afresh("SIGKILL $crash");
}

# ---- the server stops at once, or is killed, with a backlog

# Kills every process of the server in the same moment, as a power failure does.
sub kill_all
{
	my @pids = map { $_->[0] } @{ $observer->run('SELECT pid FROM pg_stat_activity')->rows };
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	kill 'STOP', @pids;
	$node->kill9;
	kill 'KILL', @pids;

	# PostgreSQL does not start while there is a process of the old server.
	wait_until(sub { !kill 0, $postmaster, @pids }) or die 'the server does not die';
	return;
}

foreach my $how ('immediate shutdown', 'SIGKILL of all processes')
{
	my $slow = connect_to($node);
	$slow->run('LISTEN slow');
	$slow->run('BEGIN');
	my $sender = connect_to($node);
	$sender->run("SELECT count(pg_notify('slow', rpad(i || ' ', 7900, 'x'))) FROM generate_series(1, 5000) i");
	cmp_ok(-s $file, '>', 32 * 1024 * 1024, 'there is a large backlog');
	send_along();
	if ($how eq 'immediate shutdown')
	{
		$node->stop('immediate');
		is(-s $file, 0, 'the server leaves no large file behind');
	}
	else
	{
		kill_all();
		cmp_ok(-s $file, '>', 32 * 1024 * 1024, 'nobody is left to empty the file');
	}
	$node->start;
	works_afresh($how);
}

$_->close for $witness, @listeners, map { $_->{session} } @senders;
server_is_clean($observer, 'nothing is left');

done_testing();
