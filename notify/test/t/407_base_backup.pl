# A base backup that is taken while there is a large backlog does not contain
# it, and starts as a server of its own.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use Test::More;

my $node = new_node('main',
	init => { allows_streaming => 1 },
	conf => 'pinpoint.queue_memory = 64kB');
my ($observer, $sender, $slow) = connect_many($node, 3);
$observer->run('CREATE TABLE sent (i int)');
$slow->run('LISTEN a');
$slow->run('BEGIN');

my $count = 5000;
sub send_backlog
{
	$sender->run('BEGIN; INSERT INTO sent VALUES (1);'
		  . " SELECT count(pg_notify('a', rpad(i || ' ', 7900, 'x'))) FROM generate_series(1, $count) i;"
		  . ' COMMIT');
	return;
}

sub received_all
{
	my ($session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @got = map { $_->{payload} =~ /^(\d+) x+$/ ? $1 : 'damaged' } $session->wait_for($count);
	my ($wrong) = grep { $got[$_] ne $_ + 1 } 0 .. $#got;
	is($wrong, undef, $name);
	return;
}

send_backlog();
cmp_ok(-s $node->data_dir . '/pg_notify/pg_pinpoint', '>', 32 * 1024 * 1024,
	'there is a large backlog');
$node->backup('with_backlog');
my $in_backup = $node->backup_dir . '/with_backlog/pg_notify';
ok(-d $in_backup, 'the backup has a place for it');
is_deeply([ glob "$in_backup/*" ], [], 'and nothing of it');

$slow->run('COMMIT');
received_all($slow, 'the listener receives it when its transaction ends');

my $copy = PostgreSQL::Test::Cluster->new('copy');
$copy->init_from_backup($node, 'with_backlog');
$copy->start;
my ($copy_observer, $copy_sender, $copy_listener) = connect_many($copy, 3);
is($copy_observer->value('SELECT count(*) FROM sent'), 1, 'the backup starts, with the rows,');
my $queue = stat_queue($copy_observer);
is_deeply([ @$queue{qw(used_bytes batches file_bytes)} ], [ 0, 0, 0 ], 'and an empty queue');

# It has a file of its own.
($observer, $sender, $slow) = ($copy_observer, $copy_sender, $copy_listener);
$slow->run('LISTEN a');
$slow->run('BEGIN');
send_backlog();
cmp_ok(-s $copy->data_dir . '/pg_notify/pg_pinpoint', '>', 32 * 1024 * 1024,
	'it takes a backlog of its own');
$slow->run('COMMIT');
received_all($slow, 'which arrives');
$slow->close;
server_is_clean($observer, 'nothing is left');

done_testing();
