=pod

=head1 NAME

PinpointTest - servers, sessions and waits shared by the TAP tests

=head1 DESCRIPTION

Each test makes its own server with new_node() and opens PgWire sessions on it.
A wait is for a condition and ends at a deadline.

=cut

package PinpointTest;

use strict;
use warnings;

use Carp;
use Exporter 'import';
use FindBin;
use POSIX ();
use PgWire;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(
  new_node
  stop_and_start
  connect_to
  connect_many
  wait_until
  as_text
  all_as_text
  stat_queue
  stat_listener
  wait_until_idle
  is_asleep
  is_stopped
  stop_waker
  wait_until_counting
  wait_until_commits_wait
  get_stuck_in_error
  woken_times
  error_is
  is_told
  server_is_clean
  drop_database
  has_faults
  allow_open_files
  compile_clock
  compile_stop_at_signal
  compile_no_fallocate
  compile_interference
  compile_deparser
  compile_uncounted
  begin_and_pause
  pause_when_idle
  open_gate
  hold_back
);

# Interrupted tests stop their servers too: die() runs the END blocks of
# PostgreSQL::Test::Cluster, a signal's default action does not.
$SIG{INT} = $SIG{TERM} = sub { die "stopped by signal $_[0]\n" };

# Starts a new server.  Parameters:
#   preload         shared_preload_libraries; default 'pg_pinpoint', '' for a
#                   server without it: PostgreSQL as it is
#   extension       make the extension in database postgres (default: if
#                   pg_pinpoint is preloaded)
#   max_connections default 50
#   conf            more lines for postgresql.conf
#   init            parameters of PostgreSQL::Test::Cluster's init()
sub new_node
{
	my ($name, %params) = @_;
	my $preload = $params{preload} // 'pg_pinpoint';
	my $node    = PostgreSQL::Test::Cluster->new($name);
	$node->init(%{ $params{init} // {} });
	$node->append_conf('postgresql.conf', join "\n",
		"shared_preload_libraries = '$preload'",
		'max_connections = ' . ($params{max_connections} // 50),

		# Thousands of statements in the server's log help nobody.
		'log_statement = none',

		# No process but those of the test is to wake a session or to
		# hold an old snapshot.
		'autovacuum = off',

		# A standby that is not connected during a checkpoint still finds the WAL that
		# it needs.
		$params{init}{allows_streaming} ? ('wal_keep_size = 512MB') : (),
		$params{conf} // '');
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_pinpoint')
	  if $params{extension} // $preload =~ /pg_pinpoint/;
	return $node;
}

# Stops a server in this mode, as of pg_ctl, and starts it again.  (restart() of
# PostgreSQL::Test::Cluster knows no modes: older versions pass over an argument.)
sub stop_and_start
{
	my ($node, $mode) = @_;
	my $position = -s $node->logfile;
	$node->stop($mode);
	$node->log_contains("received $mode shutdown request", $position)
	  or croak "the server was not stopped in mode $mode";
	$node->start;
	return;
}

# Opens a session.  Parameters: dbname (default postgres), user (default the
# superuser who made the server), client_encoding, options.
sub connect_to
{
	my ($node, %params) = @_;
	return PgWire->new(_address($node, %params));
}

# Opens $count sessions with the same parameters.
sub connect_many
{
	my ($node, $count, %params) = @_;
	my @sessions;
	while (@sessions < $count)
	{
		# Groups, so that the postmaster's queue of connections does not
		# overflow.
		my $group = $count - @sessions < 25 ? $count - @sessions : 25;
		push @sessions, map { $_->finish_start }
		  map { PgWire->start(_address($node, %params)) } 1 .. $group;
	}
	return @sessions;
}

sub _address
{
	my ($node, %params) = @_;
	return (
		host   => $node->host,
		port   => $node->port,
		dbname => 'postgres',
		user   => scalar getpwuid($>),
		%params);
}

# Calls $condition until it is true and returns that, or false at the deadline.
sub wait_until
{
	my ($condition) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	while (1)
	{
		my $value = $condition->();
		return $value if $value;
		return 0 if time > $deadline;
		sleep 0.01;
	}
}

# A notification as 'channel/payload'.
sub as_text
{
	my ($notification) = @_;
	return "$notification->{channel}/$notification->{payload}";
}

sub all_as_text { return [ map { as_text($_) } @_ ]; }

# The row of pinpoint.stat_queue as a hash, and what went through the queue.
sub stat_queue
{
	my ($session) = @_;
	return _row($session,
		'SELECT * FROM pinpoint.stat_queue, (SELECT coalesce(sum(transactions), 0) AS published,'
		  . ' coalesce(sum(unheard), 0) AS unheard, coalesce(sum(published_by_others), 0) AS published_by_others,'
		  . ' coalesce(sum(signals), 0) AS wakeups FROM pinpoint.stat_notify) AS n');
}

# The row of pinpoint.stat_listeners of a session, undef if there is none.
sub stat_listener
{
	my ($session, $pid) = @_;
	return _row($session,
		"SELECT * FROM pinpoint.stat_listeners WHERE pid = $pid");
}

# The first row as a hash of its columns' names.
sub _row
{
	my ($session, $sql) = @_;
	my $result = $session->run($sql);
	my ($description) = grep { $_->{type} eq 'T' } $result->messages;
	my @names = unpack('n/(Z* x18)', $description->{body});
	my $row = $result->rows->[0] or return;
	my %row;
	@row{@names} = @$row;
	return \%row;
}

# Waits until a listener has handled all its wakeups.
sub wait_until_idle
{
	my ($session, $pid) = @_;
	return wait_until(
		sub {
			my $listener = stat_listener($session, $pid);
			return $listener && $listener->{state} =~ /^(idle|resting)$/;
		});
}

# Does the server process of a session sleep?  Then it has dealt with all signals that it
# was sent before.
sub is_asleep
{
	my ($session) = @_;
	return slurp_file('/proc/' . $session->pid . '/stat') =~ /^\d+ \(.*\) S/;
}

# Is the process with this PID stopped, for instance by SIGSTOP?
sub is_stopped { return slurp_file("/proc/$_[0]/stat") =~ /^\d+ \(.*\) T/; }

# Stops the waker where it waits for work, and returns its PID.  Elsewhere it could hold a
# lock that others need.
sub stop_waker
{
	my ($session) = @_;
	my $waiting = q{FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker' AND wait_event_type = 'Extension'};
	my $pid;
	wait_until(
		sub {
			$pid = $session->value("SELECT max(pid) $waiting") // return 0;
			kill 'STOP', $pid or die "could not stop $pid: $!";
			wait_until(sub { is_stopped($pid) }) or die 'the waker does not stop';
			return 1 if $session->value("SELECT count(*) $waiting AND pid = $pid");
			kill 'CONT', $pid;
			return 0;
		}) or die 'the waker does not wait';
	return $pid;
}

# Waits until a standby counts what is notified: until it knows that its primary replicates.
sub wait_until_counting
{
	my ($session) = @_;
	wait_until(sub { $session->value(q{SELECT changed FROM pinpoint.changed_since(pinpoint.position(), 'never')}) eq '{}' })
	  or die 'the standby does not count';
	return;
}

# A number of wakeups is as many as it should be.  Who has been signalled and does not
# get to read for a second, as on a machine that stands still, is reminded, again and
# again, and each time counts.  So there may be more for each second that has passed
# since then, the time at which the first was sent.
sub woken_times
{
	my ($got, $expected, $since, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $seconds = int(time - $since);
	return is($got, $expected, $name) if $seconds == 0;
	return ok($got >= $expected && $got <= $expected * (1 + $seconds),
		"$name, with reminders within $seconds s")
	  || diag("$got, and not $expected");
}

# Waits until commits wait for a standby, after synchronous_standby_names was set.  They
# do from the moment on at which the checkpointer has read it, which no view shows.
sub wait_until_commits_wait
{
	my ($node, %params) = @_;
	my $observer = connect_to($node, %params, options => '-c synchronous_commit=local');
	my $trial    = connect_to($node, %params);
	my $tries    = 0;
	wait_until(
		sub {
			my $statement = q{SELECT pg_logical_emit_message(true, 'trial', '} . ++$tries . q{')};
			my $of_trial  = 'FROM pg_stat_activity WHERE pid = ' . $trial->pid;
			$trial->send_query($statement);
			my $waits;
			wait_until(
				sub {
					$waits = $observer->value("SELECT count(*) $of_trial AND wait_event = 'SyncRep'");
					return $waits
					  || $observer->value(
						"SELECT count(*) $of_trial AND state = 'idle' AND query = \$\$$statement\$\$");
				}) or die 'a commit neither ends nor waits';
			$observer->run('SELECT pg_cancel_backend(' . $trial->pid . ')') if $waits;
			$trial->result->error and die 'a commit fails';
			return $waits;
		}) or die 'commits do not wait for a standby';
	$_->close for $observer, $trial;
	return;
}

# Has a session do something that fails, again and again, and reads nothing of it, until
# the server waits for that in the midst of its report of an error: then PostgreSQL does
# not let the session be ended.  (It may wait right behind it as well, being idle.  A
# look takes the two columns at different times, but a stuck session stays so.)
sub get_stuck_in_error
{
	my ($observer, $session, $sql) = @_;
	$sql //= 'SELECT 1/0';
	return wait_until(
		sub {
			$session->send_query($sql);
			foreach my $look (1, 2)
			{
				my ($state, $wait_event) = @{ $observer->run(
					'SELECT state, wait_event FROM pg_stat_activity WHERE pid = ' . $session->pid)->rows->[0] };
				return 0 if ($wait_event // '') ne 'ClientWrite';
				next if $state eq 'active';
				$session->read_ahead;
				return 0;
			}
			return 1;
		});
}

# The error of a result has this SQLSTATE, message, and, if given, hint.
sub error_is
{
	my ($result, $sqlstate, $message, $hint, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $error = $result->error // {};
	return is_deeply(
		{ map { $_ => $error->{$_} } 'C', 'M', defined $hint ? 'H' : () },
		{ C => $sqlstate, M => $message, defined $hint ? (H => $hint) : () },
		$name);
}

# A session is told of the commit of a prepared transaction that could not be notified.
sub is_told
{
	my ($session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $error = $session->receive_until('E')->error;
	return is_deeply([ @$error{qw(C D)} ],
		[ '57P01', 'A prepared transaction that changed a watched table was committed, and could not be notified.' ],
		"$name is told");
}

# Nothing is left of any listener or notification.  Sessions take a moment to
# end after their client has gone, so this waits.
sub server_is_clean
{
	my ($session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @parts = qw(listeners channels used_bytes batches in_flight held_back);
	my %left;
	my $clean = wait_until(
		sub {
			my $row = $session->run(
				'SELECT (SELECT count(*) FROM pinpoint.stat_listeners),'
				  . ' (SELECT count(*) FROM pinpoint.stat_channels),'
				  . ' used_bytes, batches, in_flight, held_back'
				  . ' FROM pinpoint.stat_queue')->rows->[0];
			@left{@parts} = @$row;
			return !grep { $_ } @$row;
		});
	ok($clean, $name)
	  or diag('left: ' . join ', ', map { "$_ $left{$_}" } @parts);
	return;
}

# Compiles interference.c, the library that gets in the way of transactions.
# Returns a path for LOAD and CREATE FUNCTION.
sub compile_interference { return _compile('interference'); }

# Likewise deparser.c, which is to be preloaded.
sub compile_deparser { return _compile('deparser'); }
# Likewise uncounted.c, which is loaded by its function.
sub compile_uncounted { return _compile('uncounted'); }

# Likewise clock.c, which is to be preloaded into a server.  Returns what its
# environment needs, and a function that sets the clock off by some seconds, and the
# processor time that is used between two readings of it, in microseconds (default: the real
# one).
sub compile_clock
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/clocks";
	append_to_file($file, pack('qq', 0, -1));
	my $set = sub {
		my ($seconds, $step) = @_;
		open my $handle, '+<', $file or die "could not open $file: $!";
		syswrite $handle, pack('qq', $seconds, $step // -1) or die "could not write $file: $!";
		close $handle;
		return;
	};
	return ({ LD_PRELOAD => _compile('clock') . '.so', CLOCKS => $file }, $set);
}

# Likewise stop_at_signal.c.  The function makes a process stop before it sends a signal: PID, number.
sub compile_stop_at_signal { return _compile_told('stop_at_signal'); }

# Likewise no_fallocate.c.  The function sets the error, and the space of the disk.
sub compile_no_fallocate { return _compile_told('no_fallocate'); }

# A library to be preloaded that reads numbers from a file.  The function writes them.
sub _compile_told
{
	my ($name) = @_;
	my $file   = "$PostgreSQL::Test::Utils::tmp_check/$name";
	my $tell   = sub {
		my (@numbers) = @_;
		append_to_file("$file.new", "@numbers");
		rename "$file.new", $file or die "could not rename $file.new: $!";
		return;
	};
	return ({ LD_PRELOAD => _compile($name) . '.so', uc($name) => $file }, $tell);
}

sub _compile
{
	my ($name) = @_;
	my $path = "$PostgreSQL::Test::Utils::tmp_check/$name";
	my ($include, $output);
	IPC::Run::run([ 'pg_config', '--includedir-server' ], '>', \$include)
	  or die "could not run pg_config\n";
	chomp $include;
	my @command = (
		$ENV{CC} // 'cc', qw(-O2 -Wall -Wextra -Werror -Wno-unused-parameter),
		qw(-shared -fPIC), "-I$include", "$FindBin::RealBin/../$name.c",
		'-o', "$path.so");
	IPC::Run::run(\@command, '>&', \$output)
	  or die "could not compile: @command\n$output\n";
	return $path;
}

# PostgreSQL waits for the sessions that it terminates, but only for five seconds.
sub drop_database
{
	my ($session, $name) = @_;
	wait_until(sub { !$session->query("DROP DATABASE $name WITH (FORCE)")->error })
	  or die "could not drop the database $name";
	return;
}

# Has a session that has loaded what compile_interference() made begin a statement, and
# waits until it pauses at a place of its transaction: see interference.c.  Sessions with
# different names of gates go on one by one.
sub begin_and_pause
{
	my ($observer, $session, $place, $sql, $name) = @_;
	close_gate($session, $place, $name);
	$session->send_query($sql);
	wait_until_paused($observer, $session);
	return;
}

# The same for the transaction that PostgreSQL runs when the session, which is idle, receives a
# notification: it pauses before pg_pinpoint delivers.
sub pause_when_idle
{
	my ($observer, $session, $name) = @_;
	close_gate($session, 'idle', $name);
	wait_until_paused($observer, $session);
	return;
}

# Has a session commit a transaction that notifies 'slow' on "a" and pauses after its commit
# record, and the observer $count others meanwhile, which notify their numbers.  Returns how
# many are held back.  Parameters:
#   others  another statement of the observer, which commits them
#   then    what the session does in the same message, after its commit
sub hold_back
{
	my ($observer, $slow, $count, %params) = @_;
	begin_and_pause($observer, $slow, 'commit',
		q(BEGIN; SELECT pg_current_xact_id(); NOTIFY a, 'slow'; COMMIT) . ($params{then} // ''));
	$observer->run($params{others}
		  // "DO \$\$ BEGIN FOR i IN 1 .. $count LOOP PERFORM pg_notify('a', i::text); COMMIT; END LOOP; END \$\$");
	return stat_queue($observer)->{held_back};
}

sub close_gate
{
	my ($session, $place, $name) = @_;
	my $gate = gate($name);
	$session->run("SET interference.gate = '$gate'; SET interference.pause = '$place'");
	append_to_file($gate, '');
	return;
}

sub wait_until_paused
{
	my ($observer, $session) = @_;
	wait_until(
		sub {
			$observer->value(
				q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND pid = }
				  . $session->pid);
		}) or die 'the session does not pause';
	return;
}

# Lets it go on.
sub open_gate
{
	my ($name) = @_;
	unlink gate($name) or die "could not remove the gate: $!";
	return;
}

sub gate
{
	my ($name) = @_;
	return "$PostgreSQL::Test::Utils::tmp_check/gate" . ($name // '');
}

# Can faults be planted?  A library for a server without assertions has no
# pinpoint.debug_fault.
sub has_faults
{
	my $folder = `pg_config --includedir-server`;
	chomp $folder;
	return slurp_file("$folder/pg_config.h") =~ /^#define USE_ASSERT_CHECKING 1/m;
}

# Makes sure that this process may open $count files, starting it again with a
# higher limit if need be.  To be called from a BEGIN block: afterwards the
# test's output has been redirected.
sub allow_open_files
{
	my ($count) = @_;
	return if POSIX::sysconf(POSIX::_SC_OPEN_MAX()) >= $count;
	die "could not raise the limit of open files to $count\n"
	  if $ENV{PINPOINT_TEST_FILES_RAISED};
	local $ENV{PINPOINT_TEST_FILES_RAISED} = 1;
	local $ENV{PERL5LIB} = join ':', @INC;
	exec '/bin/sh', '-c', 'ulimit -n "$0" && exec "$@"', $count, $^X, $0, @ARGV
	  or die "could not start a shell: $!\n";
}

1;
