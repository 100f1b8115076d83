# A backlog larger than pinpoint.queue_memory goes to a file, which takes disk
# space as it needs it, and gives it back.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => "pinpoint.queue_memory = 64kB\nrestart_after_crash = on");
my $file = $node->data_dir . '/pg_notify/pg_pinpoint';
my ($observer, $sender, $prompt, $slow);

sub open_sessions
{
	($observer, $sender, $prompt, $slow) = connect_many($node, 4);
	$_->run('LISTEN a') for $prompt, $slow;
	return;
}

# Bytes of disk that the file takes, whatever its length.
sub disk_usage { return 512 * (stat $file)[12]; }

# A statement that sends the notifications of these numbers, of $size bytes.
sub notifications
{
	my ($from, $to, $size) = @_;
	return "SELECT pg_notify('a', rpad(i || ' ', $size, 'x'))"
	  . " FROM generate_series($from, $to) i";
}

# The session has received the notifications of these numbers, in order.
sub received_all
{
	my ($session, $from, $to, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @got = map { $_->{payload} =~ /^(\d+) x*$/ ? $1 : 'damaged' }
	  $session->wait_for($to - $from + 1);
	my ($wrong) = grep { $got[$_] ne $from + $_ } 0 .. $#got;
	is($wrong, undef, $name);
	return;
}

# The disk space is given back when somebody finds that it is not needed.
sub gives_back
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_until(sub { stat_queue($observer)->{file_bytes} == 0 && disk_usage() == 0 }),
		"$name: disk space is given back")
	  or diag('file_bytes ' . stat_queue($observer)->{file_bytes} . ', on disk ' . disk_usage());
	return;
}

open_sessions();
is(disk_usage(), 0, 'at first the file takes no space');

# ---- a listener that is far behind

$slow->run('BEGIN');
my $last = 0;
for (1 .. 10)
{
	$sender->run(notifications($last + 1, $last + 500, 7900));    # 4 MB
	received_all($prompt, $last + 1, $last + 500, 'the prompt listener receives');
	$last += 500;
}
my $queue = stat_queue($observer);
cmp_ok($queue->{used_bytes}, '>=', 7900 * $last, 'the queue holds what was not read');
cmp_ok($queue->{file_bytes}, '>=', 7900 * $last - 65536, 'in the file');
is(-s $file, $queue->{file_bytes}, 'whose size the view shows');
cmp_ok(disk_usage(), '>=', $queue->{file_bytes}, 'and whose space is taken');
cmp_ok(stat_listener($observer, $slow->pid)->{backlog_bytes},
	'>=', 7900 * $last, 'the view tells for which session it is kept');
like($slow->query('COMMIT')->types, qr/^CA{$last}Z$/,
	'the slow listener receives everything at the end of its transaction');
received_all($slow, 1, $last, 'in order');
gives_back('the backlog was read');

# ---- one transaction with very many notifications

my $many = 100_000;
$sender->run(notifications(1, $many, 40));
received_all($_, 1, $many, "$many notifications in one transaction") for $prompt, $slow;
gives_back('a large transaction was read');

# ---- a slow listener that leaves, or does not want to hear any more

$slow->run('BEGIN');
$sender->run(notifications(1, 1000, 7900));
received_all($prompt, 1, 1000, 'the prompt listener receives');
cmp_ok(disk_usage(), '>', 7_000_000, 'the file is in use');
$slow->close;
gives_back('a slow listener has gone');

$slow = connect_to($node);
$slow->run('LISTEN a');
$slow->run('BEGIN');
$sender->run(notifications(1, 1000, 7900));
received_all($prompt, 1, 1000, 'the prompt listener receives');
$slow->run('UNLISTEN *');
is($slow->query('COMMIT')->types, 'CZ', 'a slow listener that stops listening');
ok(wait_until(sub { stat_queue($observer)->{used_bytes} == 0 }), 'keeps nothing');
$sender->run("NOTIFY a, 'next'");
is(as_text($prompt->wait_for(1)), 'a/next', 'and when the next notification was read');
gives_back('a slow listener has stopped listening');
$slow->run('LISTEN a');

# ---- no disk space

