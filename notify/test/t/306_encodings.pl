# Databases and clients with encodings other than UTF8.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main');
my $observer = connect_to($node);
$observer->run(qq{CREATE DATABASE $_ ENCODING '$_' LOCALE 'C' TEMPLATE template0}) foreach qw(latin1 euc_jp sql_ascii);
$node->safe_psql($_, 'CREATE EXTENSION pg_pinpoint') foreach qw(latin1 euc_jp sql_ascii);

# Sends and receives bytes as clients of these encodings see them.
sub arrives
{
	my ($dbname, $from, $to, $channel, $payload, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $listener = connect_to($node, dbname => $dbname, client_encoding => $to);
	my $sender   = connect_to($node, dbname => $dbname, client_encoding => $from);
	my ($listen, $notification) = @$expected;
	$listener->run(qq{LISTEN "$listen"});
	my $published = stat_queue($observer)->{published};
	$sender->run(qq{NOTIFY "$channel", '$payload'; SELECT pg_notify('$channel', '$payload')});
	$sender->run(qq{SELECT pg_notify('$channel', '$payload')});
	is_deeply(all_as_text($listener->wait_for(2)), [ ("$listen/$notification") x 2 ], $name);
	is(stat_queue($observer)->{published}, $published + 2, "$name, through pg_pinpoint");
	is_deeply($sender->run("SELECT changed FROM pinpoint.changed_since(NULL, '$channel')")->rows,
		[ ["{$channel}"] ], "$name: changed_since()");
	$_->close foreach $listener, $sender;
	return;
}

# ---- the same characters in different bytes

arrives('latin1', 'LATIN1', 'UTF8', "caf\xe9", "\xfc", [ "caf\xc3\xa9", "\xc3\xbc" ], 'LATIN1 to UTF8');
arrives('latin1', 'UTF8', 'LATIN1', "caf\xc3\xa9", "\xc3\xbc", [ "caf\xe9", "\xfc" ], 'UTF8 to LATIN1');

# In SJIS, the second byte of some characters is a backslash or a letter.
arrives('euc_jp', 'SJIS', 'EUC_JP', "\x83\x5c\x94\x5c", "\x95\x5c", [ "\xa5\xbd\xc7\xbd", "\xc9\xbd" ], 'SJIS to EUC_JP');
arrives('euc_jp', 'UTF8', 'SJIS', "\xe3\x82\xbd\xe8\x83\xbd", "\xe8\xa1\xa8", [ "\x83\x5c\x94\x5c", "\x95\x5c" ], 'UTF8 to SJIS');
arrives('postgres', 'SJIS', 'SJIS', "\x83\x5c\x94\x5c", "\x95\x5c", [ "\x83\x5c\x94\x5c", "\x95\x5c" ], 'SJIS in a database with UTF8');
arrives('sql_ascii', 'SQL_ASCII', 'SQL_ASCII', "\xff\xfe", "\x80", [ "\xff\xfe", "\x80" ], 'bytes without an encoding');

# ---- the same bytes are different channels in different databases

my %listeners = map { $_ => connect_to($node, dbname => $_, client_encoding => 'SQL_ASCII') } qw(latin1 euc_jp sql_ascii);
my %senders   = map { $_ => connect_to($node, dbname => $_, client_encoding => 'SQL_ASCII') } keys %listeners;
$_->run(qq{LISTEN "\xa5\xbd"}) foreach values %listeners;
$senders{$_}->run(qq{NOTIFY "\xa5\xbd", '$_'}) foreach sort keys %senders;
is_deeply(
	{ map { $_ => all_as_text($listeners{$_}->wait_for(1)) } keys %listeners },
	{ map { $_ => ["\xa5\xbd/$_"] } keys %listeners },
	'the same bytes in three databases: each receives its own');

# ---- long names are cut between characters of the database

my $long = $senders{euc_jp};
foreach my $bytes ("\xa5\xbd" x 40, 'x' . "\xa5\xbd" x 40, "\x8f\xb0\xa1" x 30)
{
	my $width    = ord($bytes) == 0x8f ? 3 : 2;
	my $ascii    = $bytes =~ /^x/ ? 1 : 0;
	my $expected = substr $bytes, 0, $ascii + $width * int((63 - $ascii) / $width);
	$listeners{euc_jp}->run(qq{LISTEN "$bytes"});
	$long->run(qq{NOTIFY "$bytes", 'long'});
	is_deeply(all_as_text($listeners{euc_jp}->wait_for(1)),
		["$expected/long"], 'a name of ' . length($expected) . ' of ' . length($bytes) . ' bytes');

	# The function does not cut names.
	error_is($long->query(qq{SELECT pg_notify('$bytes', '')}), '22023', 'channel name too long',
		undef, 'pg_notify() refuses it');
	$long->run(qq{SELECT pg_notify('$expected', 'again')});
	is_deeply(all_as_text($listeners{euc_jp}->wait_for(1)), ["$expected/again"], 'and takes the cut name');
	$listeners{euc_jp}->run(qq{UNLISTEN "$bytes"});
}
is_deeply($listeners{euc_jp}->run('SELECT pg_listening_channels()')->rows,
	[ ["\xa5\xbd"] ], 'UNLISTEN cuts names likewise');

# ---- invalid bytes fail before they are sent

my $utf8 = connect_to($node);
foreach my $sql (qq{NOTIFY a, '\xff'}, qq{NOTIFY "\xe9"}, qq{LISTEN "\xe9"}, qq{SELECT pg_notify('a', '\xc3')},
	q{SELECT pg_notify('a', E'\xff')})
{
	my $result = $utf8->query($sql);
	is($result->error && $result->error->{C}, '22021', 'invalid bytes are refused: ' . $sql =~ s/[^ -~]/?/gr);
}

# What a client cannot represent ends its session: see 101.  The others go on.
my ($cannot, $can) = map { connect_to($node, client_encoding => $_) } qw(LATIN1 UTF8);
$_->run('LISTEN a') foreach $cannot, $can;
$utf8->run(qq{NOTIFY a, '\xe8\xa1\xa8'});
my ($fatal) = grep { $_->{type} eq 'E' } $cannot->receive_until('EOF')->messages;
is_deeply([ @{ $fatal->{fields} }{qw(S C)} ], [ 'FATAL', '22P05' ], 'a client that cannot represent it is told');
is_deeply(all_as_text($can->wait_for(1)), ["a/\xe8\xa1\xa8"], 'and another one receives it');

# A client that changes its encoding receives the rest in the new one.
$can->run(q{SET client_encoding = 'SJIS'});
$utf8->run(qq{NOTIFY a, '\xe8\xa1\xa8'});
is_deeply(all_as_text($can->wait_for(1)), ["a/\x95\x5c"], 'a client that has changed its encoding');

# ---- pinpoint.shared_channels, whose names are in the encoding of the database

my $sharer = connect_to($node, dbname => 'latin1', client_encoding => 'UTF8');
$sharer->run(qq{SET pinpoint.shared_channels = 'caf\xc3\xa9*'; LISTEN "caf\xc3\xa9 1"});
is($observer->value('SELECT count(*) FROM pinpoint.stat_listeners WHERE pid = ' . $sharer->pid), 1, 'it listens');
my $pattern = connect_to($node, dbname => 'latin1');
is_deeply($pattern->run('SELECT shared FROM pinpoint.listening WHERE pid = ' . $sharer->pid)->rows,
	[ ['t'] ], 'a pattern matches in the encoding of the database');

$_->close foreach values %listeners, values %senders, $can, $utf8, $sharer, $pattern;
server_is_clean($observer, 'nothing is left');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'no process has crashed');

done_testing();
