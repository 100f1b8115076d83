# Subscribers whose tables change while they follow: one with the library and one
# without it, with the same statements, have the same data in the end.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use DecodingTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $TABLES = 16;

my $publisher   = new_server('publisher');
my $stock       = new_server('stock');
my $library     = new_server('library', preload => 'pg_pinpoint_decoding', conf => 'log_min_messages = debug1');
my @subscribers = ($stock, $library);

# %s is the name of the subscription.
sub on_subscribers
{
	my ($sql) = @_;
	$_->safe_psql('postgres', $sql =~ s/%s/$_->name/er) foreach @subscribers;
	return;
}

# One SQL command for each table
sub each_table
{
	my ($format) = @_;
	return join "\n", map { (my $sql = $format) =~ s/%s/$_/g; "$sql;" } 1 .. $TABLES;
}

foreach my $node ($publisher, @subscribers)
{
	$node->safe_psql('postgres', 'CREATE SCHEMA other;'
		  . each_table('CREATE TABLE t%s (id int PRIMARY KEY, a text, b text)'));
}
$publisher->safe_psql('postgres', 'CREATE TABLE parts (id int PRIMARY KEY, a text, b text)');
on_subscribers(q{
	CREATE TABLE parts (id int PRIMARY KEY, a text, b text) PARTITION BY RANGE (id);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (5);
	CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (5) TO (1000);});
$publisher->safe_psql('postgres', 'CREATE PUBLICATION everything FOR ALL TABLES');
foreach my $node (@subscribers)
{
	$node->safe_psql('postgres',
		sprintf q{CREATE SUBSCRIPTION %s CONNECTION '%s dbname=postgres' PUBLICATION everything},
		$node->name, $publisher->connstr);
	$node->wait_for_subscription_sync($publisher, $node->name);
}

# Remove all rows, change the tables of the subscribers and of the publisher, and
# insert a row into each table, and update it.  Then compare.  (TRUNCATE would make the
# publisher describe the table again, and then the subscriber forgets it anyway.)
my $row = 0;

sub change
{
	my ($what, $on_subscribers, $on_publisher) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$publisher->safe_psql('postgres', each_table('DELETE FROM t%s') . 'DELETE FROM parts');
	catch_up();
	on_subscribers($on_subscribers) if $on_subscribers;
	$publisher->safe_psql('postgres', $on_publisher) if $on_publisher;
	write_and_compare($what);
	return;
}

sub write_and_compare
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$row++;
	my $write = "INSERT INTO %s VALUES ($row, 'a of %s', 'b of %s'); UPDATE %s SET a = a || ' $row' WHERE id = $row";
	$publisher->safe_psql('postgres', each_table($write =~ s/%s/t%s/gr) . ($write =~ s/%s/parts/gr));
	catch_up();

	my @contents = map { contents($_) } $publisher, @subscribers;
	is($contents[1], $contents[0], "$what: the subscriber without the library has the same rows");
	is($contents[2], $contents[0], "$what: and the one with it");
	return;
}

sub catch_up
{
	$publisher->wait_for_catchup($_->name) foreach @subscribers;
	return;
}

sub contents
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		join "\n", map { "SELECT '$_', id, a, b FROM $_ ORDER BY id;" } 'parts', map { "t$_" } 1 .. $TABLES);
}

# ---- each kind of change

change('nothing changed');
foreach my $time ('once', 'again')
{
	change("columns in another order, $time",
		each_table('ALTER TABLE t%s DROP COLUMN a; ALTER TABLE t%s ADD COLUMN a text'));
	change("columns of partitions in another order, $time",
		'ALTER TABLE parts DROP COLUMN a; ALTER TABLE parts ADD COLUMN a text');

	# It is another table for the subscription, too.
	change("created again, $time",
		each_table('DROP TABLE t%s; CREATE TABLE t%s (b text, id int PRIMARY KEY, a text)')
		  . 'ALTER SUBSCRIPTION %s REFRESH PUBLICATION WITH (copy_data = false)');
	change("indexes and statistics, $time",
		each_table('CREATE INDEX ON t%s (a); ANALYZE t%s; ALTER TABLE t%s ALTER a SET STATISTICS 50'));
	change("other names, $time", swap('t1', 't2') . swap('t3', 't4'));
	change("other names on the publisher, $time", undef, swap('t5', 't6'));
	change("other names on both, $time", swap('t7', 't8'), swap('t7', 't9'));
}

sub swap
{
	my ($one, $two) = @_;
	return "BEGIN; ALTER TABLE $one RENAME TO former; ALTER TABLE $two RENAME TO $one; ALTER TABLE former RENAME TO $two; COMMIT;";
}

# ---- a worker that has missed too many invalidations forgets all tables

change('before the worker falls behind');
$publisher->safe_psql('postgres', 'DELETE FROM t11; DELETE FROM t12');
catch_up();
my $waits = 1000;
foreach my $node (@subscribers)
{
	my $holder = $node->background_psql('postgres');
	$holder->query_safe('BEGIN; LOCK TABLE t10 IN ACCESS EXCLUSIVE MODE');
	$publisher->safe_psql('postgres', 'INSERT INTO t10 VALUES (' . $waits++ . q{, 'waits', 'b')});
	$node->poll_query_until('postgres',
		q{SELECT count(*) = 1 FROM pg_locks WHERE relation = 't10'::regclass AND NOT granted})
	  or die 'the worker does not wait';
	$node->safe_psql('postgres', swap('t11', 't12'));
	$node->safe_psql('postgres', 'DO $$ BEGIN FOR i IN 1 .. 500 LOOP CREATE TEMPORARY TABLE many (a int);'
		  . ' DROP TABLE many; COMMIT; END LOOP; END $$');
	$holder->query_safe('COMMIT');
	$holder->quit;
}
write_and_compare('after the worker fell behind');

# ---- and the library had a part in it

my $log = slurp_file($library->logfile);
if (has_link_time_optimization())
{
	like($log,
		qr/WARNING:  pg_pinpoint_decoding is not active in subscribers: the server was built with link-time optimization\n/,
		'the server log says why it is not active');
	unlike($log, qr/invalidates the relation map/, 'the worker does not use it');
}
else
{
	like($log, qr/LOG:  pg_pinpoint_decoding is active in subscribers\n/, 'the server log says that it is active');
	like($log, qr/DEBUG:  pg_pinpoint_decoding invalidates the relation map\n/, 'the worker uses it');

	# The worker writes its memory contexts to the log.
	my $position = -s $library->logfile;
	$library->safe_psql('postgres', q{
		SELECT pg_log_backend_memory_contexts(pid) FROM pg_stat_subscription WHERE relid IS NULL AND pid IS NOT NULL});
	$library->wait_for_log(qr/Relation map by relation: \d+ total/, $position);
	pass('it knows its tables');
}

unlike(slurp_file($_->logfile), qr/ERROR:  (?!replication origin|could not start WAL streaming)/,
	$_->name . ' met no error')
  foreach @subscribers;

$_->stop foreach @subscribers, $publisher;
done_testing();
