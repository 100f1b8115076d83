# An extension that was updated has the same objects, owners and privileges as
# a fresh one. An old version of the extension works with the new library.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use DecodingTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main', preload => 'pg_pinpoint_decoding');
$node->safe_psql('postgres', 'CREATE ROLE someone LOGIN');
$node->safe_psql('postgres', 'CREATE DATABASE fresh');

# Every object of the extension, with all that belongs to it
my $objects = q{
	WITH members AS (
		SELECT classid, objid, objsubid FROM pg_depend
		 WHERE deptype = 'e' AND refclassid = 'pg_extension'::regclass
		   AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_pinpoint_decoding'))
	SELECT pg_describe_object(classid, objid, objsubid),
		   obj_description(objid, classid::regclass::name),
		   coalesce(r.relowner, p.proowner, n.nspowner)::regrole,
		   coalesce(r.relacl, p.proacl, n.nspacl),
		   CASE WHEN r.oid IS NOT NULL THEN pg_get_viewdef(r.oid)
				WHEN p.oid IS NOT NULL THEN pg_get_functiondef(p.oid) END
	  FROM members
	  LEFT JOIN pg_class r ON classid = 'pg_class'::regclass AND r.oid = objid
	  LEFT JOIN pg_proc p ON classid = 'pg_proc'::regclass AND p.oid = objid
	  LEFT JOIN pg_namespace n ON classid = 'pg_namespace'::regclass AND n.oid = objid
	 ORDER BY 1};

$node->safe_psql('fresh', 'CREATE EXTENSION pg_pinpoint_decoding');
my $fresh = $node->safe_psql('fresh', $objects);
like($fresh, qr/^view pinpoint_decoding\.stat_server\|/m, 'the view is among the objects');

# The numbers of a version, in a form that sorts
sub sortable { return join '.', map { sprintf '%05d', $_ } split /\./, $_[0]; }

my $newest = $node->safe_psql('fresh', q{SELECT extversion FROM pg_extension WHERE extname = 'pg_pinpoint_decoding'});
my @versions = sort { sortable($a) cmp sortable($b) } split /\n/, $node->safe_psql('fresh',
	q{SELECT version FROM pg_available_extension_versions WHERE name = 'pg_pinpoint_decoding'});
is($versions[-1], $newest, "the newest of the versions @versions is the default");

foreach my $version (grep { $_ ne $newest } @versions)
{
	my $dbname = 'from_' . $version =~ tr/./_/r;
	$node->safe_psql('postgres', "CREATE DATABASE $dbname");
	$node->safe_psql($dbname, qq{
		CREATE EXTENSION pg_pinpoint_decoding VERSION '$version';
		CREATE VIEW ours AS SELECT active FROM pinpoint_decoding.stat_server});
	is($node->safe_psql($dbname, 'SELECT * FROM ours'), 't', "version $version works with the new library");
	$node->safe_psql($dbname, 'ALTER EXTENSION pg_pinpoint_decoding UPDATE');
	is($node->safe_psql($dbname, $objects), $fresh, 'after an update it is the same as a fresh one');
	is($node->safe_psql($dbname, 'SELECT * FROM ours'), 't', 'and a view on its view is still there');
}

# A schema that somebody else has made
$node->safe_psql('postgres', 'CREATE DATABASE others OWNER someone');
$node->safe_psql('others', 'CREATE SCHEMA pinpoint_decoding',
	extra_params => [ '-U', 'someone' ]);
my (undef, undef, $error) = $node->psql('others', 'CREATE EXTENSION pg_pinpoint_decoding');
like($error, qr/schema "pinpoint_decoding" already exists.*HINT:  Rename the schema with ALTER SCHEMA, or drop it,/s,
	'a schema that somebody has made before is not taken, and a hint says what to do');

# Where functions are not for everybody, the views still are.
$node->safe_psql('postgres', 'CREATE DATABASE guarded');
$node->safe_psql('guarded', 'ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC; CREATE EXTENSION pg_pinpoint_decoding');
is( $node->safe_psql('guarded', 'SELECT active FROM pinpoint_decoding.stat_server', extra_params => [ '-U', 'someone' ]),
	't', 'everyone may read the view');
is($node->safe_psql('guarded', 'DROP EXTENSION pg_pinpoint_decoding; SELECT count(*) FROM pg_namespace'
	  . q{ WHERE nspname = 'pinpoint_decoding'}), 0, 'the schema goes with the extension');

$node->stop;
done_testing();
