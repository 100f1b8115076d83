# An extension that was updated has the same objects, owners and privileges as
# a new one.  The old one works with the library of today.

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
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach 'fresh', 'updated';

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
my $version = $node->safe_psql('fresh', q{SELECT extversion FROM pg_extension WHERE extname = 'pg_pinpoint_decoding'});

$node->safe_psql('updated', q{
	CREATE EXTENSION pg_pinpoint_decoding VERSION '0.1.0';
	CREATE VIEW ours AS SELECT * FROM pinpoint_decoding.stat_server});
isnt($node->safe_psql('updated', $objects), $fresh, '0.1.0 is another');
like($node->safe_psql('updated', 'SELECT * FROM pinpoint_decoding.stat_server'),
	qr/^t\|\|\d+\|\d+\|\d+\|\d+\|\d+\|\d+$/, 'and works with the library of today');

$node->safe_psql('updated', 'ALTER EXTENSION pg_pinpoint_decoding UPDATE');
is($node->safe_psql('updated', q{SELECT extversion FROM pg_extension WHERE extname = 'pg_pinpoint_decoding'}),
	$version, 'it is updated');
is($node->safe_psql('updated', $objects), $fresh, 'and then the same as a new one');
like($node->safe_psql('updated', 'SELECT * FROM ours'), qr/^t\|/, 'a view on the old view is still there');
is( $node->safe_psql('updated', 'SELECT active, standby_snapshots FROM pinpoint_decoding.stat_server',
		extra_params => [ '-U', 'someone' ]),
	't|0', 'everyone may read the new column');

# In a schema that somebody else has made, and given away
$node->safe_psql('postgres', 'CREATE DATABASE others OWNER someone');
$node->safe_psql('others', 'CREATE SCHEMA pinpoint_decoding; GRANT ALL ON SCHEMA pinpoint_decoding TO PUBLIC',
	extra_params => [ '-U', 'someone' ]);
my (undef, undef, $error) = $node->psql('others', 'CREATE EXTENSION pg_pinpoint_decoding');
like($error, qr/schema "pinpoint_decoding" already exists/, 'a schema that somebody has made before is not taken');
$node->safe_psql('others', q{CREATE EXTENSION pg_pinpoint_decoding VERSION '0.1.0'; ALTER EXTENSION pg_pinpoint_decoding UPDATE});
is($node->safe_psql('others', $objects), $fresh, 'and after an update it is taken from him');

# Where functions are not for everybody, the views still are.
$node->safe_psql('postgres', 'CREATE DATABASE guarded');
$node->safe_psql('guarded', 'ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC; CREATE EXTENSION pg_pinpoint_decoding');
is( $node->safe_psql('guarded', 'SELECT active FROM pinpoint_decoding.stat_server', extra_params => [ '-U', 'someone' ]),
	't', 'everyone may read the view');
is($node->safe_psql('guarded', 'DROP EXTENSION pg_pinpoint_decoding; SELECT count(*) FROM pg_namespace'
	  . q{ WHERE nspname = 'pinpoint_decoding'}), 0, 'the schema goes with the extension');

$node->stop;
done_testing();
