# A thousand sessions come and go, and shared memory is as it was.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;
use Time::HiRes qw(time);

my $rounds     = 40;
my $per_round  = 25;    # 1,000 sessions
my $node       = new_node('main', max_connections => 60);
my $observer   = connect_to($node);
my $sender     = connect_to($node);
my $steady     = connect_to($node);
$steady->run('LISTEN everyone');

my $seed = $ENV{PINPOINT_TEST_SEED} // 20260102;
srand $seed;
note("PINPOINT_TEST_SEED=$seed");

my (@lost, @sent, $sessions);
for my $round (1 .. $rounds)
{
	my @sessions = connect_many($node, $per_round);
	foreach my $session (@sessions)
	{
		my $me = $sessions++;

		# A name of its own, one that many share, and a life of its own kind.
		$session->run("LISTEN own_$me; LISTEN everyone; LISTEN shared_" . $me % 7);
		my $kind = int rand 6;
		if ($kind == 0)
		{
			$session->run("UNLISTEN own_$me; UNLISTEN everyone");
		}
		elsif ($kind == 1)
		{
			$session->run('UNLISTEN *');
		}
		elsif ($kind == 2)
		{
			$session->run("BEGIN; LISTEN more_$me; NOTIFY everyone, 'never'; ROLLBACK");
		}
		elsif ($kind == 3)
		{
			$session->run("BEGIN; LISTEN more_$me; NOTIFY own_$me");
		}
		elsif ($kind == 4)
		{
			$session->run('DISCARD ALL');
			$session->run("LISTEN own_$me; NOTIFY own_$me");
		}
		else
		{
			$session->run("NOTIFY own_$me, 'self'");
			push @lost, $me
			  if "@{ all_as_text($session->take_notifications) }" !~ m{own_$me/self};
		}
	}
	push @sent, "everyone/round $round";
	$sender->run("NOTIFY everyone, 'round $round'");
	$sender->run(
		"SELECT pg_notify('shared_' || i % 7, 'x') FROM generate_series(1, 100) i");
	foreach my $session (@sessions)
	{
		rand() < 0.5 ? $session->close : $session->hang_up;
	}

	# They take a moment to end, and there is not room for those of any number of rounds.
	wait_until(
		sub {
			$observer->value(
				q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'})
			  <= 3 + $per_round;
		}) or die 'sessions stay';
}
is($sessions, $rounds * $per_round, "$sessions sessions came and went");
is_deeply(\@lost, [], 'each got its own notification before its command ended');
is_deeply(all_as_text($steady->wait_for(scalar @sent)),
	\@sent, 'one that stayed got everything sent to it');

ok( wait_until(
		sub {
			$observer->value('SELECT count(*) FROM pinpoint.stat_listeners') == 1
			  && $observer->value('SELECT count(*) FROM pinpoint.stat_channels') == 1;
		}),
	'only the one that stayed listens');
is(stat_listener($observer, $steady->pid)->{channels}, 1, 'on one channel');
is(stat_listener($observer, $steady->pid)->{notifications},
	scalar @sent, 'with its count of notifications');

$steady->close;
# The background writer notes the running transactions in the WAL now and then.
my $lsn = sub { $observer->value('SELECT pg_current_wal_insert_lsn()') };
ok( wait_until(
		sub {
			my $before = $lsn->();
			$sender->run('NOTIFY nobody_listens');
			return $lsn->() eq $before;
		}),
	'without pinpoint.replicate, a transaction with only NOTIFY writes no WAL');

server_is_clean($observer, 'nothing is left');

# A place in shared memory that was used by many starts afresh.
my @again = connect_many($node, $per_round);
$_->run('LISTEN again') for @again;
is( $observer->value(
		'SELECT count(*) FROM pinpoint.stat_listeners WHERE channels = 1'
		  . ' AND wakeups = 0 AND notifications = 0 AND backlog_bytes = 0'),
	$per_round, 'new sessions begin with counters at zero');
my $began = time;
$sender->run('NOTIFY again');
$_->wait_for(1) for @again;
is( $observer->value(
		'SELECT count(*) FROM pinpoint.stat_listeners WHERE wakeups BETWEEN 1 AND '
		  . (1 + int(time - $began))),    # with reminders
	$per_round, 'and count for themselves');
$_->close for @again;
server_is_clean($observer, 'nothing is left');

done_testing();
