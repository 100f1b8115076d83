# What is done about a listener that falls far behind: warnings, and, if it is
# wanted, the end of its session.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('main', conf => <<'EOC');
pinpoint.queue_size = 8MB
pinpoint.queue_memory = 64kB
log_min_messages = warning
EOC
my $observer = connect_to($node);
my $sender   = connect_to($node);
my $prompt   = connect_to($node);
$prompt->run('LISTEN a');

# Opens a session that listens and sits in a transaction.
sub slow_listener
{
	my ($name) = @_;
	my $session = connect_to($node);
	$session->run("SET application_name = '$name'");
	$session->run('LISTEN a');
	$session->run('BEGIN');
	return $session;
}

# The warnings of a statement of the sender.
sub warnings_of
{
	my ($sql) = @_;
	return map { $_->{fields} } grep { $_->{type} eq 'N' } $sender->run($sql)->messages;
}

# Sends so many kB, in notifications of 4 kB; returns the warnings.
my $sent = 0;
my $is_disconnecting;
sub send_kb
{
	my ($kb) = @_;
	my @warnings;
	for my $n (1 .. $kb / 4)
	{
		$sent++;
		push @warnings, warnings_of("SELECT pg_notify('a', rpad('$sent ', 4000, 'x'))");
		$prompt->receive_available;

		# Also on a busy machine, it has to be prompt, and a session that a sender tells to
		# end needs the time for that.
		next if $n % 50;
		wait_until_idle($observer, $prompt->pid) or die 'the prompt listener is not prompt';
		next if !$is_disconnecting;
		wait_until(
			sub {
				push @warnings, warnings_of('NOTIFY nobody');
				return $observer->value(
					'SELECT count(*) FROM pinpoint.stat_listeners WHERE backlog_bytes > 1024 * 1024') == 0;
			}) or die 'nobody is disconnected';
	}
	return @warnings;
}

# The prompt listener has received everything, in order.
sub prompt_has_all
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$sender->run("NOTIFY a, 'fence'");
	my @got = map { $_->{payload} =~ /^(\d+) x+$/ ? $1 : 'damaged' }
	  $prompt->notifications_until('a', 'fence');
	my $first = $sent - @got + 1;
	is_deeply(\@got, [ $first .. $sent ], "$name: nobody else notices");
	$sent = 0;
	return;
}

sub reload
{
	my (%settings) = @_;
	$observer->run(defined $settings{$_}
		? "ALTER SYSTEM SET $_ = '$settings{$_}'"
		: "ALTER SYSTEM RESET $_")
	  for keys %settings;
	$node->reload;
	foreach my $name (keys %settings)
	{
		next unless defined $settings{$name};
		foreach my $session ($observer, $sender)
		{
			wait_until(sub { $session->value("SHOW $name") eq $settings{$name} })
			  or die "$name did not change";
		}
	}
	return;
}

# ---- half full: a warning, as in PostgreSQL

my $slow = slow_listener('the slow one');
is(scalar(my @none = send_kb(3600)), 0, 'a backlog of less than half of the queue is no news');
my $began    = time;
my @warnings = send_kb(600);
cmp_ok(scalar @warnings, '>=', 1, 'from half on there is a warning');
cmp_ok(scalar @warnings, '<=', 1 + (time - $began) / 5, 'not one each time, but one in 5 seconds');
my $warning = $warnings[0];
is($warning->{C}, '01000', 'a warning');
like($warning->{M}, qr/^NOTIFY queue is 50% full$/, 'that says how full it is');
is( $warning->{D},
	'The listener that is furthest behind is the server process with PID ' . $slow->pid . '.',
	'and who is behind');
like($warning->{H}, qr/^The NOTIFY queue cannot be emptied until that process/, 'and why');
my $log = slurp_file($node->logfile);
my $pid = $slow->pid;
like($log,
	qr/with PID $pid, user "[^"]+", application "the slow one", in a transaction for \d+ s\./,
	'the log has more to say about it');
unlike($warning->{D}, qr/the slow one/, 'which is not for everybody');
$slow->run('COMMIT');
prompt_has_all('a slow listener');
$slow->close;

# ---- a limit, and a warning

reload('pinpoint.max_listener_lag' => '1MB');
$slow = slow_listener('behind');
@warnings = send_kb(1200);
# The last warning may not be long ago.
wait_until(sub { push @warnings, send_kb(4) if !@warnings; @warnings })
  or die 'there is no warning';
cmp_ok(scalar @warnings, '>=', 1, 'a listener is behind by more than the limit: a warning');
like($warnings[0]{M}, qr/^a listener is \d{4} kB behind in the NOTIFY queue$/,
	'that says how far');
like($warnings[0]{D}, qr/ PID @{[ $slow->pid ]}\.$/, 'and who');
is($slow->query('COMMIT')->types, 'C' . 'A' x $sent . 'Z', 'and the listener gets everything');
prompt_has_all('a limit with a warning');
$slow->close;

