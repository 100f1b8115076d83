# Random writers, also with partitions that come and go, prepared transactions and a crash; and clients that keep the content of
# tables and a position. While changed_since() does not name a channel, the content must be the same.
#
# PINPOINT_TEST_SEED chooses the random numbers, PINPOINT_TEST_ROUNDS the number of transactions of a writer.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use ManagedTest;
use PinpointTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $seed = $ENV{PINPOINT_TEST_SEED} // int rand 1e6;
my $rounds = $ENV{PINPOINT_TEST_ROUNDS} // 200;
note "measured: seed $seed, $rounds transactions";

# Rows are removed at every second change, and at a distance of 100 transactions.
my @often = ('& 63 = 0' => '& 1 = 0', '- 10000000' => '- 100');
my $node = managed_node('main', file => managed_file(@often),
	conf => "max_prepared_transactions = 20\ndeadlock_timeout = 100ms\nlock_timeout = 100ms");

my $setup = app($node);
run_all($setup, split /\n/, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v int)
CREATE TABLE refers (id int, t int REFERENCES t ON DELETE CASCADE ON UPDATE SET NULL)
CREATE TABLE parts (id int, v int) PARTITION BY RANGE (id)
CREATE TABLE parts0 PARTITION OF parts FOR VALUES FROM (0) TO (10)
CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)
CREATE TABLE parts11 PARTITION OF parts1 FOR VALUES FROM (10) TO (15)
CREATE TABLE parts12 PARTITION OF parts1 DEFAULT
CREATE TABLE parent (id int)
CREATE TABLE child (v int) INHERITS (parent)
CREATE TABLE whole (id int, v int) PARTITION BY LIST (id)
CREATE TABLE part1 PARTITION OF whole FOR VALUES IN (1, 3, 5)
CREATE TABLE part2 PARTITION OF whole DEFAULT
CREATE TABLE above (id int)
CREATE TABLE below () INHERITS (above)
SELECT pinpoint.watch('t'), pinpoint.watch('refers'), pinpoint.watch('parts'), pinpoint.watch('parent')
SELECT pinpoint.watch('part1'), pinpoint.watch('below')
EOS
my @tables = qw(t refers parts parent part1 below);

my $control = PostgreSQL::Test::Utils::tempdir;
sub is_over { return -e "$control/over"; }

# A session; waits for the server, if necessary.
sub session
{
	my $session;
	wait_until(sub { $session = eval { app($node) } }) or die 'no session';
	return $session;
}

# A statement that changes one or several tables.
sub change
{
	my $id = int rand 30;
	my $few = $id % 10;
	my $one = $few % 6;
	my @all = (
		"INSERT INTO t VALUES ($id, 1) ON CONFLICT (id) DO UPDATE SET v = t.v + 1",
		"DELETE FROM t WHERE id = $id",
		"MERGE INTO t USING (VALUES ($id)) x (id) ON t.id = x.id WHEN MATCHED THEN UPDATE SET v = v + 1 WHEN NOT MATCHED THEN INSERT VALUES (x.id, 0)",
		"INSERT INTO refers SELECT $id, id FROM t ORDER BY random() LIMIT 1",
		"UPDATE t SET id = id + 100 WHERE id = $id",
		"INSERT INTO parts VALUES ($few, $id)",
		"INSERT INTO parts0 VALUES ($few, $id)",
		"INSERT INTO parts11 VALUES (11, $id)",
		"UPDATE parts SET v = v + 1 WHERE id % 7 = $few",
		"UPDATE parts1 SET id = 10 + (id + 3) % 10 WHERE v = $id",
		"DELETE FROM parts WHERE v % 3 = 0",
		"UPDATE parent SET id = id + 1 WHERE id = $id",
		"INSERT INTO parent VALUES ($id)",
		"INSERT INTO child VALUES ($id, 1)",
		"DELETE FROM child WHERE id % 5 = $one",
		"INSERT INTO whole VALUES ($one, $id)",
		"UPDATE whole SET id = (id + 1) % 6 WHERE v % 4 = 1",
		"DELETE FROM whole WHERE v < $id",
		"INSERT INTO below VALUES ($id)",
		"UPDATE above SET id = id + 1 WHERE id = $id",
		"DELETE FROM above WHERE id > 20",
		"INSERT INTO above VALUES ($id)",
		"TRUNCATE refers",
		"DO \$\$ BEGIN INSERT INTO t VALUES ($id, 2); EXCEPTION WHEN unique_violation THEN INSERT INTO parent VALUES ($id); END \$\$");
	return $all[ rand @all ];
}

