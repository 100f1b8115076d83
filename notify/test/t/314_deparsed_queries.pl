# Queries that another library sends to another server: they contain pg_notify(), also
# if that server does not have the extension. deparser.c makes their texts.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $library = compile_deparser();
my $table   = 'CREATE TABLE shipped (id int, channel text); INSERT INTO shipped VALUES (1, $$a$$), (2, $$b$$)';
my $remote  = new_node('remote', preload => '');
$remote->safe_psql('postgres', $table);
my $receiver = connect_to($remote);
$receiver->run('LISTEN a; LISTEN b');

# Executes a statement. Returns the texts that the library has made of its query.
sub texts_of
{
	my ($node, $sql) = @_;
	my $stderr = '';
	$node->psql('postgres', $sql, stderr => \$stderr, on_error_die => 1);
	return $stderr =~ /NOTICE:  (?:before|after): ([^;]*);/g;
}

my $inlined = 'CREATE FUNCTION inlined(c text) RETURNS void VOLATILE LANGUAGE sql AS $$SELECT pg_notify(c, $s$inlined$s$)$$';
$remote->safe_psql('postgres', $inlined);

foreach my $preload ("pg_pinpoint, $library", "$library, pg_pinpoint")
{
	my $order = $preload =~ /^pg_pinpoint/ ? 'pg_pinpoint is first' : 'pg_pinpoint is second';
	my $node  = new_node($order =~ s/ /_/gr, preload => $preload);
	$node->safe_psql('postgres', "$table; $inlined");
	my $observer = connect_to($node);
	my $listener = connect_to($node);
	$listener->run('LISTEN a; LISTEN b');

	foreach my $enabled ('on', 'off')
	{
		foreach my $case (
			[ 'SELECT pg_notify(channel, $$direct$$) FROM shipped', [ 'a/direct', 'b/direct' ] ],
			[ 'SELECT inlined(channel) FROM shipped', [ 'a/inlined', 'b/inlined' ] ],
			[ 'WITH s AS MATERIALIZED (SELECT pg_notify(channel, id::text) FROM shipped) SELECT count(*) FROM s, shipped', [ 'a/1', 'b/2' ] ],
			[ 'SELECT pg_notify(channel, pg_notification_queue_usage()::text) FROM shipped WHERE id = 1', ['a/0'] ])
		{
			my ($query, $expected) = @$case;
			my $name = "$order, enabled = $enabled: $query";
			my $before = stat_queue($observer)->{published};
			my @texts = texts_of($node, "SET pinpoint.enabled = $enabled; $query");
			is_deeply([ sort @{ all_as_text($listener->wait_for(scalar @$expected)) } ], $expected, "$name: its notifications");
			is(stat_queue($observer)->{published} - $before, $enabled eq 'on' ? 1 : 0, "$name: its queue");
			is(scalar @texts, 2, "$name: two texts");
			foreach my $text (@texts)
			{
				$remote->safe_psql('postgres', $text);
				is_deeply([ sort @{ all_as_text($receiver->wait_for(scalar @$expected)) } ],
					$expected, "$name: on a server without pg_pinpoint");
			}
		}
	}
	$_->close for $observer, $listener;
	$node->stop;
}

$receiver->close;
$remote->stop;
done_testing();
