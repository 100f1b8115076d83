# Databases that come and go while others work, and servers with very few connections.
#
# PINPOINT_TEST_DATABASES=100 creates more databases.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $databases = $ENV{PINPOINT_TEST_DATABASES} // 4;

# ---- databases that are created and dropped

my $node = new_node('main');
my ($admin, $witness, @senders) = connect_many($node, 4);
$witness->run('LISTEN a');
$node->safe_psql('postgres', 'CREATE DATABASE pattern');
$node->safe_psql('pattern',  'CREATE EXTENSION pg_pinpoint');

my (@received, @wrong);
foreach my $round (1 .. $databases)
{
	# Senders of another database work all the time.  The socket of the witness must have room
	# for all notifications: a session that PostgreSQL blocks in a flush accepts no barrier.
	$_->send_query(qq{DO \$\$ BEGIN FOR i IN 1 .. 100 LOOP PERFORM pg_notify('a', '$round ' || i); COMMIT; END LOOP; END \$\$})
	  foreach @senders;

	# The name is that of the database that was dropped before.
	$admin->run('CREATE DATABASE guest TEMPLATE pattern');
	my @guests = connect_many($node, 4, dbname => 'guest');
	$guests[0]->run('LISTEN a; LISTEN b');
	$guests[1]->run(q{SET pinpoint.shared_channels = 'b'; LISTEN b});
	$guests[2]->run(q{SET pinpoint.shared_channels = 'b'; LISTEN b; BEGIN; SELECT 1});
	$guests[3]->run("NOTIFY a, '$round'; NOTIFY b, '$round'");
	my $got = join ' ', @{ all_as_text($guests[0]->wait_for(2)) };
	push @wrong, "round $round: $got" if $got ne "a/$round b/$round";

	# Sessions are ended with unread notifications, in transactions, and while they commit.
	$guests[0]->run('BEGIN; SELECT 1');
	$guests[3]->run("NOTIFY b, 'unread'") for 1 .. 3;
	$guests[3]->run(q{BEGIN; NOTIFY b, 'not committed'});
	drop_database($admin, 'guest');
	$_->hang_up foreach @guests;
	$_->result foreach @senders;
	push @received, $witness->wait_for(100 * @senders);
}
is_deeply(\@wrong, [], "$databases databases: each session receives what its own database sends");
my %last;
my $in_order = 1;
foreach my $notification (@received)
{
	my ($round, $i) = split / /, $notification->{payload};
	my $last = $last{ $notification->{pid} } // 0;
	$in_order &&= $round * 1000 + $i > $last;
	$last{ $notification->{pid} } = $round * 1000 + $i;
}
ok($in_order, 'senders of another database are not disturbed');
$_->close foreach $witness, @senders;
server_is_clean($admin, 'nothing is left of the databases');
is($admin->value('SELECT count(*) FROM pinpoint.stat_notify WHERE datname IS NULL'),
	$databases, 'their counters remain');
$node->stop;

# ---- the lowest number of connections, without any worker

my $small = new_node('small',
	max_connections => 2,
	conf            => <<'EOS');
superuser_reserved_connections = 0
max_worker_processes = 0
max_parallel_workers = 0
max_wal_senders = 0
max_replication_slots = 0
wal_level = minimal
autovacuum_max_workers = 1
max_prepared_transactions = 0
pinpoint.queue_size = 64kB
pinpoint.queue_memory = 64kB
pinpoint.channel_memory = 1MB
EOS

# The session that made the extension may not have ended yet.
sub connect_when_possible
{
	my $session;
	wait_until(sub { $session = eval { connect_to($small) } }) or die 'no place becomes free';
	return $session;
}

my ($listener, $sender) = map { connect_when_possible() } 1, 2;
is($sender->value(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker'}), 0,
	'there is no waker');
$listener->run('LISTEN a; LISTEN a_2');
$sender->run(q{SET pinpoint.shared_channels = 'a_2'; LISTEN a_2});
$sender->run("NOTIFY a, '$_'; NOTIFY a_2, '$_'") for 1 .. 20;
is_deeply(
	all_as_text($listener->wait_for(40)),
	[ map { ("a/$_", "a_2/$_") } 1 .. 20 ],
	'two connections: a listener, and a sender that listens to itself');
is(scalar @{ [ $sender->take_notifications ] }, 20, 'and receives what it sends');
ok(!eval { connect_to($small) }, 'a third one is refused');
$sender->run('NOTIFY a');
is(as_text($listener->wait_for(1)), 'a/', 'and changes nothing');

$listener->close;
my $next = connect_when_possible();
$next->run('LISTEN a');
$sender->run(q{NOTIFY a, 'next'});
is(as_text($next->wait_for(1)), 'a/next', 'another listener takes the place of one that ends');
$next->run('BEGIN');
my $full;
$sender->run('UNLISTEN *');
for (1 .. 1000)
{
	$full = $sender->query(q{SELECT pg_notify('a', repeat('x', 7000))})->error;
	last if $full;
}
is($full && $full->{C}, '54000', 'the smallest queue is full');
$next->run('COMMIT');
ok(wait_until(sub { !$sender->query(q{SELECT pg_notify('a', 'after')})->error }), 'and is empty when it is read');
$_->close foreach $next, $sender;
$small->stop;

# ---- a single-user server, which has no postmaster and no other session

my ($output, $errors) = ('', '');
my $input = join "\n", 'LISTEN a', q{NOTIFY a, 'single'}, q{SELECT pg_notify('a', 'by a function')},
  'UNLISTEN *', 'SELECT sum(transactions) FROM pinpoint.stat_notify', '';
ok( IPC::Run::run([ 'postgres', '--single', '-D', $small->data_dir, 'postgres' ], '<', \$input, '>', \$output, '2>', \$errors),
	'a single-user server ends without an error');
is_deeply([ $errors =~ /(?:ERROR|FATAL|PANIC|TRAP): *([^\n]*)/g ],
	['cannot execute LISTEN within a background process'],
	'it cannot LISTEN, as in PostgreSQL');
like($output, qr/sum = "2"/, 'and can NOTIFY');

unlike(slurp_file($_->logfile), qr/PANIC|TRAP|terminated by signal/, $_->name . ': no process has crashed')
  foreach $node, $small;

done_testing();
