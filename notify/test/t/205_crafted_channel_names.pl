# Names of channels that are chosen for their hash values, as they are without a seed,
# are like any others: they neither fill the shared memory nor make look-ups slow.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node = new_node('main', conf => 'pinpoint.channel_memory = 1MB');
my ($observer, $attacker, $victim, $sender) = connect_many($node, 4);

# PostgreSQL's hash values of an integer and of two hash values.
sub murmurhash32
{
	my ($h) = @_;
	$h ^= $h >> 16;
	$h = ($h * 0x85ebca6b) & 0xffffffff;
	$h ^= $h >> 13;
	$h = ($h * 0xc2b2ae35) & 0xffffffff;
	return $h ^ ($h >> 16);
}

# hashtext() is the hash value of a zero-terminated string, too.
my $count    = 240;
my $database = murmurhash32($observer->value(q(SELECT oid FROM pg_database WHERE datname = 'postgres')));
my @names    = map { $_->[0] } @{
	$observer->run(<<"SQL")->rows };
SELECT name
  FROM (SELECT 'n' || i AS name, hashtext('n' || i)::bigint & 4294967295 AS h FROM generate_series(1, 6000000) AS i OFFSET 0) AS n
 WHERE (h # (($database + 2654435769 + (h << 6) + (h >> 2)) & 4294967295)) >> 18 = 0
 LIMIT $count
SQL
is(scalar @names, $count, "there are $count names with the same first 14 bits");

my $result = $attacker->query(join ';', map { "LISTEN $_" } @names);
is($result->error, undef, 'a session can listen on all of them');
is(stat_listener($observer, $attacker->pid)->{wakes_for_all}, 'f', 'they fit, as they are spread over the map');
$result = $victim->query('LISTEN river_insert');
is($result->error, undef, 'so can others');
is(stat_listener($observer, $victim->pid)->{wakes_for_all}, 'f', 'and their channels fit, too');

$sender->run("NOTIFY $names[-1], 'one'; NOTIFY river_insert, 'two'");
is_deeply([ map { as_text($_->wait_for(1)) } $attacker, $victim ], [ "$names[-1]/one", 'river_insert/two' ],
	'all get what they listen on');

# The seed is another one after a crash, where the map is made anew.
$_->close for $attacker, $victim, $sender;
server_is_clean($observer, 'nothing is left');
$observer->close;
stop_and_start($node, 'immediate');
($observer, $attacker) = connect_many($node, 2);
$attacker->run(join ';', map { "LISTEN $_" } @names);
is(stat_listener($observer, $attacker->pid)->{wakes_for_all}, 'f', 'it is so after a restart');

done_testing();
