# Sessions share a channel with sessions of the same role: each role that shares it
# gets every notification, whatever other roles do.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

# Without a waker, only senders reassign what a session that stays in its transaction has, and not before a second.
my $node = new_node('main', max_connections => 150, conf => 'pinpoint.waker = off');
my ($observer, $sender) = connect_many($node, 2);
$observer->run("CREATE ROLE $_ LOGIN") for qw(red green blue);
$observer->run('GRANT red TO blue');

# Sessions of a role that share channel c, so many of them getting each notification.
sub sharers
{
	my ($role, $count, $limit) = @_;
	my @sessions = connect_many($node, $count, user => $role,
		options => "-c pinpoint.shared_channels=c -c pinpoint.share_limit=$limit");
	$_->run('LISTEN c; LISTEN fence') for @sessions;
	return @sessions;
}

# How often each payload of channel c was told to these sessions, up to a fence.
my $fence = 0;
sub told
{
	my (@sessions) = @_;
	$fence++;
	$sender->run("NOTIFY fence, 'told $fence'");
	my %times;
	$times{ $_->{payload} }++
	  for grep { $_->{channel} eq 'c' } map { $_->notifications_until('fence', "told $fence") } @sessions;
	return \%times;
}

sub times_each { my ($times, @payloads) = @_; return { map { $_ => $times } @payloads }; }

sub notify_each { $sender->run("NOTIFY c, '$_'") for @_; return; }

sub close_all
{
	$_->close for @_;
	wait_until(sub { $observer->value('SELECT count(*) FROM pinpoint.stat_channels') == 0 }) or die 'channels stay';
	return;
}

# ---- each group gets everything, with its own limit

my @red   = sharers('red',   6,  1);
my @green = sharers('green', 20, 3);
my ($blue) = sharers('blue', 1, 2);
my ($alone) = connect_many($node, 1);
$alone->run('LISTEN c; LISTEN fence');

is_deeply(
	$observer->run(q(SELECT listeners, sharers, sharing_groups FROM pinpoint.stat_channels WHERE channel = 'c'))->rows,
	[ [ 28, 27, 3 ] ], 'the view tells how many groups share a channel');
is_deeply(
	$observer->run(
		q(SELECT shared, sharing_group, count(*) FROM pinpoint.listening WHERE channel = 'c' GROUP BY 1, 2 ORDER BY 2))->rows,
	[ [ 't', 'blue', 1 ], [ 't', 'green', 20 ], [ 't', 'red', 6 ], [ 'f', undef, 1 ] ],
	'and which');

my @payloads = map { "n$_" } 1 .. 60;
notify_each(@payloads);
is_deeply(told(@red),   times_each(1, @payloads), 'red gets each once: 20 sessions of a stranger take nothing');
is_deeply(told(@green), times_each(3, @payloads), 'green gets each three times');
is_deeply(told($blue),  times_each(1, @payloads), 'blue has one session, which gets each; it is a member of red, but no session of red');
is_deeply(told($alone), times_each(1, @payloads), 'a session that does not share gets each');

# The limit is that of the newest member of the group.
my ($newest) = sharers('green', 1, 1);
notify_each('limit');
is_deeply(told(@green, $newest), { limit => 1 }, 'the newest member says how many get it');
is_deeply(told(@red), { limit => 1 }, 'in its group only');
close_all(@red, @green, $newest, $blue, $alone);

# ---- in turn, whatever other groups do

@red   = sharers('red',   3, 1);
@green = sharers('green', 7, 2);
my @busy = @green[ 1 .. 5 ];
$_->run('BEGIN') for @red, @busy;
notify_each(1 .. 300);
$_->run('COMMIT') for @red, @busy;
my @shares = map { my $n = 0; $n += $_ for values %{ told($_) }; $n } @red;
is_deeply(\@shares, [ 100, 100, 100 ], 'the members of a group take turns, though another group has busy ones');
close_all(@red, @green);

# ---- what is SET does not count; the session user does

my ($disguised) = sharers('blue', 1, 1);
$disguised->run('UNLISTEN *');
$disguised->run('SET ROLE red');
$disguised->run('LISTEN c; LISTEN fence');
my ($victim) = sharers('red', 1, 1);
notify_each(1 .. 20);
is_deeply(told($victim), times_each(1, 1 .. 20), 'SET ROLE does not join another group');
is($observer->value('SELECT sharing_group FROM pinpoint.listening WHERE channel = \'c\' AND pid = ' . $disguised->pid),
	'blue', 'as the view tells');
