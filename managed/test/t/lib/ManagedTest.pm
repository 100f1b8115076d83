=pod

=head1 NAME

ManagedTest - servers without the library, with managed/pinpoint.sql

=head1 DESCRIPTION

The database "managed" belongs to the role "app", which has no other
privileges, and has executed the file.  See also PinpointTest.

=cut

package ManagedTest;

use strict;
use warnings;

use Exporter 'import';
use FindBin;
use lib "$FindBin::RealBin/../../../notify/test/t/lib";
use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  managed_node
  managed_file
  install
  app
  run_all
  changed
  changes
  heard
);

# Faults that the tests must find, as replacements: with the name of one in PINPOINT_TEST_FAULT, a test fails.
my %faults = (
	# The identity survives a crash, which removes the rows.
	identity => [ "replace(gen_random_uuid()::text, '-', '')" => "'0'",
		'to_hex((extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint)' => "'1'" ],
	# A transaction that was prepared before a crash ends after it.
	prepared => [ 'x < i.xid AND' => 'false AND' ],
	# A row that a position needs was removed.
	removed => [ 'SELECT max(w.id::xid8)' => 'SELECT max(w.id::xid8) FILTER (WHERE false)' ],
	# A row is removed by a transaction that did not change its channel.
	others_row => [ 'w.channel = ch AND w.source = src AND' => 'w.source = src AND' ],
	# The trigger for rows of a partition does not fire, and that is not noticed.
	leaf => [ "ENABLE ALWAYS TRIGGER %I', t.relid::regclass, row_name" => "ENABLE REPLICA TRIGGER %I', t.relid::regclass, row_name",
		"WHEN 'A' THEN 'ALWAYS'" => "WHEN 'A' THEN 'REPLICA'", "THEN 'A' ELSE 'R' END AS mode" => "THEN 'R' ELSE 'R' END AS mode",
		'g.rows = m.mode, false) AS covered' => 'g.rows = m.mode, true) AS covered' ],
	# A statement names another parent of a table, which is not watched.
	parents => [ 'SELECT count(*) > 1 FROM' => 'SELECT count(*) < 0 FROM' ],
	# A transaction takes a position, changes a table, and commits.
	own => [ 'w.xid::text = own OR ' => '' ],
	# The definitions are not part of a position.
	definition => [ "string_agg(t.version, ';'" => "string_agg('', ';'" ]);

# The file, with replacements of its text.
sub managed_file
{
	my @replacements = (@_, @{ $faults{ $ENV{PINPOINT_TEST_FAULT} // '' } // [] });
	my $text = PostgreSQL::Test::Utils::slurp_file("$FindBin::RealBin/../../pinpoint.sql");
	while (my ($from, $to) = splice @replacements, 0, 2)
	{
		$text =~ s/\Q$from\E/$to/g or die "pinpoint.sql does not contain: $from";
	}
	my $path = "${PostgreSQL::Test::Utils::tmp_check}/pinpoint" . int(rand 1e9) . '.sql';
	PostgreSQL::Test::Utils::append_to_file($path, $text);
	return $path;
}

# Execute the file as README.md says.
sub install
{
	my ($node, %params) = @_;
	$node->command_ok([ 'psql', '-X', '-q', '-1', '-v', 'ON_ERROR_STOP=1', '-U', $params{user} // 'app', '-f',
			$params{file} // managed_file(), $params{dbname} // 'managed' ], $params{name} // 'the file is executed');
	return;
}

# Starts a server. Parameters: those of new_node(), and file.
sub managed_node
{
	my ($name, %params) = @_;
	my $file = delete $params{file};
	my $node = new_node($name, preload => '', %params);
	$node->safe_psql('postgres', 'CREATE ROLE app LOGIN');
	$node->safe_psql('postgres', 'CREATE DATABASE managed OWNER app');
	install($node, file => $file // managed_file());
	return $node;
}

# Opens a session.
sub app
{
	my ($node, %params) = @_;
	return connect_to($node, dbname => 'managed', user => 'app', %params);
}

# Execute statements, one after the other; die if one fails. Returns the last result.
sub run_all
{
	my ($session, @statements) = @_;
	my $result;
	foreach (@statements)
	{
		$result = $session->run($_);
		die "$_: " . $result->error->{M} if $result->error;
	}
	return $result;
}

# The channels that have changed since a position, and the next one.
sub changed
{
	my ($session, $position, @channels) = @_;
	my $list = join ', ', map { "'$_'" } @channels;
	my $result = run_all($session, "SELECT array_to_string(changed, ' '), position FROM pinpoint.changed_since('$position', $list)");
	return @{ $result->rows->[0] };
}

# The channels that these statements have changed, executed one after the other. Parameters: the session that asks, the one that
# executes, the channels, and the statements.
sub changes
{
	my ($asks, $executes, $channels, @statements) = @_;
	my $position = $asks->value('SELECT pinpoint.position()');
	run_all($executes, @statements);
	my ($changed) = changed($asks, $position, @$channels);
	return $changed;
}

my $fences = 0;

# Which of these channels a listener has received, without payloads. It listens on "t", on which the other session notifies last.
sub heard
{
	my ($listener, $notifies, @channels) = @_;
	my $fence = 'fence ' . ++$fences;
	run_all($notifies, "SELECT pg_notify('t', '$fence')");
	my %heard = map { $_->{channel} => 1 } grep { $_->{payload} eq '' } $listener->notifications_until('t', $fence);
	return join ' ', grep { $heard{$_} } @channels;
}

1;
