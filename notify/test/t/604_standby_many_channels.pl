# A transaction with many channels wakes on a standby those that listen on one of them,
# and nobody else.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use Test::More;

my $primary = new_node('primary', init => { allows_streaming => 1 }, conf => 'pinpoint.replicate = on');
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
my $sender   = connect_to($primary);
my $observer = connect_to($standby);
my @others   = connect_many($standby, 20);
$_->run('LISTEN other') for @others;
my @sharing = connect_many($standby, 3, options => '-c pinpoint.shared_channels=c200');
$_->run('LISTEN c200') for @sharing;
my ($listener) = connect_many($standby, 1);
$listener->run('LISTEN c1; LISTEN c150');

my $of_others = 'SELECT sum(wakeups) FROM pinpoint.stat_listeners WHERE pid IN (' . join(', ', map { $_->pid } @others) . ')';
my $send = sub {
	my ($payload) = @_;
	$sender->run(qq(SELECT count(pg_notify('c' || i, '$payload')) FROM generate_series(1, 200) i));
	return;
};

foreach my $i (1 .. 20)
{
	$send->($i);
	my @got = $listener->wait_for(2);
	is_deeply(all_as_text(@got), [ "c1/$i", "c150/$i" ], "transaction $i with 200 channels reaches its listener");
	is(as_text($_->wait_for(1)), "c200/$i", 'and each that shares one of them') for @sharing;
}
is($observer->value($of_others), 0, 'and wakes nobody else');
is($observer->value(q(SELECT sum(unheard) FROM pinpoint.stat_notify)), 0, 'each was heard');

# Nobody keeps anything for those who do not listen.
$listener->close;
$_->close for @sharing;
wait_until(sub { $observer->value(q(SELECT count(*) FROM pinpoint.stat_channels)) == 1 }) or die 'sessions do not end';
$others[0]->run('BEGIN');
$send->($_) for 21 .. 40;
$primary->wait_for_catchup($standby);
is(stat_queue($observer)->{used_bytes}, 0, 'nothing is kept for a listener on another channel');
$others[0]->run('COMMIT');

# One that has begun to listen in between is found.
foreach my $i (1 .. 20)
{
	my ($new) = connect_many($standby, 1);
	$new->run('LISTEN c1');
	$send->("new $i");
	is(as_text($new->wait_for(1)), "c1/new $i", 'a new listener');
	$new->close;
}

$_->close for @others;
server_is_clean($observer, 'nothing is left');

done_testing();
