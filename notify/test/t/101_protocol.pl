# Where notifications stand among the other messages of the protocol.
#
# Everything here runs three times: on a server without the library, in a
# database without the extension, and through the engine.  The first is
# PostgreSQL as it is, and says what is right.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use Test::More;

# Message types: A notification, C command complete, Z ready for query,
# T row description, D data row, E error, N notice, 1 parse complete, 2 bind
# complete, 3 close complete, t parameter description, n no data, I empty query,
# V function call response, G and H copy in and out, d copy data, c copy done.

my $stock    = new_node('stock', preload => '', max_connections => 100);
my $pinpoint = new_node('pinpoint', max_connections => 100);
$pinpoint->safe_psql('postgres', 'CREATE DATABASE no_extension');

# The sessions of the way under test; made anew for each subtest.
my ($node, $dbname, $sender, $listener);

sub session { return connect_to($node, dbname => $dbname, @_); }

# Waits until a session waits for an advisory lock.
sub wait_for_lock_wait
{
	my ($session, $pid) = @_;
	wait_until(
		sub {
			return $session->value(
				'SELECT count(*) FROM pg_locks'
				  . " WHERE pid = $pid AND NOT granted AND locktype = 'advisory'");
		}) or die "process $pid does not wait for the lock";
	return;
}

