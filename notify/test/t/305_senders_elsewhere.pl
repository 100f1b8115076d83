# Notifications of sessions that no client of this server runs: the apply worker of a
# subscription, dblink and postgres_fdw.
#
# Needs: dblink postgres_fdw

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

# One server publishes to itself, from one database to another.
my $node = new_node('main', conf => "wal_level = logical\nmax_wal_senders = 10\nmax_replication_slots = 10\n"
	  . 'logical_decoding_work_mem = 64kB');
my $user = getpwuid($>);
my $here = 'host=' . $node->host . ' port=' . $node->port . " user=$user dbname";
$node->safe_psql('postgres', 'CREATE DATABASE publisher');
$node->safe_psql('publisher', q{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE PUBLICATION p FOR TABLE t;
	SELECT pg_create_logical_replication_slot('s', 'pgoutput')});

my ($observer, $listener, $local) = connect_many($node, 3);
my $publisher = connect_to($node, dbname => 'publisher');
$observer->run($_) foreach split /\n\n/, <<"EOS";
CREATE EXTENSION dblink

CREATE EXTENSION postgres_fdw

CREATE TABLE t (id int PRIMARY KEY, v text)

CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS
  \$\$ BEGIN PERFORM pg_notify('t', TG_OP || ' ' || NEW.id); NOTIFY n; RETURN NEW; END \$\$

CREATE TRIGGER tell AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION tell()

ALTER TABLE t ENABLE ALWAYS TRIGGER tell

CREATE FUNCTION published() RETURNS bigint LANGUAGE sql AS
  'SELECT sum(transactions)::bigint FROM pinpoint.stat_notify'

CREATE SUBSCRIPTION s CONNECTION '$here=publisher' PUBLICATION p WITH (create_slot = false, slot_name = 's', copy_data = false)
EOS
$listener->run('LISTEN t; LISTEN n');
sub published { return $observer->value('SELECT coalesce(published(), 0)'); }

# ---- an apply worker

# PostgreSQL wakes the listeners of a worker's notifications, and does not need a client.
my $before = published();
$publisher->run(q{INSERT INTO t VALUES (1, 'one')});
is_deeply(all_as_text($listener->wait_for(2)), [ 't/INSERT 1', 'n/' ], 'an apply worker notifies');
is(published(), $before + 1, 'through pg_pinpoint');

my $position = $observer->value('SELECT pinpoint.position()');
$publisher->run(q{BEGIN; INSERT INTO t SELECT i, '' FROM generate_series(2, 100) i; UPDATE t SET v = 'x' WHERE id = 1; COMMIT});
is_deeply(all_as_text($listener->wait_for(101)),
	[ 't/INSERT 2', 'n/', (map { "t/INSERT $_" } 3 .. 100), 't/UPDATE 1' ],
	'in order, and without duplicates');
is($observer->value("SELECT changed FROM pinpoint.changed_since('$position', 't', 'other')"), '{t}',
	'changed_since() reports it');

# The worker and a local session together, in the order in which they commit.
my $worker = $observer->value(q{SELECT pid FROM pg_stat_subscription WHERE subname = 's'});
foreach my $round (1 .. 20)
{
	$local->send_query(qq{BEGIN; INSERT INTO t VALUES (${round}000, ''); COMMIT});
	$publisher->run(qq{INSERT INTO t VALUES (${round}001, '')});
	$local->result;
}
my %from;
push @{ $from{ $_->{pid} == $worker ? 'worker' : 'local' } }, $_->{payload}
  foreach grep { $_->{channel} eq 't' } $listener->wait_for(80);
is_deeply(\%from,
	{ worker => [ map { "INSERT ${_}001" } 1 .. 20 ], local => [ map { "INSERT ${_}000" } 1 .. 20 ] },
	'an apply worker and a session notify at the same time');

# A conflict makes the worker fail, again and again, until the row is gone.
$local->run(q{SET session_replication_role = replica; INSERT INTO t VALUES (200000, 'in the way')});
$listener->notifications_until('n', '');
$publisher->run(q{INSERT INTO t VALUES (200000, '')});
wait_until(sub { $observer->value('SELECT apply_error_count FROM pg_stat_subscription_stats') > 0 })
  or die 'there is no conflict';
$local->run('DELETE FROM t WHERE id = 200000');
is_deeply(all_as_text($listener->wait_for(2)), [ 't/INSERT 200000', 'n/' ], 'only the attempt that succeeds notifies');

