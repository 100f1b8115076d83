# What a replication slot has of notifications: docs/standby.md.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('primary', conf => "pinpoint.replicate = on\nwal_level = logical",
	init => { allows_streaming => 1 });
my $sender = connect_to($node);
my ($test_decoding) = glob "@{[ pkglibdir() ]}/test_decoding.*";

# What reads the messages of a slot: the lines behind the first, with the names of
# channels in place of their numbers.
sub notifications
{
	my @result;
	my @channels;
	my $all = 0;
	foreach my $message (@_)
	{
		my ($first, @lines) = split /\n/, $message, -1;
		my ($version, $pid, $nchannels, $nnotifications, $bytes, $before) = split / /, $first;
		is($version, 1, 'the version of the form');
		is($pid, $sender->pid, 'the PID of the sender');
		is(pop @lines, '', 'whole lines');
		@channels = () if $before == 0;
		foreach my $line (@lines)
		{
			s/\\(.)/$1 eq 'n' ? "\n" : $1/ge for my $plain = $line;
			if (@channels < $nchannels)
			{
				push @channels, $plain;
				next;
			}
			my ($number, $payload) = $plain =~ /^(\d+)\t(.*)$/s or die "not a notification: $line";
			push @result, "$channels[$number]/$payload";
		}
		$all = $nnotifications;
	}
	is(scalar @result, $all, 'all notifications of the transaction');
	return \@result;
}

# ---- pgoutput, in every server

$sender->run('CREATE TABLE t (i int); CREATE PUBLICATION p FOR TABLE t');
$sender->run(q(SELECT pg_create_logical_replication_slot('p', 'pgoutput')));
$sender->run(qq(BEGIN; INSERT INTO t VALUES (1); NOTIFY a, 'one'; SELECT pg_notify('b c', E'\\\\ two\\n\\tlines ä'); COMMIT));
$sender->run(q(BEGIN; NOTIFY a, 'never'; ROLLBACK));

# A message of pgoutput: 'M', flags, 8 bytes of LSN, prefix, 0, 4 bytes of length, content.
sub from_pgoutput
{
	my @messages = map {
		my (undef, undef, undef, $prefix, $content) = unpack 'a C a8 Z* N/a*', pack('H*', $_->[0]);
		$prefix eq 'pg_pinpoint' ? $content : ();
	  } @{
		$sender->run(
			q{SELECT encode(data, 'hex') FROM pg_logical_slot_get_binary_changes('p', NULL, NULL,
			  'proto_version', '1', 'publication_names', 'p', 'messages', 'on') WHERE get_byte(data, 0) = ascii('M')})->rows
	  };
	return @messages;
}
is_deeply(notifications(from_pgoutput()), [ 'a/one', "b c/\\ two\n\tlines ä" ],
	'pgoutput has what was committed, and nothing else');

$sender->run(q(SELECT count(pg_notify('c' || i % 7, i || repeat('x', 1000))) FROM generate_series(1, 2000) i));
my @pieces = from_pgoutput();
cmp_ok(scalar @pieces, '>', 2, 'a long transaction comes in pieces');
cmp_ok(length $_, '<', 300_000, 'of a bounded size') for @pieces;
is_deeply(notifications(@pieces), [ map { 'c' . $_ % 7 . "/$_" . 'x' x 1000 } 1 .. 2000 ], 'with all of it');

# ---- test_decoding, a text, by SQL and by pg_recvlogical

SKIP:
{
	skip 'this server was built without contrib/test_decoding', 2 unless defined $test_decoding;

	$sender->run(q(SELECT pg_create_logical_replication_slot('d', 'test_decoding')));
	$sender->run(q(BEGIN; INSERT INTO t VALUES (2); NOTIFY a, 'in text'; COMMIT));
	my $pid = $sender->pid;
	my $expected = qr/^message: transactional: 1 prefix: pg_pinpoint, sz: \d+ content:1 $pid 1 1 \d+ 0\na\n0\tin text$/m;
	my ($message) = grep { /^message/ } map { $_->[0] } @{ $sender->run(
			q{SELECT data FROM pg_logical_slot_peek_changes('d', NULL, NULL)})->rows };
	like($message, $expected, 'test_decoding has it, by SQL');

	my $end = $sender->value('SELECT pg_current_wal_insert_lsn()');
	my ($out, $err) = run_command([
		'pg_recvlogical', '-d', $node->connstr('postgres'), '--slot', 'd', '--start',
		'--endpos', $end, '--no-loop', '-f', '-' ]);
	like($out, $expected, 'and by pg_recvlogical');
}

done_testing();

sub pkglibdir
{
	my ($dir) = run_command([ 'pg_config', '--pkglibdir' ]);
	return $dir;
}
