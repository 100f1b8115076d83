# Shared channels: a notification goes to all who do not share its channel, and to a
# few of those who do.  It is never given to nobody.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

BEGIN { allow_open_files(1024); }

# Without a waker, only senders reassign what a session that stays in its transaction has, and not before a second.
my $node = new_node('main', max_connections => 600, init => { allows_streaming => 1 },
	conf => "pinpoint.waker = off\nsynchronous_standby_names = 'nobody'\nsynchronous_commit = local");
my ($observer, $sender) = connect_many($node, 2);

# Sessions that share channel c, so many getting each notification.
sub sharers
{
	my ($count, $limit) = @_;
	my @sessions = connect_many($node, $count,
		options => "-c pinpoint.shared_channels=c -c pinpoint.share_limit=$limit");
	$_->run('LISTEN c; LISTEN fence') for @sessions;
	return @sessions;
}

# What each of these sessions has been told up to a fence, as a list of payloads of
# channel c.
my $fence = 0;
sub told
{
	my (@sessions) = @_;
	$fence++;
	$sender->run("NOTIFY fence, 'told $fence'");
	return map {
		[ map { $_->{payload} } grep { $_->{channel} eq 'c' } $_->notifications_until('fence', "told $fence") ]
	} @sessions;
}

# Each of these payloads was told to so many of the sessions.
sub each_told
{
	my ($count, $payloads, $told, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %times = map { $_ => 0 } @$payloads;
	$times{$_}++ for map { @$_ } @$told;
	return is_deeply(\%times, { map { $_ => $count } @$payloads }, $name);
}

sub in_order
{
	my ($payloads, $told, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $n     = 0;
	my %place = map { $_ => $n++ } @$payloads;
	my $wrong = grep {
		my @places = map { $place{$_} } @$_;
		"@places" ne join ' ', sort { $a <=> $b } @places;
	} @$told;
	return is($wrong, 0, $name);
}

sub close_all
{
	$_->close for @_;
	wait_until(
		sub {
			$observer->value('SELECT count(*) FROM pinpoint.stat_channels') == 0;
		}) or die 'channels stay';
	return;
}

# ---- settings

is($observer->value('SHOW pinpoint.shared_channels'), '', 'nothing is shared by default');
is($observer->value('SHOW pinpoint.share_limit'), 2, 'how many get it');
foreach my $list ('c', 'c, d', '*', 'c*', '"C d", e*')
{
	is($observer->query("SET pinpoint.shared_channels = '$list'")->error,
		undef, "shared_channels = $list");
}
error_is($observer->query(q(SET pinpoint.shared_channels = 'c,,d')),
	'22023', 'invalid value for parameter "pinpoint.shared_channels": "c,,d"', undef,
	'not a list');
error_is($observer->query(q(SET pinpoint.shared_channels = 'a*b')),
	'22023', 'invalid value for parameter "pinpoint.shared_channels": "a*b"', undef,
	'an asterisk in the middle');
is($observer->query("SET pinpoint.share_limit = $_")->error->{C}, '22023', "share_limit = $_")
  for 0, -1, 65, 'few';
$observer->run('CREATE ROLE worker LOGIN');
my $worker = connect_to($node, user => 'worker');
is($worker->query('SET pinpoint.shared_channels = c')->error, undef, 'anyone may set it');
$worker->close;
$observer->run('RESET pinpoint.shared_channels');

# ---- who gets what

foreach my $case ([ 1, 1 ], [ 2, 1 ], [ 7, 1 ], [ 7, 3 ], [ 3, 10 ], [ 50, 4 ], [ 500, 2 ])
{
	my ($count, $limit) = @$case;
	my @sessions = sharers($count, $limit);
	my @others   = connect_many($node, 3);
	$_->run('LISTEN c; LISTEN fence') for @others;
	is_deeply(
		$observer->run(q(SELECT listeners, sharers FROM pinpoint.stat_channels WHERE channel = 'c'))->rows,
		[ [ $count + 3, $count ] ],
		"$count share the channel, of whom $limit get it");

	my @payloads = map { "n$_" } 1 .. 60;
	$sender->run("NOTIFY c, '$_'") for @payloads;
	my @told = told(@sessions);
	each_told($limit < $count ? $limit : $count, \@payloads, \@told, 'as many as shall get each');
	in_order(\@payloads, \@told, 'in order');
	my @all = told(@others);
	is_deeply(\@all, [ (\@payloads) x 3 ], 'those who do not share it get all');
	close_all(@sessions, @others);
}

# In one transaction; on several channels, of which some are shared.
my @sessions = connect_many($node, 5,
	options => '-c pinpoint.shared_channels=c*,Other -c pinpoint.share_limit=1');
$_->run('LISTEN c; LISTEN c_more; LISTEN fence; LISTEN other; LISTEN "Other"') for @sessions;
is($observer->value(q(SELECT string_agg(channel, ' ' ORDER BY channel COLLATE "C") FROM pinpoint.stat_channels WHERE sharers = 5)),
	'c c_more other', 'names as in LISTEN, with an asterisk');
$sender->run(q(BEGIN; NOTIFY c, '1'; NOTIFY c_more, '2'; NOTIFY "Other", '3'; NOTIFY c, '4'; COMMIT));
$sender->run(q(NOTIFY fence, 'several'));
my %got;
foreach my $session (@sessions)
{
	my $together = join ' ', map { $_->{payload} } grep { $_->{channel} eq 'c' }
	  my @notifications = $session->notifications_until('fence', 'several');
	push @{ $got{c} }, $together if $together ne '';
	push @{ $got{ $_->{channel} } }, $_->{payload} for grep { $_->{channel} ne 'c' } @notifications;
}
is_deeply(\%got, { c => ['1 4'], c_more => ['2'], Other => [ (3) x 5 ] },
	'each channel of a transaction goes to one, and what is not shared to all');

# More channels in a transaction than are looked up one by one.
$sender->run(q(BEGIN; SELECT count(pg_notify('x' || i, '')) FROM generate_series(1, 100) i; NOTIFY c, 'many'; COMMIT));
is_deeply([ told(@sessions) ], [ (['many']) x 5 ], 'a transaction with very many channels goes to all');
close_all(@sessions);

# ---- it is fair

@sessions = sharers(7, 1);
my $sent = 10_000;
$_->run('BEGIN') for @sessions;
$sender->run(
	"DO \$\$ BEGIN FOR i IN 1 .. $sent LOOP PERFORM pg_notify('c', i::text); COMMIT; END LOOP; END \$\$");
$_->run('COMMIT') for @sessions;
my @told = told(@sessions);
each_told(1, [ 1 .. $sent ], \@told, "$sent notifications go to one each");
in_order([ 1 .. $sent ], \@told, 'in order');
my ($least, $most) = (sort { $a <=> $b } map { scalar @$_ } @told)[ 0, -1 ];
cmp_ok($most, '<=', 1.1 * $least, "seven sessions that are busy get between $least and $most");
$sender->run("NOTIFY c, '$_'"), wait_until_all_idle(@sessions) for 1 .. 700;
@told = told(@sessions);
($least, $most) = (sort { $a <=> $b } map { scalar @$_ } @told)[ 0, -1 ];
cmp_ok($most, '<=', 1.1 * $least, "of 700 to seven idle sessions each gets between $least and $most");
close_all(@sessions);

# Until nobody has anything to read, nor is in the transaction any more in which he has
# read it: he would be passed over as one who is busy.
sub wait_until_all_idle
{
	return wait_until(
		sub {
			$observer->value(q(SELECT count(*) FROM pinpoint.stat_listeners WHERE state <> 'idle')) == 0
			  && $observer->value(
				q(SELECT count(*) FROM pinpoint.stat_listeners JOIN pg_stat_activity AS a USING (pid)
				   WHERE a.state = 'idle' AND a.xact_start IS NOT NULL)) == 0;
		});
}

# ---- those first who have nothing to do

@sessions = sharers(4, 1);
$_->run('BEGIN') for @sessions[ 0 .. 1 ];
$sender->run("NOTIFY c, '$_'"), wait_until_all_idle() for 1 .. 20;
is(scalar(grep { @$_ } told(@sessions[ 2 .. 3 ])), 2, 'both who are idle get some');
$_->run('COMMIT') for @sessions[ 0 .. 1 ];
is_deeply([ told(@sessions[ 0 .. 1 ]) ], [ [], [] ], 'and those in a transaction none');

# All in transactions: they get it when these end.
$_->run('BEGIN') for @sessions;
$sender->run("NOTIFY c, 'later $_'") for 1 .. 8;
$_->run('COMMIT') for @sessions;
@told = told(@sessions);
each_told(1, [ map { "later $_" } 1 .. 8 ], \@told, 'if nobody is idle, those who are not get it');
close_all(@sessions);

# One that rests, due to pinpoint.latency_target, comes before those in a transaction.
@sessions = sharers(3, 1);
my $rests = $sessions[0];
$rests->run(q(SET pinpoint.latency_target = '1h'; LISTEN rest));
$sender->run('NOTIFY rest');
$rests->wait_for(1);
$sender->run('NOTIFY rest');
wait_until(sub { stat_listener($observer, $rests->pid)->{state} eq 'signalled' && is_asleep($rests) })
  or die 'it does not collect';
$rests->run('SELECT 1');
$rests->take_notifications;
is(stat_listener($observer, $rests->pid)->{state}, 'resting', 'one rests');
$_->run('BEGIN') for @sessions[ 1 .. 2 ];
$sender->run('NOTIFY c');
$_->run('COMMIT') for @sessions[ 1 .. 2 ];
$rests->run('RESET pinpoint.latency_target');
is_deeply([ map { scalar(() = $_->take_notifications) } @sessions ], [ 1, 0, 0 ], 'and gets it');
close_all(@sessions);

# ---- those who leave

# In transactions, with something unread; then all but one leave, in every way.
foreach my $way ('UNLISTEN c', 'UNLISTEN *', 'close', 'hang up', 'terminate')
{
	@sessions = sharers(5, 1);
	my ($stays, @leave) = @sessions;
	$_->run('BEGIN') for @sessions;
	my @payloads = map { "$way $_" } 1 .. 50;
	$sender->run("NOTIFY c, '$_'") for @payloads;
	foreach my $session (@leave)
	{
		if ($way =~ /UNLISTEN/)
		{
			# In the transaction, so that nothing is read before.
			$session->run("$way; COMMIT");
		}
		elsif ($way eq 'close')   { $session->close; }
		elsif ($way eq 'hang up') { $session->hang_up; }
		else { $observer->run('SELECT pg_terminate_backend(' . $session->pid . ')'); }
		wait_until(
			sub {
				$observer->value(q(SELECT sharers FROM pinpoint.stat_channels WHERE channel = 'c')) ==
				  @sessions - 1;
			}) or die "$way: it does not leave";

		# A session that ends has given away what it has not read when its slot is free.
		wait_until(sub { $way =~ /UNLISTEN/ || !stat_listener($observer, $session->pid) }) or die "$way: it does not end";
		@sessions = grep { $_ != $session } @sessions;
	}
	my %left_with;
	foreach my $session (grep { $way =~ /LISTEN/ } @leave)
	{
		$left_with{ $_->{payload} }++ for grep { $_->{channel} eq 'c' } $session->take_notifications;
	}
	is_deeply(\%left_with, {}, "$way: they get nothing any more");
	$stays->run('COMMIT');
	@told = told($stays);
	each_told(1, \@payloads, \@told, "$way: the one that stays gets everything once");
	in_order(\@payloads, \@told, "$way: in order");
	close_all($stays, grep { $way =~ /LISTEN/ } @leave);
}

# It comes to a session that has read later ones already: late, but it comes.
@sessions = sharers(2, 1);
my ($blocked, $free) = @sessions;
$blocked->run('BEGIN');
$free->run('BEGIN');
$sender->run("NOTIFY c, '$_'") for 1 .. 10;
$free->run('COMMIT');
$sender->run(q(NOTIFY fence, 'read'));
my @first = map { $_->{payload} } $free->notifications_until('fence', 'read');
is(scalar @first, 5, 'one of two has read its share');
$blocked->hang_up;
my @late = map { $_->{payload} } $free->wait_for(5);
is_deeply([ sort { $a <=> $b } @first, @late ], [ 1 .. 10 ], 'and then gets the share of the other');
is_deeply([ told($free) ], [ [] ], 'each once');
$sender->run(q(NOTIFY c, 'after'));
is_deeply([ told($free) ], [ ['after'] ], 'it goes on');
close_all($free);

# Late twice, from two who leave one after the other; and one who gets it late leaves.
@sessions = sharers(4, 1);
$_->run('BEGIN') for @sessions;
$sender->run("NOTIFY c, '$_'") for 1 .. 40;
my ($last, @others) = @sessions;
$last->run('COMMIT');
$sender->run(q(NOTIFY fence, 'one'));
my @mine = map { $_->{payload} } $last->notifications_until('fence', 'one');
foreach my $session (@others)
{
	$session->hang_up;
	wait_until(sub { !stat_listener($observer, $session->pid) }) or die 'it stays';
}
push @mine, map { $_->{payload} } $last->wait_for(40 - @mine);
is_deeply([ sort { $a <=> $b } @mine ], [ 1 .. 40 ], 'from several who leave');
is_deeply([ told($last) ], [ [] ], 'each once');
close_all($last);

# With nobody left, what was given is gone, as what nobody listens to.
@sessions = sharers(3, 1);
$_->run('BEGIN') for @sessions;
$sender->run("NOTIFY c, '$_'") for 1 .. 10;
close_all(@sessions);
server_is_clean($observer, 'when all leave nothing is kept');

# One that begins to share later gets what is handed on.
my ($leaves) = sharers(1, 1);
$leaves->run('BEGIN');
$sender->run(q(NOTIFY c, 'before the other came'));
my ($comes) = sharers(1, 1);
$leaves->hang_up;
is(as_text($comes->wait_for(1)), 'c/before the other came', 'also one that came later');
close_all($comes);

# The first one to share anything comes while a transaction commits.
$observer->run('CREATE TABLE written (i int)');
my $writer = connect_to($node);
$writer->run('SET synchronous_commit = on');
$writer->send_query(q(BEGIN; INSERT INTO written VALUES (1); NOTIFY c, 'came between'; COMMIT));
wait_until_waiting($writer, 'SyncRep');
($leaves) = sharers(1, 1);
$leaves->run('BEGIN');
$observer->run('SELECT pg_cancel_backend(' . $writer->pid . ')');
$writer->result;
($comes) = sharers(1, 1);
$leaves->hang_up;
is(as_text($comes->wait_for(1)), 'c/came between', 'the first one that shares came during the commit');
close_all($comes);
$writer->close;

# ---- those who run a transaction before they end

sub wait_until_waiting
{
	my ($session, $event) = @_;
	wait_until(
		sub {
			$observer->value(
				"SELECT count(*) FROM pg_stat_activity WHERE wait_event = '$event' AND pid = " . $session->pid);
		}) or die "it does not wait for $event";
	return;
}

# Temporary tables are dropped by one.
foreach my $way ('close', 'hang up', 'terminate')
{
	my ($ends) = sharers(1, 1);
	$ends->run(q(SET pinpoint.latency_target = '1h'; CREATE TEMPORARY TABLE t (i int)));
	$sender->run(q(NOTIFY c, 'told'));
	$ends->wait_for(1);
	wait_until_idle($observer, $ends->pid);
	$sender->run(q(NOTIFY c, 'put off'));
	is(stat_listener($observer, $ends->pid)->{state}, 'signalled', 'one has temporary tables, and something unread');
	my ($stays) = sharers(1, 1);
	if    ($way eq 'close')   { $ends->close; }
	elsif ($way eq 'hang up') { $ends->hang_up; }
	else { $observer->run('SELECT pg_terminate_backend(' . $ends->pid . ')'); }
	is(as_text($stays->wait_for(1)), 'c/put off', "$way: it goes to another");
	close_all($stays);
}

# Who waits for a standby when it is told to end ends its transaction first.
my ($waits) = sharers(1, 1);
$waits->run('SET synchronous_commit = on');
$waits->send_query('INSERT INTO written VALUES (1)');
wait_until_waiting($waits, 'SyncRep');
$sender->run(q(NOTIFY c, 'meanwhile'));
my ($gets) = sharers(1, 1);
$observer->run('SELECT pg_terminate_backend(' . $waits->pid . ')');
is(as_text($gets->wait_for(1)), 'c/meanwhile', 'terminated while it waits for a standby: it goes to another');
close_all($gets);

# Its client has gone, which PostgreSQL notices while it fills its buffer.
$observer->run('SELECT pg_advisory_lock(1)');
($waits) = sharers(1, 1);
$waits->send_query('SELECT pg_advisory_lock_shared(1)');
wait_until_waiting($waits, 'advisory');
$sender->run(q(SELECT pg_notify('c', repeat(i::text, 5000)) FROM generate_series(1, 2) i));
($gets) = sharers(1, 1);
$waits->hang_up;
$observer->run('SELECT pg_advisory_unlock(1)');
is_deeply([ map { length $_->{payload} } $gets->wait_for(2) ], [ (5000) x 2 ],
	'its client has gone: it goes to another');
close_all($gets);

# ---- the setting changes

my $changes = connect_to($node);
$changes->run('LISTEN fence; LISTEN c');
$changes->run(q(SET pinpoint.shared_channels = 'c, d'; SET pinpoint.share_limit = 1));
my ($other) = sharers(1, 1);
$sender->run("NOTIFY c, '$_'") for 1 .. 10;
is_deeply([ told($changes, $other) ], [ ([ 1 .. 10 ]) x 2 ],
	'a LISTEN from before is not shared');
$changes->run('LISTEN c');
$sender->run("NOTIFY c, '$_'") for 1 .. 10;
is_deeply([ told($changes) ], [ [ 1 .. 10 ] ], 'nor by LISTEN once more');
told($other);
$changes->run('UNLISTEN c');
$changes->run('LISTEN c');
$sender->run("NOTIFY c, '$_'"), wait_until_all_idle() for 1 .. 10;
each_told(1, [ 1 .. 10 ], [ told($changes, $other) ], 'but by UNLISTEN and LISTEN');
$changes->run('RESET pinpoint.shared_channels; UNLISTEN c');
$changes->run('LISTEN c');
$sender->run("NOTIFY c, '$_'"), wait_until_all_idle() for 1 .. 10;
is_deeply([ told($changes) ], [ [ 1 .. 10 ] ], 'and not any more after a reset');
close_all($changes, $other);

# ---- another database

$observer->run('CREATE DATABASE elsewhere');
my @elsewhere = connect_many($node, 3, dbname => 'elsewhere',
	options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1');
$_->run('LISTEN c') for @elsewhere;
@sessions = sharers(3, 1);
$sender->run("NOTIFY c, '$_'") for 1 .. 30;
each_told(1, [ 1 .. 30 ], [ told(@sessions) ], 'in its own database');
is($observer->value("SELECT sum(wakeups) FROM pinpoint.stat_listeners WHERE datname = 'elsewhere'"),
	0, 'and not in another');
close_all(@elsewhere, @sessions);

# ---- what a session, or one before it in its slot, has got already

my ($older) = sharers(1, 1);
$older->run('BEGIN');
$sender->run("NOTIFY c, 'kept'");
my ($again) = sharers(1, 1);
$sender->run("NOTIFY c, '$_'"), wait_until_idle($observer, $again->pid) for 1 .. 5;
is_deeply([ told($again) ], [ [ 1 .. 5 ] ], 'one is in a transaction, the other gets it');
$again->run('UNLISTEN *');
wait_until(sub { !defined stat_listener($observer, $again->pid) }) or die 'it stays';
$again->run('LISTEN c; LISTEN fence');
$older->close;
wait_until(sub { !defined stat_listener($observer, $older->pid) }) or die 'it stays';
is_deeply([ told($again) ], [ ['kept'] ], 'what it got before does not come again with what is handed on');
close_all($again);

# ---- sessions that end while they deliver: rather twice than never

my $large = 3000;
my $send_large = "DO \$\$ BEGIN FOR i IN 1 .. $large LOOP PERFORM pg_notify('c', i || repeat('x', 7000)); END LOOP; END \$\$";

# Waits until a session cannot send, as its client does not read, and ends it.
sub terminate_stuck
{
	my ($session) = @_;
	wait_until(
		sub {
			$observer->value(
				"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND pid = " . $session->pid);
		}) or die 'it does not send';
	$observer->run('SELECT pg_terminate_backend(' . $session->pid . ')');
	wait_until(sub { !defined stat_listener($observer, $session->pid) }) or die 'it stays';
	return;
}

# What of 1 .. $large these sessions have not been told; the first has ended.
my $last_sent = $large;
sub missing
{
	my ($ended, @others) = @_;
	$ended->receive_until('EOF');
	my %told = map { $_->{payload} =~ /^(\d+)/ ? ($1 => 1) : () } $ended->take_notifications;
	my $got  = keys %told;
	foreach my $payload (map { @$_ } told(@others))
	{
		$told{$1} = 1 if $payload =~ /^(\d+)/;
	}
	cmp_ok($got, '<', $last_sent, "it has sent $got of $last_sent before");
	return grep { !$told{$_} } $last_sent == $large ? (1 .. 121, 1501 .. $large) : 1 .. $last_sent;
}

foreach my $late (0, 1)
{
	my ($giver) = sharers(1, 1);
	$giver->run('BEGIN');
	$sender->run($send_large);
	my ($stuck) = sharers(1, 1);
	told($stuck) if $late;    # it has read past what it is given later
	$giver->close;
	wait_until(sub { stat_listener($observer, $stuck->pid)->{state} =~ /^reading/ }) or die 'it does not read';
	my ($heir) = sharers(1, 1);
	terminate_stuck($stuck);
	is(scalar(missing($stuck, $heir)), 0,
		'what was handed on' . ($late ? ', late,' : '') . ' to a session that ends while it sends is handed on again');
	close_all($heir);
}

my ($folds) = connect_many($node, 1,
	options => '-c pinpoint.shared_channels=c -c pinpoint.share_limit=1 -c pinpoint.fold=on');
$folds->run('LISTEN c; LISTEN fence');
$folds->run('BEGIN');
# In the midst are so many that are the same that the session lets go of what it has read.
$sender->run("NOTIFY c, '" . ($_ <= 120 || $_ > 1500 ? $_ : 121) . 'x' x 7000 . "'") for 1 .. $large;
my ($heir) = sharers(1, 1);
$folds->send_query('COMMIT');
terminate_stuck($folds);
is(scalar(missing($folds, $heir)), 0, 'so is what was collected to be folded');
close_all($heir);

# One by one, until the client's end of the connection is full: what is still in
# PostgreSQL's buffer then has not been sent.
my ($full) = sharers(1, 1);
$last_sent = 0;
until ($observer->value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND pid = " . $full->pid))
{
	$last_sent++;
	$sender->run("NOTIFY c, '$last_sent" . 'x' x 100 . "'");
	die 'it is never full' if $last_sent > 100_000;
}
($heir) = sharers(1, 1);
terminate_stuck($full);
is(scalar(grep { $_ <= $last_sent } missing($full, $heir)), 0, 'so is what is in the output buffer');
close_all($heir);

# A channel begins to be shared while a transaction that notifies on it commits.
$observer->run('CREATE TABLE t (i int)');
my ($keeps) = sharers(1, 1);
$keeps->run('BEGIN');
$sender->run('SET synchronous_commit = on');
$sender->send_query(q(BEGIN; INSERT INTO t VALUES (1); NOTIFY c, 'one'; NOTIFY d, 'two'; COMMIT));
wait_until(sub { $observer->value(q(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep')) })
  or die 'it does not wait';
my ($other_channel) = connect_many($node, 1, options => '-c pinpoint.shared_channels=d');
$other_channel->run('LISTEN d');
$observer->run(q(ALTER SYSTEM SET synchronous_standby_names = ''));
$observer->run('SELECT pg_reload_conf()');
$sender->result;
is(as_text($other_channel->wait_for(1)), 'd/two', 'a session that begins to share a channel during a commit is told');
($heir) = sharers(1, 1);
$keeps->close;
wait_until(sub { !defined stat_listener($observer, $keeps->pid) }) or die 'it stays';
is_deeply([ told($heir) ], [ ['one'] ], 'and what was given to another is still handed on');
close_all($heir, $other_channel);

# A session ends while it reads only what was reassigned to it, and was assigned more
# meanwhile.
foreach my $way ('terminate', 'hang up')
{
	my ($leaver) = sharers(1, 1);
	$leaver->run('BEGIN');
	$sender->run("NOTIFY c, '" . ('x' x 7800) . "$_'") for 1 .. 300;
	my ($stuck) = sharers(1, 1);
	$leaver->close;
	wait_until(
		sub {
			$observer->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $stuck->pid) eq 'ClientWrite' &&
			  !defined stat_listener($observer, $leaver->pid);
		}) or die 'it does not wait for its client';
	$sender->run("NOTIFY c, 'plain $_'") for 1 .. 5;
	($heir) = sharers(1, 1);
	if ($way eq 'terminate') { $observer->run('SELECT pg_terminate_backend(' . $stuck->pid . ')'); }
	else                     { $stuck->hang_up; }
	wait_until(sub { !defined stat_listener($observer, $stuck->pid) }) or die 'it stays';
	is_deeply([ grep { /^plain/ } map { @$_ } told($heir) ],
		[ map { "plain $_" } 1 .. 5 ], "$way: what was assigned to it meanwhile goes to another");
	close_all($heir);
}

server_is_clean($observer, 'nothing is left');

done_testing();
