# A listener with a large backlog leaves, is terminated, or is disconnected, or a slow
# commit ends that has held back many: the notifications of other sessions arrive
# meanwhile, all of them and in order.
#
# With PINPOINT_TEST_CAPACITY=full the backlogs are large, and how long a notification of
# others took is shown, with pg_pinpoint and on a server without it.  bench/costs/run makes a
# record of this.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(max);
use PinpointTest;
use PostgreSQL::Test::Utils;
use POSIX ();
use Test::More;
use Time::HiRes qw(time);

BEGIN { allow_open_files(2048); }

my $capacity = $ENV{PINPOINT_TEST_CAPACITY} // 'small';
die "PINPOINT_TEST_CAPACITY is \"small\" or \"full\"\n" if $capacity !~ /^(?:small|full)$/;
my $full      = $capacity eq 'full';
my $batches   = $full ? 2_000_000 : 20_000;    # small ones
my $megabytes = $full ? 900 : 20;              # of large ones
my $channels  = $full ? 50_000 : 1_000;
my $sharers   = $full ? 100 : 10;
my @held_back = $full ? (100_000, 1_000_000) : (2_000);    # small ones, behind a slow commit
my $wide      = $full ? 640 : 20;                          # with 64 channels each
my %listeners = (plain => $full ? 600 : 10, sharing => $full ? 200 : 10);    # on these
my $dropping  = $full ? 500_000 : 5_000;       # small ones, while a database is dropped
my ($observer, $sender, $listener, $name, $probes);

# Notifications of others, from their NOTIFY until they arrive, while something else
# goes on: at least $least of them, and until $is_over says so.  Returns the times in
# milliseconds.
sub probe_while
{
	my ($is_over, $least) = @_;
	my (@times, $wrong);
	my $deadline = time + 2 * $PostgreSQL::Test::Utils::timeout_default;
	while (@times < $least || !$is_over->())
	{
		die 'it does not come to its end' if time > $deadline;
		my $started = time;
		$probes++;
		$sender->run("NOTIFY probe, '$probes'");
		my ($notification) = $listener->wait_for(1);
		$wrong = 1 if $notification->{payload} ne $probes;
		push @times, 1000 * (time - $started);
	}
	ok(!$wrong, "$name: notifications of others arrive in order");
	return sort { $a <=> $b } @times;
}

# Show what an event of this size cost: the times of others, and more figures.
sub report
{
	my ($event, $size, $times, %more) = @_;
	my %figures = (
		p50_msec => $times->[ @$times / 2 ],
		p99_msec => $times->[ 0.99 * @$times ],
		max_msec => $times->[-1],
		%more);
	note(sprintf '%s{"target": "%s", "event": "%s", "size": %d%s}', $full ? 'measured: ' : '', $name, $event, $size,
		join '', map { sprintf ', "%s": %.3f', $_, $figures{$_} } sort keys %figures);
	return;
}

# What a record says of a server, as JSON.
sub describe
{
	return $observer->value("SELECT json_build_object('target', '$name', 'server_version', version(),"
		  . " 'extensions', (SELECT coalesce(json_object_agg(extname, extversion), '{}')"
		  . " FROM pg_extension WHERE extname <> 'plpgsql'),"
		  . " 'settings', (SELECT json_object_agg(name, current_setting(name)) FROM pg_settings"
		  . " WHERE name LIKE 'pinpoint.%' AND source = 'configuration file' OR name IN ('autovacuum', 'fsync',"
		  . " 'full_page_writes', 'max_connections', 'max_wal_size', 'shared_buffers', 'synchronous_commit', 'wal_level')))");
}

# A session that listens and has this backlog, in a transaction.
sub make_backlog
{
	my ($count, $size, @sessions) = @_;
	$_->run('BEGIN') for @sessions;
	$observer->run(
		"DO \$\$ BEGIN FOR i IN 1 .. $count LOOP"
		  . " PERFORM pg_notify('backlog', i || repeat('x', $size)); COMMIT; END LOOP; END \$\$");
	return;
}

sub usage_is_zero_now { return $observer->value('SELECT pg_notification_queue_usage()') == 0; }

sub usage_is_zero { return wait_until(\&usage_is_zero_now); }