# ---- a limit, and the end

reload('pinpoint.on_lag' => 'disconnect');
$is_disconnecting = 1;
my $reason = 'The backlog of this listener exceeded "pinpoint.max_listener_lag".';

# Waits for the end of a session, and tests what it says.
sub is_disconnected
{
	my ($session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $error = $session->receive_until('E')->error;
	is_deeply(
		[ @$error{qw(S C M D H)} ],
		[
			'FATAL', '57P01', 'terminating connection due to administrator command',
			$reason,
			'Connect and LISTEN again, then read the current state of the data.'
		],
		"$name is told why");
	ok(wait_until(sub { !stat_listener($observer, $session->pid) }), 'and is gone');
	return;
}

$slow = slow_listener('idle in transaction');
is(scalar(@none = send_kb(12000)), 0, 'nobody fails or is warned, however much is sent');
is_disconnected($slow, 'a listener that is idle in a transaction');
prompt_has_all('its end');

$slow = connect_to($node);
$slow->run('LISTEN a');
is($slow->query('SELECT 1/0')->error->{C}, '22012', 'a session with an error behind it');
$slow->send_query('SELECT pg_sleep(1000)');
wait_until(sub { $observer->value(
	"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == 1 })
  or die 'the query does not run';
is(scalar(@none = send_kb(12000)), 0, 'nobody fails or is warned');
is_disconnected($slow, 'one within a query, after an error');
prompt_has_all('its end');

# Its client does not read: the session is busy writing, and nothing can be told.
$slow = connect_to($node);
$slow->run('LISTEN a');
is(scalar(@none = send_kb(12000)), 0, 'nobody fails or is warned');
ok(wait_until(sub { !stat_listener($observer, $slow->pid) }),
	'a listener whose client does not read is gone');
prompt_has_all('its end');

# One that is ended for another reason does not speak of this one.
$slow = slow_listener('innocent');
$observer->run('SELECT pg_terminate_backend(' . $slow->pid . ')');
is($slow->receive_until('E')->error->{D}, undef,
	'a listener that an administrator ends is not told of a backlog');

# Several at once, and one that is not far behind.
my @slow = map { slow_listener("slow $_") } 1 .. 3;
send_kb(600);
my $later = slow_listener('later');
send_kb(600);
is_disconnected($_, 'one of several') for @slow;
ok(stat_listener($observer, $later->pid), 'a session that is less behind may stay');
$later->run('COMMIT');
$later->close;
prompt_has_all('the end of several');

# ---- a session that cannot be ended

# That somebody else shares channels makes no difference.
my ($reporting, $sharer) = connect_many($node, 2);
$sharer->run(q{SET pinpoint.shared_channels = 'z'; LISTEN z});
$reporting->run('LISTEN a');
ok(get_stuck_in_error($observer, $reporting), 'a session reports an error, and its client does not read it');
send_kb(1600);
my $row = stat_listener($observer, $reporting->pid);
ok($row, 'it is still there when it was told to end');
is($row && $row->{backlog_bytes}, 0, 'but keeps nothing');
prompt_has_all('the end of one that is stuck');
my $last = (grep { $_->{type} eq 'E' } $reporting->receive_until('EOF')->messages)[-1];
is_deeply(
	[ @{ $last->{fields} }{qw(C D)} ],
	[ '57P01', 'The backlog of this listener exceeded "pinpoint.max_listener_lag".' ],
	'when its client reads it ends');
$sharer->close;

# ---- bad settings

foreach my $case (
	[ 'pinpoint.max_listener_lag', '-2', qr/^-2 kB is outside the valid range/ ],
	[ 'pinpoint.max_listener_lag', '9MB', qr/invalid value for parameter/ ],
	[ 'pinpoint.max_listener_lag', 'much', qr/invalid value for parameter/ ],
	[ 'pinpoint.on_lag', 'shrug', qr/invalid value for parameter/ ])
{
	my ($name, $value, $message) = @$case;
	my $error = $observer->query("ALTER SYSTEM SET $name = '$value'")->error // {};
	is($error->{C}, '22023', "$name = $value is refused");
	like($error->{M}, $message, 'in the usual words');
}
is( $observer->query("SET pinpoint.max_listener_lag = '1kB'")->error->{C},
	'55P02', 'it is a setting of the server, not of a session');

$prompt->close;
$_->close for $sender;
server_is_clean($observer, 'nothing is left');
$observer->close;

$node->stop;
$node->append_conf('postgresql.conf', "pinpoint.max_listener_lag = 9MB\n");
unlink $node->data_dir . '/postgresql.auto.conf';
ok(!$node->start(fail_ok => 1), 'a server with a limit above the size of its queue does not start');
like(slurp_file($node->logfile),
	qr/FATAL:  "pinpoint.max_listener_lag" \(9216 kB\) must not be greater than "pinpoint.queue_size" \(8192 kB\)\n.*HINT: /,
	'and says why');

done_testing();
