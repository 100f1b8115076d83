# Loading the library, and its settings.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $hint = 'Add pg_pinpoint to "shared_preload_libraries" in postgresql.conf'
  . ' and restart the server.';

# ---- a server that does not preload the library

my $node    = new_node('main', preload => '');
my $session = connect_to($node);
$session->run('LISTEN a');

sub still_works
{
	my ($when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$session->run("NOTIFY a, '$when'; SELECT pg_notify('a', 'function')");
	is_deeply(
		all_as_text($session->wait_for(2)),
		[ "a/$when", 'a/function' ],
		"NOTIFY works $when");
	return;
}

is($session->query("LOAD 'pg_pinpoint'")->types, 'CZ', 'LOAD does nothing');
still_works('after LOAD');

# So that a dump can be restored, and pg_upgrade can look at the library.
my ($notice) = grep { $_->{type} eq 'N' }
  connect_to($node)->query('CREATE EXTENSION pg_pinpoint')->messages;
is_deeply(
	[ @{ $notice->{fields} }{qw(S M H)} ],
	[ 'WARNING',
		'pg_pinpoint has no effect unless it is loaded via "shared_preload_libraries"',
		$hint
	],
	'CREATE EXTENSION warns');
still_works('after CREATE EXTENSION');
$session->run("SELECT pinpoint.notify('a', 'by our function')");
is(as_text($session->wait_for(1)), 'a/by our function', q(its function goes PostgreSQL's own way));
is($session->value('SELECT pinpoint.notification_queue_usage() = pg_notification_queue_usage()'),
	't', 'and so does the other');
foreach my $view (qw(stat_queue stat_listeners stat_channels))
{
	error_is($session->query("SELECT * FROM pinpoint.$view"),
		'55000', 'pg_pinpoint must be loaded via "shared_preload_libraries"', $hint,
		"$view has nothing to show");
}
error_is($session->query('SHOW pinpoint.enabled'),
	'42704', 'unrecognized configuration parameter "pinpoint.enabled"', undef,
	'there are no settings');
$session->run('DROP EXTENSION pg_pinpoint');
is( $session->value(q{SELECT count(*) FROM pg_namespace WHERE nspname = 'pinpoint'}),
	0, 'DROP EXTENSION takes its schema, too');

$session->run("ALTER ROLE CURRENT_USER SET session_preload_libraries = 'pg_pinpoint'");
my $loaded = connect_to($node);
is($loaded->query("LISTEN a; NOTIFY a, 'loaded'")->types,
	'CCAZ', 'session_preload_libraries does no harm');
$loaded->close;
$session->take_notifications;
$session->run('ALTER ROLE CURRENT_USER RESET session_preload_libraries');

# ---- settings at server start

# A server's log since the last look.
my $log_position = 0;

sub log_since
{
	my $log = slurp_file($node->logfile, $log_position);
	$log_position = -s $node->logfile;
	return $log;
}

$session->close;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_pinpoint'");

# PostgreSQL knows the limits of a library's setting only when the library is
# loaded, and then, as for every library, warns and takes the default.
# Newer versions repeat the unit: as in the message of a setting of their own.
my (undef, undef, $own_message) = $node->psql('postgres', "SET work_mem = '1kB'");
my $kb = $own_message =~ /\(64 kB / ? ' kB' : '';

my %default = ('pinpoint.queue_size' => '8GB', 'pinpoint.queue_memory' => '16MB');
foreach my $setting (sort keys %default)
{
	my $out_of_range =
	  qr/ is outside the valid range for parameter "\Q$setting\E" \(64$kb \.\. \d+$kb\)/;
	foreach my $case (
		[ '32kB', qr/\b32 kB$out_of_range/ ],
		[ '-1',   qr/-1 kB$out_of_range/ ],
		[ 'much', qr/invalid value for parameter "\Q$setting\E": "much"/ ])
	{
		my ($value, $warning) = @$case;
		log_since();
		$node->append_conf('postgresql.conf', "$setting = '$value'");
		$node->restart;
		like(log_since(), $warning, "$setting = $value is refused");
		is($node->safe_psql('postgres', "SHOW $setting"),
			$default{$setting}, 'and the default holds');
	}
	foreach my $value ('64kB', '1MB')
	{
		log_since();
		$node->append_conf('postgresql.conf', "$setting = '$value'");
		$node->restart;
		unlike(log_since(), qr/\Q$setting\E/, "$setting = $value is accepted");
		is($node->safe_psql('postgres', "SHOW $setting"), $value, 'and shown');
	}
}

log_since();
$node->restart;
my ($version) = log_since() =~
  /pg_pinpoint (\d+\.\d+)\.\d+ is active on PostgreSQL \d.*, with a NOTIFY queue of 1024 kB, 1024 kB of it in memory/;
ok(defined $version, 'the log tells that it is there');
$session = connect_to($node);
$session->run('CREATE EXTENSION pg_pinpoint');
is($session->value(q{SELECT extversion FROM pg_extension WHERE extname = 'pg_pinpoint'}),
	$version, 'the version of the extension is the first two numbers of the version in the log');
cmp_ok(stat_queue($session)->{size_bytes}, '<=', 1024 * 1024,
	'the queue is not larger than asked for');
cmp_ok(stat_queue($session)->{size_bytes}, '>', 1024 * 1024 * 0.9,
	'nor much smaller');
$session->run('LISTEN a');
still_works('after CREATE EXTENSION');

is($session->query("LOAD 'pg_pinpoint'")->error, undef,
	'LOAD of the preloaded library does nothing');
still_works('after LOAD');

foreach my $setting (sort keys %default)
{
	error_is($session->query("SET $setting = 1024"),
		'55P02', qq(parameter "$setting" cannot be changed without restarting the server),
		undef, "$setting cannot be changed in a session");
	my $most = $session->value(
		"SELECT max_val FROM pg_settings WHERE name = '$setting'");
	error_is($session->query("ALTER SYSTEM SET $setting = '1kB'"),
		'22023', qq(1 kB is outside the valid range for parameter "$setting" (64$kb .. $most$kb)),
		undef, 'nor be less than the minimum');
}
error_is($session->query('SET pinpoint.enable = on'),
	'42602', 'invalid configuration parameter name "pinpoint.enable"', undef,
	'a setting that does not exist is refused');
is_deeply(
	$session->run(
		q{SELECT name, setting, unit, context FROM pg_settings
		   WHERE name ~ '^pinpoint\.(enabled|queue)' ORDER BY name}
	)->rows,
	[
		[ 'pinpoint.enabled',    'on',   undef, 'superuser' ],
		[ 'pinpoint.queue_memory', '1024', 'kB', 'postmaster' ],
		[ 'pinpoint.queue_size', '1024', 'kB',  'postmaster' ]
	],
	'the settings as pg_settings shows them');
# ---- pinpoint.enabled: who may set it

$session->run('CREATE ROLE someone LOGIN');
my $someone = connect_to($node, user => 'someone');
is($someone->value('SHOW pinpoint.enabled'), 'on', 'everyone may see it');
error_is($someone->query('SET pinpoint.enabled = off'),
	'42501', 'permission denied to set parameter "pinpoint.enabled"', undef,
	'a superuser may set it, others not');
is($someone->value('SHOW pinpoint.enabled'), 'on', 'it is unchanged');
$session->run('GRANT SET ON PARAMETER pinpoint.enabled TO someone');
is($someone->query('SET pinpoint.enabled = off')->error, undef,
	'unless they were granted it');
is($someone->value('SHOW pinpoint.enabled'), 'off', 'it is changed');
error_is($session->query('SET pinpoint.enabled = maybe'),
	'22023', 'parameter "pinpoint.enabled" requires a Boolean value', undef,
	'it is a Boolean');

# ---- pinpoint.enabled at any time, also for plans made before

my $sender = connect_to($node);
$sender->run('PREPARE by_function AS SELECT pg_notify($1, $2)');
$sender->run('SET plan_cache_mode = force_generic_plan');
$sender->run(
	q{CREATE FUNCTION from_plpgsql(text) RETURNS void LANGUAGE plpgsql
		AS $$ BEGIN PERFORM pg_notify('a', $1); END $$;
	  CREATE TABLE noted (what text);
	  CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql
		AS $$ BEGIN PERFORM pg_notify('a', NEW.what); RETURN NULL; END $$;
	  CREATE TRIGGER note AFTER INSERT ON noted FOR EACH ROW EXECUTE FUNCTION note();
	  CREATE RULE also AS ON UPDATE TO noted DO ALSO NOTIFY a, 'by rule'});
my @ways = (
	[ 'a statement',         sub { "NOTIFY a, '$_[0]'" } ],
	[ 'a function',          sub { "SELECT pg_notify('a', '$_[0]')" } ],
	[ 'a cached plan',       sub { "EXECUTE by_function('a', '$_[0]')" } ],
	[ 'a PL/pgSQL function', sub { "SELECT from_plpgsql('$_[0]')" } ],
	[ 'a trigger',           sub { "INSERT INTO noted VALUES ('$_[0]')" } ]);

sub check_ways
{
	my ($through_engine, $when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $way (@ways)
	{
		my ($name, $statement) = @$way;
		my $before = stat_queue($session)->{published};
		$session->take_notifications;
		$sender->run($statement->("$name, $when"));
		is(as_text($session->wait_for(1)), "a/$name, $when",
			"$when: by $name arrives");
		is(stat_queue($session)->{published} - $before,
			$through_engine,
			$through_engine ? 'through the engine' : "PostgreSQL's own way");
	}
	return;
}

check_ways(1, 'at first');
for my $round (1 .. 2)
{
	$sender->run('SET pinpoint.enabled = off');
	check_ways(0, "switched off in the session, $round");
	$sender->run('SET pinpoint.enabled = on');
	check_ways(1, "switched on in the session, $round");
}

# From outside, while the session goes on.
for my $value ('off', 'on')
{
	$sender->run('RESET pinpoint.enabled');
	$session->run("ALTER SYSTEM SET pinpoint.enabled = $value");
	$session->run('SELECT pg_reload_conf()');
	ok( wait_until(sub { $sender->value('SHOW pinpoint.enabled') eq $value }),
		"switched $value for the server");
	check_ways($value eq 'on' ? 1 : 0, "switched $value for the server");
}

# Within a transaction: both parts arrive when it commits, none if it does not.
$sender->run(
	q{BEGIN;
	  NOTIFY a, 'on 1'; SET LOCAL pinpoint.enabled = off; NOTIFY a, 'off';
	  SET LOCAL pinpoint.enabled = on; NOTIFY a, 'on 2'; COMMIT});
is_deeply(
	[ sort @{ all_as_text($session->wait_for(3)) } ],
	[ 'a/off', 'a/on 1', 'a/on 2' ],
	'switched within a transaction, all arrive');
$sender->run(
	q{BEGIN;
	  NOTIFY a, 'lost'; SET LOCAL pinpoint.enabled = off; NOTIFY a, 'lost 2'; ROLLBACK});
$sender->run(q{NOTIFY a, 'end'; SET pinpoint.enabled = off});
$sender->run(q{NOTIFY a, 'end 2'; SET pinpoint.enabled = on});
is_deeply(
	[ sort @{ all_as_text($session->wait_for(2)) } ],
	[ 'a/end', 'a/end 2' ],
	'and none of one that rolls back');

# A listener that began and stopped while it was switched off.
my $listener = connect_to($node);
$listener->run('SET pinpoint.enabled = off; LISTEN b');
$sender->run("NOTIFY b, 'engine'");
is(as_text($listener->wait_for(1)), 'b/engine',
	'LISTEN while switched off is known to the engine');
$listener->run('SET pinpoint.enabled = on; LISTEN fence');
$listener->run('SET pinpoint.enabled = off; UNLISTEN b');
$listener->run('SET pinpoint.enabled = on');
$sender->run("NOTIFY b, 'late'; NOTIFY fence, 'end'");
is_deeply(all_as_text($listener->notifications_until('fence', 'end')),
	[], 'and so is UNLISTEN');

$_->close for $listener, $session;
server_is_clean($sender, 'nothing is left');

done_testing();