foreach my $engine (0, 1)
{
	$name   = $engine ? 'pinpoint' : 'stock';
	$probes = 0;
	my $node = new_node($name,
		preload         => $engine ? 'pg_pinpoint' : '',
		max_connections => 50 + $sharers,
		conf            => $engine ? 'pinpoint.queue_memory = 1MB' : '');
	($observer, $sender, $listener) = connect_many($node, 3);
	$listener->run('LISTEN probe');
	note(describe());

	# One that leaves with a large backlog, and says so.
	my $session = connect_to($node);
	$session->run('LISTEN backlog');
	make_backlog($megabytes * 1024 * 1024 / 7900, 7800, $session);
	$listener->take_notifications;
	$session->send_query("UNLISTEN *; NOTIFY probe, 'bye'; COMMIT");
	my ($bye) = $listener->wait_for(1);
	is($bye->{payload}, 'bye', "$name: what a session says when it leaves arrives");
	report('unlisten_backlog', $megabytes, [ probe_while(\&usage_is_zero_now, 500) ]);
	is($session->result->error, undef, "$name: it succeeds");
	$session->close;

	# One that leaves very many channels.
	$session = connect_to($node);
	$session->run("DO \$\$ BEGIN FOR i IN 1 .. $channels LOOP EXECUTE 'LISTEN c' || i; END LOOP; END \$\$");
	$session->send_query("BEGIN; UNLISTEN *; NOTIFY probe, 'bye'; COMMIT");
	my $started = time;
	($bye) = $listener->wait_for(1);
	is($bye->{payload}, 'bye', "$name: and when it leaves many channels");
	my $own = 1000 * (time - $started);
	report('unlisten_channels', $channels, [ probe_while(sub { 1 }, 500) ], own_msec => $own);
	$session->close;

	# One that is terminated with a large backlog.
	$session = connect_to($node);
	$session->run('LISTEN backlog');
	make_backlog($batches, 10, $session);
	$observer->run('SELECT pg_terminate_backend(' . $session->pid . ')');
	report('terminate_backlog', $batches, [ probe_while(\&usage_is_zero_now, 500) ]);
	next if !$engine;

	# Many that share a channel are terminated with a backlog; one stays.
	my @sharers = connect_many($node, $sharers, options => '-c pinpoint.shared_channels=* -c pinpoint.share_limit=1');
	my $stays = connect_to($node, options => '-c pinpoint.shared_channels=* -c pinpoint.share_limit=1');
	$_->run('LISTEN backlog') for @sharers, $stays;
	make_backlog($batches, 10, @sharers, $stays);
	my $are_sharers = 'FROM pg_stat_activity WHERE pid IN (' . join(',', map { $_->pid } @sharers) . ')';
	$observer->run("SELECT pg_terminate_backend(pid) $are_sharers");
	report('terminate_sharing', $sharers,
		[ probe_while(sub { $observer->value("SELECT count(*) $are_sharers") == 0 }, 500) ]);
	$stays->run('COMMIT');
	my %told;
	while (keys %told < $batches)
	{
		$told{ $_->{payload} }++ for $stays->wait_for(1), $stays->take_notifications;
	}
	is(max(values %told), 1, 'all that was assigned to them comes to the one that stays, once');
	$stays->close;
	ok(usage_is_zero(), 'and then the queue is empty');

	# A listener that is too far behind is disconnected.
	$session = connect_to($node);
	$session->run('LISTEN backlog');
	make_backlog($megabytes * 1024 * 1024 / 7900, 7800, $session);
	my $disconnected = $observer->value('SELECT sum(disconnected) FROM pinpoint.stat_notify');
	$observer->run($_) for "ALTER SYSTEM SET pinpoint.on_lag = 'disconnect'",
	  "ALTER SYSTEM SET pinpoint.max_listener_lag = '1MB'", 'SELECT pg_reload_conf()';
	my @times = probe_while(
		sub { $observer->value('SELECT sum(disconnected) FROM pinpoint.stat_notify') > $disconnected }, 500);
	report('disconnect_backlog', $megabytes, \@times);
	is($session->result->error->{C}, '57P01', 'the listener learns of it');
	ok(usage_is_zero(), 'its backlog is gone');
	$node->stop;
}

# ---- a slow commit ends that has held back many

# Commits wait for a standby that is not there, and those of the slow session only.
$name = 'pinpoint';
my $node = new_node('publication',
	max_connections => 20 + max(values %listeners, $sharers),
	init            => { allows_streaming => 1 },
	conf            => "synchronous_standby_names = 'nobody'\nsynchronous_commit = local\npinpoint.queue_memory = 1MB");
($observer, $sender, $listener) = connect_many($node, 3);
$listener->run('LISTEN probe');
$observer->run('CREATE TABLE written (i int)');
wait_until_commits_wait($node, options => '-c synchronous_commit=on');

