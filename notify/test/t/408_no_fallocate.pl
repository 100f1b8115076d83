# A file system cannot allocate space, and the C library does nothing about it: the file of
# the queue grows all the same, takes its space before it is used, and gives it back.

use strict;
use warnings;

use Errno qw(EINVAL EROFS EOPNOTSUPP);
use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my ($environment, $set) = compile_no_fallocate();
local @ENV{ keys %$environment } = values %$environment;
my $node = new_node('main', conf => 'pinpoint.queue_memory = 64kB');
my $file = $node->data_dir . '/pg_notify/pg_pinpoint';
my ($observer, $sender, $listener) = connect_many($node, 3);
$listener->run('LISTEN a');

# Bytes of disk that the file takes, whatever its length.
sub disk_usage { return 512 * (stat $file)[12]; }

sub send_notifications
{
	my ($count) = @_;
	return $sender->query("SELECT pg_notify('a', rpad(i || ' ', 7900, 'x')) FROM generate_series(1, $count) i");
}

# The listener falls behind, and reads what the file has.
sub uses_file
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $count = 500;
	$listener->run('BEGIN');
	is(send_notifications($count)->error, undef, "$name: a sender does not fail");
	my $size = stat_queue($observer)->{file_bytes};
	cmp_ok($size,        '>',  3_000_000, "$name: the notifications are in the file");
	cmp_ok(disk_usage(), '>=', $size,     "$name: whose space is taken");
	$listener->run('COMMIT');
	is(scalar(grep { $_->{payload} =~ /^\d+ x+$/ } $listener->wait_for($count)), $count, "$name: all are received");
	ok(wait_until(sub { stat_queue($observer)->{file_bytes} == 0 && disk_usage() == 0 }),
		"$name: disk space is given back");
	return;
}

# The file cannot grow.
sub fails
{
	my ($sqlstate, $message, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	error_is(send_notifications(4000), $sqlstate, "could not extend file \"pg_notify/pg_pinpoint\": $message",
		undef, "$name: the sender fails");
	is(disk_usage(), 0, "$name: and gives back what it took in vain");
	return;
}

my $enough = 1 << 30;
$set->(EOPNOTSUPP, $enough);
uses_file('not supported');
$set->(EINVAL, $enough);
uses_file('invalid');

$set->(EOPNOTSUPP, 20_000_000);
fails('53100', 'No space left on device', 'full disk');
$set->(EROFS, $enough);
fails('42501', 'Read-only file system', 'another error');

$set->(EOPNOTSUPP, $enough);
uses_file('after errors');

$listener->close;
server_is_clean($observer, 'nothing is left');

done_testing();