# Transactions of a writer. The other programs disturb it, so an error is no failure.
sub write_rows
{
	my ($number) = @_;
	my $session = session();
	$session->run('SET pinpoint.notify = off') if $number % 2;
	my @left;
	foreach my $round (1 .. $rounds)
	{
		my @statements = ('BEGIN' . (rand() < 0.1 ? ' ISOLATION LEVEL REPEATABLE READ' : rand() < 0.1 ? ' ISOLATION LEVEL SERIALIZABLE' : ''));
		my $depth = 0;
		foreach (1 .. 1 + rand 4)
		{
			push @statements, 'SAVEPOINT s' . ++$depth if rand() < 0.3;
			push @statements, change();
			push @statements, 'ROLLBACK TO s' . $depth-- if $depth && rand() < 0.3;
			push @statements, 'RELEASE s' . $depth-- if $depth && rand() < 0.3;
			push @statements, 'SELECT pg_sleep(' . rand(0.02) . ')' if rand() < 0.3;
		}
		my $end = rand() < 0.15 ? 'ROLLBACK' : 'COMMIT';
		if ($number % 2 && rand() < 0.2)
		{
			$end = "PREPARE TRANSACTION 'w$number.$round'";
			push @left, "w$number.$round";
		}
		if (rand() < 0.02)
		{
			@statements = (new_table($number, $round));
			$end = 'SELECT 1';
		}
		my $done = eval {
			foreach (@statements, $end)
			{
				my $result = $session->query($_);
				die 'the connection has ended' unless defined $result->status;
				last if $result->error;
			}
			$session->query('ROLLBACK');
			$session->query((rand() < 0.7 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '" . shift(@left) . "'") if @left && rand() < 0.3;
			1;
		};
		next if $done;
		$session = session();
		$session->run('SET pinpoint.notify = off') if $number % 2;
	}
	eval { $session->query("COMMIT PREPARED '$_'") } foreach @left;
	return 0;
}

# Tables that come and go.
sub new_table
{
	my ($number, $round) = @_;
	my $name = "new_${number}_$round";
	my $from = 1000 * $number + 10 * ($round % 50);
	my @all = (
		["CREATE TABLE $name PARTITION OF parts FOR VALUES FROM ($from) TO (" . ($from + 10) . ')', "INSERT INTO $name VALUES ($from, 1)", "INSERT INTO parts VALUES ($from, 1)"],
		["CREATE TABLE $name () INHERITS (parent)", "INSERT INTO $name VALUES (1)", "INSERT INTO $name VALUES (2)"],
		['SELECT 1; DO $$ BEGIN EXECUTE (SELECT format(\'ALTER TABLE parts DETACH PARTITION %s\', min(inhrelid::regclass::text)) FROM pg_inherits'
		. ' WHERE inhparent = \'parts\'::regclass AND inhrelid::regclass::text LIKE \'new%\'); EXCEPTION WHEN OTHERS THEN NULL; END $$']);
	return @{ $all[ rand @all ] };
}

# A client. Its cache has the content of each table, as it was at the position or later. Returns the number of stale contents.
sub check_rows
{
	my ($number) = @_;
	my %content = map { $_ => "(SELECT md5(coalesce(string_agg(x::text, ' ' ORDER BY x::text), '')) FROM $_ x)" } @tables;
	my $list = join ', ', map { "'$_'" } @tables;
	my ($position, %cache, $session);
	my ($stale, $looks, $unchanged) = (0, 0, 0);
	until (is_over() && $looks > 10)
	{
		my $done = eval {
			$session //= session();
			my $known = defined $position ? "'$position'" : 'NULL';
			# The contents are those of a moment before the answer.
			my @row = @{ run_all($session, "SELECT array_to_string(c.changed, ' '), c.position, " . join(', ', map { $content{$_} } @tables)
					. " FROM pinpoint.changed_since($known, $list) c")->rows->[0] };
			my %changed = map { $_ => 1 } split / /, shift @row;
			my $next = shift @row;
			my %now;
			@now{@tables} = @row;
			foreach (grep { !$changed{$_} && defined $cache{$_} } @tables)
			{
				$unchanged++;
				next if $cache{$_} eq $now{$_};
				$stale++;
				print STDERR "stale: $_ at $known, $next\n";
			}
			sleep rand 0.01 if rand() < 0.3;
			my @read = grep { $changed{$_} || !defined $cache{$_} } @tables;
			my %read;
			@read{@read} = @{ run_all($session, 'SELECT ' . join ', ', map { $content{$_} } @read)->rows->[0] } if @read;
			@cache{@read} = @read{@read};
			$position = $next;
			$looks++;
			1;
		};
		undef $session unless $done;
		sleep rand 0.03 if rand() < 0.5;
	}
	print STDERR "client $number: $looks looks, $unchanged unchanged tables\n";
	return $stale + ($unchanged < 10 ? 100 : 0);
}

# Run a function in a process.
sub begin
{
	my ($function, $number) = @_;
	defined(my $pid = fork) or die "fork: $!";
	return $pid if $pid;
	srand $seed * 100 + $number;
	my $result = eval { $function->($number) } // do { print STDERR "process $number: $@"; 101 };
	POSIX::_exit($result > 250 ? 250 : $result);
}

my @clients = map { begin(\&check_rows, $_) } 11 .. 13;
my @writers = map { begin(\&write_rows, $_) } 1 .. 5;
my $wrote = sub { return $node->safe_psql('managed', 'SELECT pg_snapshot_xmax(pg_current_snapshot())'); };
my $first = $wrote->();

# A crash in between: positions, and prepared transactions, are older than it.
ok(wait_until(sub { ($node->psql('managed', 'SELECT count(*) > 0 FROM pg_prepared_xacts'))[1] eq 't' && $wrote->() > $first + 100 }), 'transactions are prepared');
$node->stop('immediate');
$node->start;

my @failed = grep { waitpid($_, 0); $? } @writers;
is(scalar @failed, 0, 'all writers have ended');
run_all($setup = session(), "COMMIT PREPARED '$_->[0]'") foreach @{ session()->run('SELECT gid FROM pg_prepared_xacts')->rows };
append_to_file("$control/over", '');
foreach (@clients)
{
	waitpid $_, 0;
	is($? >> 8, 0, 'no stale content');
}
note 'measured: transactions: ', $wrote->() - $first;

done_testing();
