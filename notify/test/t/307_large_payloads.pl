# pinpoint.max_payload_size: payloads beyond what PostgreSQL allows.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_node('primary', init => { allows_streaming => 1 }, conf => 'pinpoint.replicate = on');
my ($observer, $sender, $listener) = connect_many($primary, 3);
$observer->run($_) for 'CREATE ROLE someone LOGIN', 'CREATE DATABASE no_extension';
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'hot_standby = on');
$standby->start;
my $far = connect_to($standby);
$_->run('LISTEN a') for $listener, $far;

my %statements = (
	NOTIFY    => sub { "NOTIFY a, '" . 'x' x $_[0] . "'" },
	pg_notify => sub { "SELECT pg_notify('a', repeat('x', $_[0]))" });

# ---- by default nothing has changed

is($sender->value('SHOW pinpoint.max_payload_size'), '7999B', 'the default');
foreach my $name (sort keys %statements)
{
	is($sender->query($statements{$name}->(7999))->error, undef, "$name with 7,999 bytes");
	is(length $_->wait_for(1)->{payload}, 7999, 'arrives') for $listener, $far;
	error_is($sender->query($statements{$name}->(8000)),
		'22023', 'payload string too long', undef, 'one more is refused');
	is($sender->query($statements{$name}->(8000))->error->{D}, undef, 'as PostgreSQL does');
}
is($sender->query("SET pinpoint.max_payload_size = $_")->error->{C}, '22023', "max_payload_size = $_") for 7998, 16777217;
my $someone = connect_to($primary, user => 'someone');
error_is($someone->query(q(SET pinpoint.max_payload_size = '1MB')),
	'42501', 'permission denied to set parameter "pinpoint.max_payload_size"', undef, 'not for everybody');
$someone->close;

# ---- up to a megabyte

my $megabyte = 1024 * 1024;
$sender->run(q(SET pinpoint.max_payload_size = '1MB'));
foreach my $name (sort keys %statements)
{
	foreach my $size (8000, 65_535, 65_536, 300_000, $megabyte)
	{
		is($sender->query($statements{$name}->($size))->error, undef, "$name with $size bytes");
		is(length $_->wait_for(1)->{payload}, $size, 'arrives') for $listener, $far;
	}
	my $error = $sender->query($statements{$name}->($megabyte + 1))->error;
	is_deeply([ @{$error}{qw(C M D)} ],
		[ '22023', 'payload string too long', 'It has 1048577 bytes, and "pinpoint.max_payload_size" is 1048576 bytes.' ],
		'one more is refused');
}
$sender->run(q(SELECT pg_notify('a', string_agg(chr(33 + i % 90), '')) FROM generate_series(1, 100000) i));
my $bytes = join '', map { chr(33 + $_ % 90) } 1 .. 100_000;
ok($_->wait_for(1)->{payload} eq $bytes, 'to the byte') for $listener, $far;
$sender->run(q(BEGIN; SELECT pg_notify('a', repeat(i::text, 100000)) FROM generate_series(1, 3) i; SELECT pg_notify('a', repeat('2', 100000)); COMMIT));
is_deeply([ map { substr($_->{payload}, 0, 1) . length $_->{payload} } $_->wait_for(3) ],
	[qw(1100000 2100000 3100000)], 'several, each once')
  for $listener, $far;

# ---- PostgreSQL's own way

my $own = q(This notification uses PostgreSQL's own queue, which allows 7999 bytes.);
$sender->run('SET pinpoint.enabled = off');
is($sender->query($statements{$_}->(8000))->error->{D}, $own, "$_ with pinpoint.enabled = off says why") for sort keys %statements;
is($sender->query($statements{$_}->(7999))->error, undef, "and takes 7,999 bytes") for sort keys %statements;
$sender->run('SET pinpoint.enabled = on');
$listener->wait_for(2);
my $elsewhere = connect_to($primary, dbname => 'no_extension');
$elsewhere->run(q(SET pinpoint.max_payload_size = '1MB'));
is($elsewhere->query($statements{NOTIFY}->(8000))->error->{D}, $own, 'so does NOTIFY without the extension');
$elsewhere->close;

# ---- listeners that are slow

my @slow = connect_many($primary, 10);
$_->run('LISTEN a'), $_->run('BEGIN') for @slow;
$sender->run(qq(SELECT pg_notify('a', '$_' || repeat('x', $megabyte - 1)))) for 1 .. 5;
cmp_ok(stat_queue($observer)->{used_bytes}, '>', 5 * $megabyte, 'what is kept counts');
foreach my $session (@slow)
{
	$session->run('COMMIT');
	is(join(' ', map { substr($_->{payload}, 0, 1) . length $_->{payload} } $session->wait_for(5)),
		join(' ', map { "$_$megabyte" } 1 .. 5), 'ten slow listeners get all of it');
}
$_->wait_for(5) for $listener, $far;
ok(wait_until(sub { stat_queue($observer)->{used_bytes} == 0 }), 'and nothing is left');

# ---- folded; more than the queue holds

$listener->run('SET pinpoint.fold = on');
$listener->run('BEGIN');
$sender->run($statements{pg_notify}->(300_000)) for 1 .. 3;
is(length $far->wait_for(1)->{payload}, 300_000, 'not folded') for 1 .. 3;
my @folded = $listener->query('COMMIT')->notifications;
is(scalar @folded, 1, 'folded');
$_->close for @slow, $far, $listener;
$standby->stop;
$primary->append_conf('postgresql.conf', "pinpoint.queue_size = 512kB\npinpoint.queue_memory = 512kB\npinpoint.max_payload_size = 1MB");
$primary->restart;
($observer, $sender) = connect_many($primary, 2);
my $error = $sender->query($statements{pg_notify}->($megabyte))->error;
is($error->{C}, '54000', 'a payload that is larger than the queue');
like($error->{H}, qr/^The notifications of this transaction take \d+ bytes\. Increase "pinpoint.queue_size"\.$/, 'says so');
is($sender->query($statements{pg_notify}->(300_000))->error, undef, 'a smaller one is sent');
server_is_clean($observer, 'nothing is left');

done_testing();