# A large transaction is sent before its commit: to a file or, from PostgreSQL 16 on, to a
# parallel apply worker.
my $parallel = $node->pg_version >= 16;
$observer->run('ALTER SUBSCRIPTION s SET (streaming = ' . ($parallel ? 'parallel' : 'on') . ')');
$before = published();
foreach my $end ('ROLLBACK', 'COMMIT')
{
	$publisher->run(qq{BEGIN; INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(400001, 400500) i; $end});
}
my @large = $listener->wait_for(501);
is_deeply(all_as_text(@large), [ 't/INSERT 400001', 'n/', map { "t/INSERT $_" } 400002 .. 400500 ],
	'a streamed transaction notifies when it commits');
is(published(), $before + 1, 'once');
isnt($large[0]{pid}, $worker, 'the parallel worker notifies') if $parallel;

# The first copy of a table
$publisher->run('CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1), (2)');
$publisher->run('ALTER PUBLICATION p ADD TABLE u');
$observer->run($_) foreach 'CREATE TABLE u (id int PRIMARY KEY)',
  'CREATE TRIGGER tell AFTER INSERT ON u FOR EACH ROW EXECUTE FUNCTION tell()',
  'ALTER TABLE u ENABLE ALWAYS TRIGGER tell',
  'ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_data = true)';
is_deeply(all_as_text($listener->wait_for(3)), [ 't/INSERT 1', 'n/', 't/INSERT 2' ], 'the first copy of a table notifies');

# ---- dblink

$before = published();
$local->run("SELECT dblink_connect('c', '$here=postgres')");
$local->run(q{SELECT dblink_exec('c', 'NOTIFY t, ''by dblink''')});
is_deeply(all_as_text($listener->wait_for(1)), ['t/by dblink'], 'dblink_exec()');
is(published(), $before + 1, 'through pg_pinpoint');

# Both sides of a connection that dblink makes to the own server notify in one transaction.
$local->run(q{BEGIN; NOTIFY t, 'outer'; SELECT dblink_exec('c', 'NOTIFY t, ''inner'''); COMMIT});
is_deeply(all_as_text($listener->wait_for(2)), [ 't/inner', 't/outer' ], 'the inner transaction commits first');
$local->run(q{BEGIN; NOTIFY t, 'outer'; SELECT dblink_exec('c', 'BEGIN; NOTIFY t, ''inner''')});
$local->run('COMMIT');
$local->run(q{SELECT dblink_exec('c', 'COMMIT')});
is_deeply(all_as_text($listener->wait_for(2)), [ 't/outer', 't/inner' ], 'or last');

# dblink_get_notify() is a listener in the middle of a transaction of its own server.
$local->run(q{SELECT dblink_exec('c', 'LISTEN d')});
$local->run(q{NOTIFY d, 'for dblink'});
ok( wait_until(
		sub { ($local->run(q{SELECT extra FROM dblink_get_notify('c')})->rows->[0] // [''])->[0] eq 'for dblink' }),
	'dblink_get_notify()');
$local->run(q{SELECT dblink_disconnect('c')});

# ---- postgres_fdw

$observer->run($_) foreach
  "CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '" . $node->host . "', port '" . $node->port . q{', dbname 'postgres')},
  "CREATE USER MAPPING FOR CURRENT_USER SERVER elsewhere OPTIONS (user '$user')",
  q{CREATE FOREIGN TABLE f (id int, v text) SERVER elsewhere OPTIONS (table_name 't')},
  q{CREATE VIEW sends AS SELECT pg_notify('t', 'by a remote view') IS NULL AS sent},
  q{CREATE FOREIGN TABLE remote_sends (sent bool) SERVER elsewhere OPTIONS (table_name 'sends')};

$before = published();
$local->run('RESET session_replication_role');
$local->run(q{BEGIN; INSERT INTO f VALUES (300000, ''); NOTIFY t, 'local'; COMMIT});
is_deeply(all_as_text($listener->wait_for(3)), [ 't/INSERT 300000', 'n/', 't/local' ],
	'the remote transaction of postgres_fdw commits before the local one');
is(published(), $before + 2, 'both through pg_pinpoint');
$local->run(q{BEGIN; INSERT INTO f VALUES (300001, ''); NOTIFY t, 'local'; ROLLBACK});
$local->run(q{SELECT * FROM remote_sends});
is_deeply(all_as_text($listener->wait_for(1)), ['t/by a remote view'],
	'a rollback notifies on neither side; pg_notify() in a remote view does');

# The remote session cannot be used for LISTEN by accident: it has no listener.
ok(wait_until(sub { $observer->value('SELECT count(*) FROM pinpoint.stat_listeners') == 1 }), 'no other session listens');

# ---- the end

$observer->run('ALTER SUBSCRIPTION s DISABLE');
$observer->run('ALTER SUBSCRIPTION s SET (slot_name = NONE)');
$observer->run('DROP SUBSCRIPTION s');
$_->close foreach $listener, $local, $publisher;
server_is_clean($observer, 'nothing is left');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'no process has crashed');

done_testing();
