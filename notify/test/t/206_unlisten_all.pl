# UNLISTEN * again and again in one transaction, after many LISTENs: each makes what
# came before it needless, so the commit takes no longer for it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

my $node = new_node('main');
my ($observer, $sender, $session) = connect_many($node, 3);

sub repeat
{
	my ($count, $statement) = @_;
	return "DO \$\$ BEGIN FOR i IN 1 .. $count LOOP EXECUTE format($statement, i); END LOOP; END \$\$";
}

sub channels { return $observer->value('SELECT count(*) FROM pinpoint.stat_channels'); }

# ---- many

# 20,000 times 400,000 steps, if each UNLISTEN * goes through all channels, would take
# longer than any test may.  PostgreSQL 19 itself does so in the commit, for its own list:
# there a few have to do.
my $is_quadratic = $observer->value('SHOW server_version_num') >= 190000;
my $channels     = $is_quadratic ? 500 : 20_000;
my $unlistens    = $is_quadratic ? 1_000 : 400_000;
my $savepoints   = $is_quadratic ? 1_000 : 50_000;
foreach my $listened ('before', 'in the same transaction')
{
	$session->run(repeat($channels, q('LISTEN c%s'))) if $listened eq 'before';
	$session->run('BEGIN');
	$session->run(repeat($channels, q('LISTEN c%s'))) if $listened ne 'before';
	$session->run(repeat($unlistens, q('UNLISTEN *')));
	$session->run('LISTEN last');
	$session->send_query('COMMIT');
	is(eval { $session->result->error; } // ($@ || 'none'), 'none', "$listened: the transaction ends");
	last if $@;
	is(channels(), 1, "$listened: the session listens on what came last");
	$sender->run(q(NOTIFY c1; NOTIFY last));
	is_deeply(all_as_text($session->wait_for(1)), ['last/'], "$listened: and on nothing else");
	$session->run('UNLISTEN *');
}

# With savepoints that are released.
$session->run(repeat($channels, q('LISTEN c%s')));
$session->run('BEGIN');
$session->run(
	"DO \$\$ BEGIN FOR i IN 1 .. $savepoints LOOP BEGIN EXECUTE 'UNLISTEN *'; EXECUTE 'LISTEN d' || i; EXCEPTION WHEN OTHERS THEN RAISE; END; END LOOP; END \$\$");
$session->run('COMMIT');
is($observer->value('SELECT string_agg(channel, \' \') FROM pinpoint.stat_channels'), "d$savepoints", 'so with savepoints');
$session->run('UNLISTEN *');

# ---- savepoints: what is rolled back was not unlistened

my @cases = (
	[ 'LISTEN a; SAVEPOINT s; UNLISTEN *; ROLLBACK TO s',                              'a' ],
	[ 'LISTEN a; SAVEPOINT s; UNLISTEN *; LISTEN b; RELEASE s',                        'b' ],
	[ 'LISTEN a; SAVEPOINT s; LISTEN b; SAVEPOINT t; UNLISTEN *; LISTEN c; ROLLBACK TO t; RELEASE s', 'a b' ],
	[ 'LISTEN a; SAVEPOINT s; LISTEN b; SAVEPOINT t; UNLISTEN *; LISTEN c; RELEASE t; ROLLBACK TO s', 'a' ],
	[ 'LISTEN a; SAVEPOINT s; UNLISTEN *; SAVEPOINT t; LISTEN b; UNLISTEN *; LISTEN c; RELEASE s; LISTEN d', 'c d' ],
	[ 'SAVEPOINT s; UNLISTEN *; LISTEN a; RELEASE s; SAVEPOINT s; UNLISTEN a; RELEASE s', '' ],
	[ 'SAVEPOINT s; LISTEN a; RELEASE s; UNLISTEN *; UNLISTEN *; SAVEPOINT s; LISTEN b; RELEASE s', 'b' ],
	[ 'UNLISTEN x; SAVEPOINT s; UNLISTEN *; ROLLBACK TO s; LISTEN a',                  'a y' ]);
foreach my $case (@cases)
{
	my ($sql, $result) = @$case;
	$session->run($result =~ /y/ ? 'LISTEN x; LISTEN y' : 'UNLISTEN *');
	$session->run("BEGIN; $sql; COMMIT");
	my $order = 'FROM %s ORDER BY 1';
	is($observer->value(q(SELECT coalesce(string_agg(channel, ' ' ORDER BY channel), '') FROM pinpoint.stat_channels)),
		$result, $sql);
	is($session->value(q(SELECT coalesce(string_agg(c, ' ' ORDER BY c), '') FROM pg_listening_channels() c)),
		$result, 'as PostgreSQL has it');
	$session->run('UNLISTEN *');
}

# ---- a rollback of all of it

$session->run('LISTEN stays');
$session->run('BEGIN; LISTEN a; UNLISTEN *; LISTEN b; ROLLBACK');
$sender->run(q(NOTIFY b; NOTIFY stays, 'here'));
is_deeply(all_as_text($session->wait_for(1)), ['stays/here'], 'a rollback changes nothing');

server_is_clean($observer, 'nothing is left') if $session->close || 1;

done_testing();