# A limit on the size of files stands for a disk that is full: server processes
# that start from now on cannot extend a file beyond it.
my $limit = 24 * 1024 * 1024;
my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
system_or_bail('prlimit', "--pid=$postmaster", "--fsize=$limit:");
my $limited = connect_to($node);
my $no_space = 'could not extend file "pg_notify/pg_pinpoint": File too large';
my $too_large = $limited->query(notifications(1, 4000, 7900));
is($too_large->error->{M}, $no_space, 'a transaction larger than the disk space fails');
my $remedy = 'If this error remains, set "pinpoint.queue_size" and "pinpoint.queue_memory" to the same value: then the queue needs no file.';
is($too_large->error->{H}, $remedy, 'and no listener is blamed: the disk is not full, so the hint has another remedy');
is(disk_usage(), 0, 'and gives back what it took in vain');

$observer->run('CREATE TABLE sent (last int)');
$slow->run('BEGIN');
$last = 0;
my $failure;
while (!$failure && $last < 100_000)
{
	my $result = $limited->query(
		'BEGIN; INSERT INTO sent VALUES (' . ($last + 500) . ');'
		  . notifications($last + 1, $last + 500, 7900) . '; COMMIT');
	$failure = $result->error and last;
	received_all($prompt, $last + 1, $last + 500, 'sent while there is space');
	$last += 500;
}
cmp_ok($last, '>', 0, 'some space was there');
is($failure && $failure->{M}, $no_space, 'a transaction that finds no disk space fails');
like($failure && $failure->{H},
	qr/^\Q$remedy\E The listener that is furthest behind is the server process with PID @{[ $slow->pid ]}\./,
	'with a hint that names the listener whose backlog takes the space');
is($limited->value('SELECT max(last) FROM sent'), $last, 'before its commit');
is($limited->query(notifications(1, 500, 7900))->error->{M}, $no_space, 'and so does the next');
is(-s $file, stat_queue($observer)->{file_bytes}, 'the file is as large as the view says');

# Another one without the limit still gets through.
$sender->run(notifications($last + 1, $last + 1000, 7900));
received_all($prompt, $last + 1, $last + 1000, 'with space there is no error');
$last += 1000;
$slow->run('COMMIT');
received_all($slow, 1, $last, 'the slow listener receives all that was committed');
gives_back('after errors');
system_or_bail('prlimit', "--pid=$postmaster", '--fsize=unlimited:');
$limited->close;

# ---- what is in the file means nothing after a restart

sub fill_file
{
	$slow->run('BEGIN');
	$sender->run(notifications(1, 1000, 7900));
	received_all($prompt, 1, 1000, 'the prompt listener receives');
	cmp_ok(disk_usage(), '>', 7_000_000, 'the file is in use');
	return;
}

sub works_afresh
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	open_sessions();
	is(disk_usage(), 0, "$name: the file takes no space");
	is(stat_queue($observer)->{used_bytes}, 0, "$name: the queue is empty");
	$slow->run('BEGIN');
	$sender->run(notifications(1, 2000, 4000));
	$slow->run('COMMIT');
	received_all($_, 1, 2000, "$name: a new backlog is read") for $prompt, $slow;
	gives_back($name);
	return;
}

fill_file();
stop_and_start($node, 'fast');
works_afresh('restart');

fill_file();
stop_and_start($node, 'immediate');
works_afresh('immediate shutdown');

fill_file();
kill 'KILL', $sender->pid or die "could not kill: $!";
$_->receive_until('EOF') for $observer, $sender, $prompt, $slow;
wait_until(sub { eval { connect_to($node)->close; 1 } }) or die 'the server does not start again';
works_afresh('crash of a server process');

$_->close for $prompt, $slow;
server_is_clean($observer, 'nothing is left');

# ---- a file that cannot be made

$_->close for $observer, $sender;
$node->stop;
unlink $file or die "could not remove $file: $!";
mkdir $file or die "could not make directory $file: $!";
is($node->start(fail_ok => 1), 0, 'without its file the server does not start');
like(
	slurp_file($node->logfile),
	qr/FATAL:  could not create file "pg_notify\/pg_pinpoint": Is a directory/,
	'and the log says why');
rmdir $file or die "could not remove $file: $!";
$node->start;
open_sessions();
$sender->run("NOTIFY a, 'started'");
is(as_text($_->wait_for(1)), 'a/started', 'with it, it does') for $prompt, $slow;

done_testing();