# The time of each command NOTIFY of another session, in milliseconds, while a slow commit
# ends.  (Its notifications arrive after those that were held back.)  $make makes what
# is held back.
sub probe_release
{
	my ($event, $size, $make) = @_;
	my $slow = connect_to($node, options => '-c synchronous_commit=on');
	$slow->send_query(q(BEGIN; INSERT INTO written VALUES (1); NOTIFY probe, 'slow'; COMMIT));
	wait_until(
		sub {
			$observer->value(
				q(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = ) . $slow->pid);
		}) or die 'the commit does not wait';
	$observer->run($make);
	$observer->run('SELECT pg_cancel_backend(' . $slow->pid . ')');
	my (@times, $over);
	do
	{
		# One more after the last one was published.
		$over = @times >= 500 && stat_queue($observer)->{held_back} == 0;
		my $started = time;
		$sender->run("NOTIFY probe, '" . scalar(@times) . q('));
		push @times, 1000 * (time - $started);
	} until ($over);
	is($slow->result->error, undef, "$event: the slow commit succeeds");
	$slow->close;
	is_deeply(
		[ map { $_->{payload} } $listener->wait_for(1 + @times) ],
		[ 'slow', 0 .. $#times ],
		"$event: notifications of others arrive in order");
	report($event, $size, [ sort { $a <=> $b } @times ]);
	return;
}

# Processes that use all of the processor.
sub start_load
{
	my $parent = $$;
	my $count = 2 * grep { /^processor/ } split /\n/, slurp_file('/proc/cpuinfo');
	my @pids;
	foreach (1 .. $count)
	{
		my $pid = fork // die "could not fork: $!";
		if ($pid == 0)
		{
			1 while getppid() == $parent;
			POSIX::_exit(0);
		}
		push @pids, $pid;
	}
	return @pids;
}

sub stop_load
{
	foreach my $pid (@_)
	{
		kill 'KILL', $pid;
		waitpid $pid, 0;
	}
	return;
}

foreach my $suffix ('', $full ? '_loaded' : ())
{
	my @load = $suffix ? start_load() : ();

	# Small ones, with a listener.
	foreach my $count (@held_back)
	{
		my $reads_later = connect_to($node);
		$reads_later->run($_) for 'LISTEN held', 'BEGIN';
		probe_release("release_held_back$suffix", $count,
			"DO \$\$ BEGIN FOR i IN 1 .. $count LOOP PERFORM pg_notify('held', i::text); COMMIT; END LOOP; END \$\$");
		$reads_later->close;
		ok(usage_is_zero(), 'the queue is empty');
	}

	# Some with 64 channels and many listeners.
	foreach my $kind (sort keys %listeners)
	{
		my @crowd = connect_many($node, $listeners{$kind},
			options => $kind eq 'sharing' ? '-c pinpoint.shared_channels=wide* -c pinpoint.share_limit=1' : '');
		my $listen = join ';', map { "LISTEN wide$_" } 1 .. 64;
		foreach my $session (@crowd)
		{
			$session->run($_) for $listen, 'BEGIN';
		}
		probe_release("release_wide_$kind$suffix", $listeners{$kind},
			"DO \$\$ BEGIN FOR i IN 1 .. $wide LOOP PERFORM pg_notify('wide' || j, i::text) FROM generate_series(1, 64) j;"
			  . ' COMMIT; END LOOP; END $$');
		$observer->run('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN ('
			  . join(',', map { $_->pid } @crowd) . ')');
		ok(usage_is_zero(), 'the queue is empty');
	}

	# A database is dropped while sessions that share a channel, and its backlog, end.
	my @crowd = connect_many($node, $sharers, options => '-c pinpoint.shared_channels=* -c pinpoint.share_limit=1');
	my $stays = connect_to($node, options => '-c pinpoint.shared_channels=* -c pinpoint.share_limit=1');
	$observer->run('CREATE DATABASE dropped');
	$_->run('LISTEN backlog') for @crowd, $stays;
	make_backlog($dropping, 10, @crowd, $stays);
	$observer->run('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN ('
		  . join(',', map { $_->pid } @crowd) . ')');
	my $started = time;
	$observer->run('DROP DATABASE dropped');
	my $own = 1000 * (time - $started);
	report("drop_database$suffix", $dropping, [ probe_while(sub { 1 }, 500) ], own_msec => $own);
	$stays->close;
	ok(usage_is_zero(), 'the queue is empty');

	stop_load(@load);
}
$node->stop;

done_testing();