my @scenarios = (

	'self-notification, simple protocol' => sub {
		is($sender->query('LISTEN a; NOTIFY a')->types,
			'CCAZ', 'LISTEN and NOTIFY in one query string');
		is($sender->query('NOTIFY a')->types, 'CAZ', 'NOTIFY');
		is($sender->query("SELECT pg_notify('a', '')")->types,
			'TDCAZ', 'pg_notify()');
		is($sender->query('NOTIFY a; SELECT 1')->types,
			'CTDCAZ', 'NOTIFY in front of a query');
		is($sender->query('NOTIFY a; SELECT sqrt(random() - 2)')->types,
			'CTEZ', 'NOTIFY in front of a query that fails');
		is($sender->query('BEGIN')->types,  'CZ',  'BEGIN');
		is($sender->query('NOTIFY a')->types,  'CZ',  'NOTIFY in a block');
		is($sender->query('SELECT 1')->types,  'TDCZ', 'a query in the block');
		is($sender->query('COMMIT')->types, 'CAZ', 'COMMIT');
		is($sender->query('BEGIN; NOTIFY a; COMMIT; SELECT 1')->types,
			'CCCTDCAZ', 'a block in one query string');
		is($sender->query('BEGIN; NOTIFY a; COMMIT; BEGIN')->types,
			'CCCCZ', 'not at the end of the query string but of the next block');
		is($sender->query('ROLLBACK')->types, 'CAZ', 'which rolls back');
		is($sender->query("BEGIN; NOTIFY a; ROLLBACK")->types,
			'CCCZ', 'NOTIFY rolled back');
		is_deeply(
			all_as_text($sender->query("NOTIFY a, '2'; NOTIFY a, '1'; NOTIFY a, '2'")
				  ->notifications),
			[ 'a/2', 'a/1' ],
			'order kept, duplicates folded');
	},

	'self-notification, extended protocol' => sub {
		$sender->run('LISTEN a');
		$sender->send_statement('NOTIFY a')->send_sync;
		is($sender->result->types, '12CAZ', 'NOTIFY');

		$sender->send_parse('named', 'SELECT pg_notify($1, $2)')->send_sync;
		is($sender->result->types, '1Z', 'pg_notify() prepared');
		for my $payload (1 .. 7)    # past the change to a generic plan
		{
			$sender->send_bind('named', 'a', $payload);
			$sender->send_execute->send_sync;
			is($sender->result->types, '2DCAZ', "pg_notify() executed, $payload");
		}

		$sender->send_statement("NOTIFY a, '$_'") for 1 .. 3;
		$sender->send_flush;
		is($sender->receive_until('1')->types . $sender->receive_until('C')->types,
			'12C', 'nothing comes before the end of a pipeline');
		$sender->send_sync;
		is($sender->result->types, '12C12CAAAZ', 'but at its end');

		$sender->send_statement("NOTIFY a, '$_'")->send_sync for 1 .. 3;
		$sender->send_statement('SELECT 1')->send_sync;
		is(join(' ', map { $sender->result->types } 1 .. 4),
			'12CAZ 12CAZ 12CAZ 12DCZ', 'a pipeline of transactions');

		$sender->send_statement('NOTIFY a');
		$sender->send_statement('SELECT sqrt(random() - 2)')->send_sync;
		is($sender->result->types, '12C12EZ', 'a pipeline that fails');

		$sender->send_statement('BEGIN')->send_sync;
		$sender->send_statement('NOTIFY a')->send_sync;
		$sender->send_statement('COMMIT')->send_sync;
		is(join(' ', map { $sender->result->types } 1 .. 3),
			'12CZ 12CZ 12CAZ', 'a block, each statement with its own Sync');
		is_deeply(
			[ map { $_->{pid} } $sender->take_notifications ],
			[ ($sender->pid) x 15 ],
			'all from this session');
	},

	'function call protocol' => sub {
		$sender->run('LISTEN a');
		my $oid = $sender->value("SELECT 'pg_notify(text,text)'::regprocedure::oid");
		my $call = $sender->send_function_call($oid, 'a', 'fast path')->result;
		is($call->types, 'VAZ', 'pg_notify() called by its OID');
		is(as_text($call->notifications), 'a/fast path', 'with its payload');
	},

	'procedures that commit' => sub {
		my $gate = session();
		$gate->run(q{
			CREATE PROCEDURE notify_twice() LANGUAGE plpgsql AS $$
			BEGIN
				NOTIFY a, '1';
				COMMIT;
				RAISE NOTICE 'committed 1';
				PERFORM pg_advisory_lock(1);
				PERFORM pg_notify('a', '2');
				COMMIT;
				RAISE NOTICE 'committed 2';
				PERFORM pg_advisory_unlock(1);
			END $$;
			CREATE PROCEDURE commit_twice() LANGUAGE plpgsql AS $$
			BEGIN
				RAISE NOTICE 'before';
				PERFORM pg_advisory_lock(1);
				COMMIT;
				RAISE NOTICE 'between';
				PERFORM pg_advisory_unlock(1);
				COMMIT;
				RAISE NOTICE 'after';
			END $$});
		$_->run('LISTEN a') for $sender, $listener;

		$gate->run('SELECT pg_advisory_lock(1)');
		$sender->send_query('CALL notify_twice()');
		is(as_text($listener->wait_for(1)),
			'a/1', 'another session gets what was committed first while it runs');
		wait_for_lock_wait($gate, $sender->pid);
		$gate->run('SELECT pg_advisory_unlock(1)');
		my $call = $sender->result;
		is($call->types, 'NNCAAZ', 'its own session gets both at the end');
		is_deeply(all_as_text($call->notifications), [ 'a/1', 'a/2' ], 'in order');
		is(as_text($listener->wait_for(1)), 'a/2', 'and the other the second');

		$gate->run('SELECT pg_advisory_lock(1)');
		$listener->send_query('CALL commit_twice()');
		wait_for_lock_wait($gate, $listener->pid);
		$sender->run("NOTIFY a, 'from outside'");
		$gate->run('SELECT pg_advisory_unlock(1)');
		is($listener->result->types, 'NNNCAZ',
			'a listener that runs a procedure gets nothing in its middle');

		$gate->run('SELECT pg_advisory_lock(1)');
		$listener->send_statement('CALL commit_twice()')->send_sync;
		wait_for_lock_wait($gate, $listener->pid);
		$sender->run("NOTIFY a, 'from outside'");
		$gate->run('SELECT pg_advisory_unlock(1)');
		is($listener->result->types, '12NNNCAZ', 'nor in the extended protocol');

		is( $sender->query(
				q{DO $$ BEGIN NOTIFY a; COMMIT; RAISE NOTICE 'x'; NOTIFY a; COMMIT; RAISE NOTICE 'y'; END $$}
			)->types,
			'NNCAAZ', 'a DO block that commits');
		$gate->run('DROP PROCEDURE notify_twice, commit_twice');
	},

	# Between the moment at which a listener is known to have something to
	# read and the arrival of the signal, it may end any number of
	# transactions of its own.  Many other listeners, who get their signals
	# first, make that time long.
	'many transactions in one command' => sub {
		my @others = connect_many($node, 80, dbname => $dbname);
		$_->run('LISTEN a') for @others;
		$listener->run('LISTEN a');
		$sender->run(
			q{CREATE PROCEDURE commit_often() LANGUAGE plpgsql AS $$
			BEGIN
				RAISE NOTICE 'begun';
				FOR i IN 1 .. 2000 LOOP COMMIT; END LOOP;
			END $$});
		my %command = (
			'a procedure'    => 'CALL commit_often()',
			'a query string' => q{DO $$ BEGIN RAISE NOTICE 'begun'; END $$;}
			  . 'BEGIN; SELECT; COMMIT;' x 500);
		foreach my $what (sort keys %command)
		{
			my %seen;
			for my $payload (1 .. 30)
			{
				$listener->send_query($command{$what});
				$listener->receive_until('N');
				$sender->run("NOTIFY a, '$payload'");
				my $types = $listener->result->types;
				$seen{ $types =~ s/A?Z$//r =~ /A/ ? 'too early' : 'right' }++;
				as_text($listener->wait_for(1)) eq "a/$payload" or $seen{wrong}++;
			}
			is_deeply(\%seen, { right => 30 }, "nothing comes in the midst of $what");
		}
		$sender->run('DROP PROCEDURE commit_often');
		$_->close for @others;
	},

	'listener in a transaction block' => sub {
		$listener->run('LISTEN a');
		for my $end ('COMMIT', 'ROLLBACK')
		{
			$listener->run('BEGIN');
			$sender->run("NOTIFY a, '1'");
			is($listener->query('SELECT 1')->types, 'TDCZ', 'nothing in the block');
			$sender->run("NOTIFY a, '2'");
			is($listener->query('')->types, 'IZ', 'nothing at an empty query');
			is($listener->query($end)->types, 'CAAZ', "all at $end");
		}

		$listener->run('BEGIN');
		$listener->query('SELECT 1/0');
		$sender->run('NOTIFY a');
		my $refused = $listener->query('SELECT 1');
		is($refused->types,  'EZ', 'nothing in a failed block');
		is($refused->status, 'E',  'which is a failed block');
		is($listener->query('COMMIT')->types, 'CAZ', 'but at its end');

		$listener->run('BEGIN; SAVEPOINT s');
		$sender->run('NOTIFY a');
		is($listener->query('ROLLBACK TO s')->types, 'CZ', 'nothing at ROLLBACK TO');
		is($listener->query('RELEASE s')->types, 'CZ', 'nothing at RELEASE');
		is($listener->query('COMMIT AND CHAIN')->types,
			'CZ', 'nothing at COMMIT AND CHAIN, which goes on with a block');
		is($listener->query('COMMIT')->types, 'CAZ', 'but at the end of that');

		$listener->run('BEGIN ISOLATION LEVEL SERIALIZABLE');
		$listener->run('SELECT count(*) FROM pg_class');
		$sender->run('NOTIFY a');
		is($listener->query('COMMIT; SELECT 1')->types,
			'CTDCAZ', 'COMMIT in front of a query');
	},

	'listener busy with one statement' => sub {
		my $gate = session();
		$listener->run('LISTEN a');
		for my $case (
			[ 'SELECT pg_advisory_lock(1)',                  'TDCAZ' ],
			[ 'SELECT 1/count(*) FROM pg_advisory_lock(1) HAVING count(*) > 1', 'TCAZ' ],
			[ 'SELECT 1/(pg_advisory_lock(1)::text = \'x\')::int', 'TEAZ' ])
		{
			my ($sql, $types) = @$case;
			$gate->run('SELECT pg_advisory_lock(1)');
			$listener->send_query($sql);
			wait_for_lock_wait($gate, $listener->pid);
			$sender->run('NOTIFY a');
			$gate->run('SELECT pg_advisory_unlock(1)');
			is($listener->result->types, $types, "comes at the end of: $sql");
			$listener->run('SELECT pg_advisory_unlock_all()');
		}
	},

	'idle listener' => sub {
		$listener->run('LISTEN a');
		for my $payload (1 .. 20)
		{
			$sender->run("NOTIFY a, '$payload'");
			is(as_text($listener->wait_for(1)), "a/$payload",
				'comes without any query');
		}
		is($listener->query('SELECT 1')->types, 'TDCZ', 'and only once');
	},

	# A transaction in which no statement runs: PostgreSQL begins one at Parse,
	# and ends it at Sync.
	'extended protocol without Execute' => sub {
		$listener->run('LISTEN a');
		$listener->send_parse('s', 'SELECT 1')->send_flush;
		is($listener->receive_until('1')->types, '1', 'Parse');
		$sender->run('NOTIFY a');
		$listener->send_parse('', 'SELECT 2')->send_flush;
		is($listener->receive_until('1')->types, '1', 'nothing after Parse');
		$listener->send('D', "Ss\0")->send_flush;
		is($listener->receive_until('T')->types, 'tT', 'nor after Describe');
		$listener->send_bind('s')->send_flush;
		is($listener->receive_until('2')->types, '2', 'nor after Bind');
		$listener->send('C', "Ss\0")->send_flush;
		is($listener->receive_until('3')->types, '3', 'nor after Close');
		$listener->send_sync;
		is($listener->result->types, 'AZ', 'but at Sync');

		$listener->send_parse('', 'SELECT no_such_column')->send_flush;
		is($listener->receive_until('E')->types, 'E', 'a Parse that fails');
		$sender->run('NOTIFY a');
		$listener->send_sync;
		is($listener->result->types, 'AZ', 'then too at Sync');

		$listener->send_statement('SELECT generate_series(1, 3)')->send_flush;
		is($listener->receive_until('C')->types, '12DDDC', 'a portal run');
		$sender->run('NOTIFY a');
		$listener->send_sync;
		is($listener->result->types, 'AZ', 'then too at Sync');

		$listener->take_notifications;
		for my $payload (1 .. 300)
		{
			$listener->send_parse('', 'SELECT 1')->send_sync;
			$sender->run("NOTIFY a, '$payload'");
		}
		my @acknowledged = map { $listener->receive_until('Z')->types } 1 .. 300;
		is(join('', map { s/A//gr } @acknowledged), '1Z' x 300,
			'every Parse was answered');
		is_deeply(
			all_as_text($listener->wait_for(300)),
			[ map { "a/$_" } 1 .. 300 ],
			'and every notification came, in order');
	},

	'COPY and large results in progress' => sub {
		$sender->run('CREATE TABLE copied (i int)');
		$listener->run('LISTEN a');

		$listener->send_query('COPY copied FROM STDIN');
		is($listener->receive_until('G')->types, 'G', 'COPY FROM STDIN begins');
		$listener->send('d', "1\n");
		$sender->run('NOTIFY a');
		$listener->send('d', "2\n");
		$listener->send('c', '');
		is($listener->result->types, 'CAZ', 'COPY FROM STDIN is not disturbed');

		$listener->send_query('COPY copied FROM STDIN');
		$listener->receive_until('G');
		$sender->run('NOTIFY a');
		$listener->send('f', "changed my mind\0");
		is($listener->result->types, 'EAZ', 'nor one that fails');
		is($sender->value('SELECT count(*) FROM copied'), 2, 'all rows are there');
		$sender->run('DROP TABLE copied');

		# More than a socket takes: the server cannot have finished when the
		# notification is sent.
		my $rows = 100_000;
		$listener->send_query("COPY (SELECT generate_series(1, $rows)) TO STDOUT");
		$listener->receive_until('H');
		$sender->run('NOTIFY a');
		like($listener->result->types, qr/^d+cCAZ$/,
			'COPY TO STDOUT is not disturbed');
		$listener->send_query("SELECT generate_series(1, $rows)");
		$listener->receive_until('T');
		$sender->run('NOTIFY a');
		like($listener->result->types, qr/^D+CAZ$/, 'nor is a large result');
	},

	'sender, channel and payload' => sub {
		my $long_name    = "\xE2\x82\xAC" x 21;                  # 63 bytes
		my $long_payload = "\xE2\x82\xAC" x 2666 . 'x';          # 7,999 bytes
		my @messages     = (
			[ 'plain',      'payload' ],
			[ $long_name,   $long_payload ],
			[ 'Upper Case', "quotes ' and \" and \\, tab\t, new\nline" ],
			[ 'a "quoted" name', '' ],
			[ "\xC3\xA9t\xC3\xA9", "\xF0\x9F\x90\x98 4-byte character" ]);
		foreach my $message (@messages)
		{
			(my $quoted = $message->[0]) =~ s/"/""/g;
			$listener->run(qq(LISTEN "$quoted"));
			$sender->send_statement('SELECT pg_notify($1, $2)', @$message)->send_sync;
			is($sender->result->types, '12DCZ', 'sent');
			my ($got) = $listener->wait_for(1);
			is($got->{channel}, $message->[0], 'channel, byte by byte');
			is($got->{payload}, $message->[1], 'payload, byte by byte');
			is($got->{pid},     $sender->pid,  'PID of the sender');
		}

		$sender->send_statement('SELECT pg_notify($1, $2)', 'plain', 'x' x 8000)
		  ->send_sync;
		error_is($sender->result, '22023', 'payload string too long', undef,
			'8,000 bytes are too long');
		$sender->send_statement('SELECT pg_notify($1, $2)', 'x' x 64, '')->send_sync;
		error_is($sender->result, '22023', 'channel name too long', undef,
			'a name of 64 bytes too');
		$sender->run("NOTIFY plain, 'after errors'");
		is(as_text($listener->wait_for(1)), 'plain/after errors',
			'which harm neither session');
	},

	'client encodings' => sub {
		my $latin1 = session(client_encoding => 'LATIN1');
		$latin1->run('LISTEN a');
		$sender->run("NOTIFY a, '\xC3\xA9t\xC3\xA9'");
		is(as_text($latin1->wait_for(1)), "a/\xE9t\xE9",
			'the payload is converted for the listener');
		$latin1->run("LISTEN \"\xE9\"; NOTIFY \"\xE9\", '\xFC'");
		$sender->run("LISTEN \"\xC3\xA9\"");
		$latin1->run("NOTIFY \"\xE9\", '\xFC'");
		is(as_text($sender->wait_for(1)), "\xC3\xA9/\xC3\xBC",
			'and from the sender');

		# What cannot be converted cannot be delivered.  Skipping it would
		# break a promise, so the session ends; the others go on.
		$listener->run('LISTEN a');
		$sender->run("NOTIFY a, '\xE2\x98\x83'");
		$latin1->take_notifications;
		my $error = $latin1->receive_until('EOF')->error // {};
		is_deeply([ @$error{qw(S C)} ], [ 'FATAL', '22P05' ],
			'a payload that the client cannot take ends its session');
		is(as_text($listener->wait_for(1)), "a/\xE2\x98\x83",
			'others receive it');
	});

sub run_scenarios
{
	my $way;
	($way, $node, $dbname) = @_;
	for (my $i = 0; $i < @scenarios; $i += 2)
	{
		my ($name, $scenario) = @scenarios[ $i, $i + 1 ];
		$sender   = session();
		$listener = session();
		subtest "$way: $name" => $scenario;
		$_->close for $sender, $listener;
	}
	return;
}

run_scenarios('PostgreSQL', $stock, 'postgres');

my $observer = connect_to($pinpoint);
run_scenarios('without the extension', $pinpoint, 'no_extension');
is(stat_queue($observer)->{published}, 0, 'which did not touch the engine');

run_scenarios('through the engine', $pinpoint, 'postgres');
cmp_ok(stat_queue($observer)->{published}, '>', 300, 'which carried them');
server_is_clean($observer, 'nothing is left');

done_testing();