close_all($disguised, $victim);

# ---- a session that leaves

foreach my $way ('UNLISTEN', 'close', 'hang up')
{
	@red   = sharers('red',   2, 1);
	@green = sharers('green', 2, 1);
	$_->run('BEGIN') for @red, @green;
	notify_each(1 .. 20);
	my ($leaves, $stays) = @red;
	if    ($way eq 'UNLISTEN') { $leaves->run('UNLISTEN c; COMMIT'); }
	elsif ($way eq 'close')    { $leaves->close; }
	else                       { $leaves->hang_up; }
	wait_until(sub { $observer->value(q(SELECT sharers FROM pinpoint.stat_channels WHERE channel = 'c')) == 3 })
	  or die 'it stays';
	wait_until(sub { $way eq 'UNLISTEN' || !stat_listener($observer, $leaves->pid) }) or die 'it stays';
	$_->run('COMMIT') for $stays, @green;
	is_deeply(told($stays), times_each(1, 1 .. 20), "$way: what was assigned to it goes to its own group");
	is_deeply(told(@green), times_each(1, 1 .. 20), "$way: and not to another one");
	close_all($stays, @green, $way eq 'UNLISTEN' ? $leaves : ());
}

# What a session gives away goes to one that does not have it yet, whose turn it need not be.
foreach my $case (map { my $n = $_; map { [ $n, $_ ] } 0 .. 2 } 19, 20)
{
	my ($sent, $leaves) = @$case;
	@red = sharers('red', 3, 2);
	$_->run('BEGIN') for @red;
	notify_each(1 .. $sent);
	my ($left) = splice @red, $leaves, 1;
	$left->close;
	wait_until(sub { !stat_listener($observer, $left->pid) }) or die 'it stays';
	$_->run('COMMIT') for @red;
	is_deeply([ map { told($_) } @red ], [ (times_each(1, 1 .. $sent)) x 2 ],
		"two of three get each of $sent: when one has left, both others have all");
	close_all(@red);
}

# The last one of its group leaves: nobody else gets its share.
my ($last) = sharers('red', 1, 1);
@green = sharers('green', 2, 1);
$_->run('BEGIN') for $last, @green;
notify_each(1 .. 10);
$last->close;
wait_until(sub { !stat_listener($observer, $last->pid) }) or die 'it stays';
$_->run('COMMIT') for @green;
is_deeply(told(@green), times_each(1, 1 .. 10), 'the last one of a group leaves its share to nobody');
close_all(@green);

# One leaves with more than there can be sessions: the turn of its group stays that of a member,
# which a build with assertions checks when another one joins.
my ($leaves, $stays) = sharers('red', 2, 1);
$_->run('BEGIN') for $leaves, $stays;
notify_each(1 .. 400);
$leaves->close;
wait_until(sub { !stat_listener($observer, $leaves->pid) }) or die 'it stays';
my ($joins) = sharers('red', 1, 1);
$stays->run('COMMIT');
is_deeply(told($stays, $joins), times_each(1, 1 .. 400), 'one that leaves with many leaves all of them to the other');
close_all($stays, $joins);

# ---- many groups, and groups that come and go

my @roles = map { "role_$_" } 1 .. 40;
$observer->run("CREATE ROLE $_ LOGIN") for @roles;
my %groups = map { $_ => [ sharers($_, 2, 1) ] } @roles;
notify_each(1 .. 10);
my $wrong = grep { !eq_hash(told(@{ $groups{$_} }), times_each(1, 1 .. 10)) } @roles;
is($wrong, 0, 'each of 40 groups gets each notification once');
foreach my $role (@roles[ grep { $_ % 3 } 0 .. 39 ])
{
	$_->close for @{ delete $groups{$role} };
}
wait_until(
	sub { $observer->value(q(SELECT sharing_groups FROM pinpoint.stat_channels WHERE channel = 'c')) == keys %groups })
  or die 'groups stay';
my @plain = connect_many($node, 15);
$_->run('LISTEN c; LISTEN fence') for @plain;
notify_each(1 .. 10);
$wrong = grep { !eq_hash(told(@{ $groups{$_} }), times_each(1, 1 .. 10)) } keys %groups;
is($wrong, 0, 'so does each that is left when others have gone');
is_deeply(told(@plain), times_each(15, 1 .. 10), 'and all that do not share');
close_all(@plain, map { @$_ } values %groups);

server_is_clean($observer, 'nothing is left');

done_testing();
