# pg_upgrade of a server that has the extension, whether or not the library is
# preloaded on either side.
#
# PINPOINT_TEST_OLD_PREFIX is the installation of an older server, which has
# pg_pinpoint as well; without it the server is upgraded to its own version.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PinpointTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $old_prefix = $ENV{PINPOINT_TEST_OLD_PREFIX};
my $tmp        = PostgreSQL::Test::Utils::tempdir_short();

# Both servers with the same locale and without checksums, whatever the version's
# defaults are.
my @initdb = ('--locale', 'C', '--encoding', 'UTF8');
sub init
{
	my ($node, $preload) = @_;
	my @checksums = $node->pg_version >= 18 ? '--no-data-checksums' : ();
	$node->init(extra => [ @initdb, @checksums ]);
	preload($node, $preload);
	return;
}

sub preload
{
	my ($node, $preload) = @_;
	$node->append_conf('postgresql.conf',
		'shared_preload_libraries = ' . ($preload ? "'pg_pinpoint'" : "''"));
	return;
}

# Sends a notification in each way.
sub notifies
{
	my ($node, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $session = connect_to($node);
	my $extension = $session->value(q{SELECT extversion FROM pg_extension WHERE extname = 'pg_pinpoint'});
	$session->run("LISTEN a; NOTIFY a, 'statement'; SELECT pg_notify('a', 'function'), pinpoint.notify('a', 'ours')");
	is_deeply(
		[ sort @{ all_as_text($session->take_notifications) } ],
		[ 'a/function', 'a/ours', 'a/statement' ],
		"$name: NOTIFY works, with version $extension of the extension");
	$session->close;
	return;
}

my $case = 0;
foreach my $old_preloads (1, 0)
{
	foreach my $new_preloads (1, 0)
	{
		$case++;
		my $name = join ', ', map { $_->[1] . ($_->[0] ? ' preloads' : ' does not preload') }
		  [ $old_preloads, 'old' ], [ $new_preloads, 'new' ];
		my $old = PostgreSQL::Test::Cluster->new("old_$case",
			defined $old_prefix ? (install_path => $old_prefix) : ());
		my $new = PostgreSQL::Test::Cluster->new("new_$case");
		init($old, $old_preloads);
		init($new, $new_preloads);

		$old->start;
		$old->safe_psql('postgres', 'CREATE EXTENSION pg_pinpoint');

		# The label of a watched table can only be restored where the library is loaded.
		# An older version of the extension has no watched tables.
		my $watches = $new_preloads
		  && $old->safe_psql('postgres', q{SELECT to_regprocedure('pinpoint.watch(regclass, text)') IS NOT NULL}) eq 't';
		$old->safe_psql('postgres', q{CREATE TABLE t (id int); SELECT pinpoint.watch('t', 'a')}) if $watches;
		notifies($old, "$name: before");
		my $position = $old_preloads && $old->safe_psql('postgres', 'SELECT pinpoint.position()');
		$old->stop;

		my @command = ('pg_upgrade', '--no-sync',
			'-d', $old->data_dir, '-D', $new->data_dir,
			'-b', $old->config_data('--bindir'), '-B', $new->config_data('--bindir'),
			'-s', $tmp, '-p', $old->port, '-P', $new->port);
		chdir $tmp or die "could not change to $tmp: $!";
		command_ok([ @command, '--check' ], "$name: pg_upgrade --check");
		command_ok(\@command, "$name: pg_upgrade");

		$new->start;
		notifies($new, "$name: after");
		if ($watches)
		{
			my $session = connect_to($new);
			$session->run('LISTEN a; INSERT INTO t VALUES (1)');
			is_deeply(all_as_text($session->take_notifications), ['a/'], "$name: a watched table is still watched");
			$session->close;
		}
		$new->stop;
		preload($new, 1);
		$new->start;
		notifies($new, "$name: after, preloaded");
		is($new->safe_psql('postgres', 'ALTER EXTENSION pg_pinpoint UPDATE; SELECT sum(transactions) FROM pinpoint.stat_notify'),
			1, "$name: through the engine");
		is($new->safe_psql('postgres', "SELECT changed FROM pinpoint.changed_since('$position', 'a', 'never')"),
			'{a,never}', "$name: a position of the old server")
		  if $old_preloads;
		$new->stop;
	}
}

done_testing();
