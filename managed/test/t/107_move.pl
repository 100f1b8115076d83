# The move to the library and back, while clients are connected: no change is missed, and tables stay watched.
#
# Needs: pg_pinpoint

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use ManagedTest;
use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', extension => 0);
$node->safe_psql('postgres', 'CREATE ROLE app LOGIN');
$node->safe_psql('postgres', 'CREATE DATABASE managed OWNER app');
install($node);
my ($session, $writer, $listener) = map { app($node) } 1 .. 3;
run_all($session, split /\n/, <<'EOS');
CREATE TABLE t (id int)
CREATE TABLE "it's odd" (id int)
CREATE TABLE parts (id int) PARTITION BY LIST (id)
CREATE TABLE part1 PARTITION OF parts FOR VALUES IN (1)
CREATE TRIGGER r AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION pinpoint.notify_row('t:{id}')
CREATE TRIGGER always AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION pinpoint.notify_row('always:{id}')
CREATE TRIGGER disabled AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION pinpoint.notify_row('disabled:{id}')
ALTER TABLE t ENABLE ALWAYS TRIGGER always
ALTER TABLE t DISABLE TRIGGER disabled
SELECT pinpoint.watch('t'), pinpoint.watch('parts', 'p'), pinpoint.watch('"it''s odd"', 'o"d''d')
EOS
run_all($listener, q{SELECT pinpoint.listen('t', 'p', 't:1')});

my $watched = q{SELECT string_agg(concat_ws(' ', relation, channel), ', ' ORDER BY channel) FROM pinpoint.watched};
my $kept = $session->value($watched);
my $triggers = q{SELECT string_agg(concat_ws(' ', tgname, tgenabled), ', ' ORDER BY tgname) FROM pg_trigger WHERE tgfoid = 'pinpoint.notify_row'::regproc};
my $same_triggers = $session->value($triggers);

# What each installation does: a listener and a position are told.
sub works
{
	my ($name) = @_;
	my $position = $session->value('SELECT pinpoint.position()');
	run_all($writer, 'INSERT INTO t VALUES (1)', 'INSERT INTO part1 VALUES (1)', "SELECT pg_notify('t', '$name')");
	is((changed($session, $position, 't', 'p', 't:1'))[0], 't p t:1', "$name: a position");
	my @heard = sort map { $_->{channel} } grep { $_->{payload} eq '' } $listener->notifications_until('t', $name);
	is("@heard", 'p t t:1', "$name: a session that listens");
	return;
}

# Move while a transaction has changed a table.
sub moves
{
	my ($name, $file) = @_;
	my $position = $session->value('SELECT pinpoint.position()');
	run_all($writer, 'BEGIN', 'INSERT INTO t VALUES (2)');
	my $handle = IPC::Run::start([ 'psql', '-X', '-1', '-v', 'ON_ERROR_STOP=1', '-f', $file, '-d', $node->connstr . ' dbname=managed' ], '>', \my $out, '2>', \my $err);
	ok(wait_until(sub { $node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = 'managed'") > 0 }),
		"$name: it waits for a transaction that has changed a table");
	run_all($writer, 'COMMIT');
	ok(IPC::Run::finish($handle), "$name: it is done") or diag $err;
	$listener->run('SELECT 1');
	$listener->take_notifications;
	is($session->value($watched), $kept, "$name: the same tables are watched");
	is($session->value($triggers), $same_triggers, "$name: the same triggers for rows");

	# The position of a client.
	my $result = $session->query("SELECT array_to_string(changed, ' ') FROM pinpoint.changed_since('$position', 't', 'p')");
	ok($result->error ? $result->error->{C} eq '22P02' : $result->rows->[0][0] eq 't p', "$name: a position from before is unknown, or invalid");
	return;
}

works('the file');
my $up = "${PostgreSQL::Test::Utils::tmp_check}/up.sql";
append_to_file($up, "SELECT pinpoint.uninstall() \\gexec\n");
moves('up', $up);
is($session->value("SELECT count(*) FROM pg_extension WHERE extname = 'pg_pinpoint'"), 1, 'the library is used');
is($session->value("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'pinpoint%'"), 0, 'no trigger of the file remains');
works('the library');
moves('down', managed_file());
is($session->value("SELECT count(*) FROM pg_extension WHERE extname = 'pg_pinpoint'"), 0, 'the file is used');
works('the file again');
moves('again', managed_file());
works('the file once more');

# A materialized view cannot be watched without the library.
run_all($session, 'SELECT 1');
$node->safe_psql('managed', 'SELECT pinpoint.uninstall()');
$node->safe_psql('managed', "CREATE EXTENSION pg_pinpoint; CREATE MATERIALIZED VIEW m AS SELECT 1 AS id; SELECT pinpoint.watch('m'), pinpoint.watch('t')");
my ($code, undef, $warnings) = $node->psql('managed', slurp_file(managed_file()), on_error_stop => 1);
is($code, 0, 'it is installed over the library');
like($warnings, qr/WARNING:  cannot watch relation "m"/, 'with a warning of a materialized view');
is($session->value($watched), 't t', 'the table is watched');
$node->safe_psql('managed', 'SELECT pinpoint.uninstall()');
is($session->value("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'pinpoint%'"), 0, 'uninstall() removes the triggers');
is($session->value("SELECT count(*) FROM pg_namespace WHERE nspname = 'pinpoint'"), 0, 'and the schema');

done_testing();
