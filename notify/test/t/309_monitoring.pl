# The queries of contrib/monitoring and docs/monitoring.md work for the roles for which they are meant.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use JSON::PP qw(decode_json);
use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../../..";
my $node = new_node('main');
my $observer = connect_to($node);
$observer->run('CREATE ROLE monitor LOGIN IN ROLE pg_monitor');
my ($listener, $sender) = connect_many($node, 2);

# What was counted in databases that are gone stays counted.
foreach my $database (qw(gone lost))
{
	$observer->run("CREATE DATABASE $database");
	my $visitor = connect_to($node, dbname => $database);
	$visitor->run('CREATE EXTENSION pg_pinpoint');
	$visitor->run('NOTIFY nobody');
	$visitor->close;
	drop_database($observer, $database);
}
is($observer->value('SELECT count(*) FROM pinpoint.stat_notify WHERE datname IS NULL'), 2, 'two databases are gone');

my $monitor = connect_to($node, user => 'monitor');
$listener->run('LISTEN jobs');
$sender->run("NOTIFY jobs, '1'");
$listener->wait_for(1);
$listener->run('BEGIN');
$sender->run("NOTIFY jobs, '2'");

# The first row of a query, by column, or the first where something is so.
sub first_row
{
	my ($query, $condition) = @_;
	$query =~ s/;\s*$//;
	my $where  = defined $condition ? "WHERE $condition" : '';
	my $result = $monitor->query("SELECT row_to_json(q) FROM ($query) AS q $where");
	is($result->error ? $result->error->{M} : undef, undef, substr($query, 0, 60) =~ s/\n.*//sr) or return {};
	return $result->rows->[0] ? decode_json($result->rows->[0][0]) : {};
}

# A series of figures is told from others by its label alone.
sub is_told_apart
{
	my ($query, $label) = @_;
	$query =~ s/;\s*$//;
	is($monitor->query("SELECT count(*) - count(DISTINCT $label) FROM ($query) AS q")->rows->[0][0], 0, "each $label once");
}

# The blocks of a YAML file that follow such a line, by the name before it.
sub blocks
{
	my ($file, $name, $key) = @_;
	my $yaml = slurp_file("$root/contrib/monitoring/$file");
	my %blocks;
	while ($yaml =~ /^ +(?:- )?$name\n(?:(?! *$key).*\n)*?(?<indent> *)$key \|\n(?<sql>(?:\k<indent> +.*\n)+)/mg)
	{
		$blocks{ $+{name} } = $+{sql};
	}
	return ($yaml, \%blocks);
}

# ---- sql_exporter

my ($yaml, $queries) = blocks('pg_pinpoint.collector.yml', 'query_name: (?<name>\w+)', 'query:');
is_deeply([ sort keys %$queries ], [qw(pinpoint_listeners pinpoint_notify pinpoint_queue)], 'the queries for sql_exporter');
my %rows = map { $_ => first_row($queries->{$_}, $_ eq 'pinpoint_queue' ? undef : "datname = 'postgres'") } keys %$queries;
is_told_apart($queries->{$_}, 'datname') for qw(pinpoint_listeners pinpoint_notify);
my %metrics;
while ($yaml =~ /- metric_name: (\w+)\n(.*?)query_ref: (\w+)\n/sg)
{
	my ($metric, $text, $query) = ($1, $2, $3);
	my ($value)  = $text =~ /values: \[(\w+)\]/;
	my ($labels) = $text =~ /key_labels: \[(.*)\]/;
	$metrics{$metric} = $rows{$query}{$value};
	like($metrics{$metric} // 'nothing', qr/^[\d.e-]+$/, "$metric is a number");
	ok(defined $rows{$query}{$_}, "its label $_") for split /, /, $labels // '';
}
cmp_ok(scalar keys %metrics, '>', 20, 'there are metrics');
is_deeply(
	[ @metrics{qw(pinpoint_listeners pinpoint_transactions_total pinpoint_delivered_total pinpoint_queue_batches)} ],
	[ 1, 2, 1, 1 ], 'with the right values');
cmp_ok($metrics{pinpoint_listener_behind_seconds}, '>', 0, 'a listener is behind');

# ---- the dashboard

my $dashboard = decode_json(slurp_file("$root/contrib/monitoring/grafana-dashboard.json"));
my @used = map { $_->{expr} =~ /(pinpoint_\w+)/g } map { @{ $_->{targets} } } @{ $dashboard->{panels} };
cmp_ok(scalar @used, '>', 10, 'the dashboard shows metrics');
is_deeply([ grep { !exists $metrics{$_} } @used ], [], 'and each of them is there');

# ---- pgwatch

(undef, my $metrics) = blocks('pgwatch.yml', '(?<name>pinpoint_\w+):', '15:');
is_deeply([ sort keys %$metrics ], [qw(pinpoint_listeners pinpoint_notify pinpoint_queue)], 'the metrics for pgwatch');
ok(first_row($metrics->{$_})->{epoch_ns} > 1e18, 'when it was taken') for sort keys %$metrics;
is_told_apart($metrics->{$_}, 'tag_datname') for qw(pinpoint_listeners pinpoint_notify);

# ---- the page

my $page    = slurp_file("$root/docs/monitoring.md");
my ($first) = $page =~ /```sql\n(SELECT.*?)```/s;
is_deeply([ sort keys %{ first_row($first) } ], [qw(commits_waiting listeners_at_least queue_usage)], 'the query for any server');
my @questions = $page =~ /\| `(SELECT .*?)` \|/g;
cmp_ok(scalar @questions, '>', 4, 'there are questions');
first_row($_) for @questions;

$listener->run('COMMIT');
$_->close for $listener, $monitor;
server_is_clean($observer, 'nothing is left');

done_testing();
