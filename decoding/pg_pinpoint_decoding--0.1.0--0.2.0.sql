/* decoding/pg_pinpoint_decoding--0.1.0--0.2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION pg_pinpoint_decoding UPDATE TO '0.2.0'" to load this file. \quit

-- The extension was in the schema "pinpoint_decoding", which was no part of it, and which
-- somebody else may own.  Now the schema is in the extension.  PostgreSQL has no
-- command to move an extension that is not relocatable, but what it would do is
-- change one column and one dependency: on pg_catalog, as a pinned schema, there
-- is none.
UPDATE pg_catalog.pg_extension
   SET extnamespace = 'pg_catalog'::pg_catalog.regnamespace
 WHERE extname OPERATOR(pg_catalog.=) 'pg_pinpoint_decoding';

DELETE FROM pg_catalog.pg_depend AS d
 USING pg_catalog.pg_extension AS e
 WHERE e.extname OPERATOR(pg_catalog.=) 'pg_pinpoint_decoding'
   AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
   AND d.objid OPERATOR(pg_catalog.=) e.oid
   AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
   AND d.refobjid OPERATOR(pg_catalog.=) 'pinpoint_decoding'::pg_catalog.regnamespace;

DO $$
BEGIN
	EXECUTE pg_catalog.format('ALTER SCHEMA pinpoint_decoding OWNER TO %I',
		(SELECT pg_catalog.pg_get_userbyid(e.extowner)
		   FROM pg_catalog.pg_extension AS e
		  WHERE e.extname OPERATOR(pg_catalog.=) 'pg_pinpoint_decoding'));
END
$$;

-- What its former owner has granted on it goes.
DO $$
DECLARE
	grantee pg_catalog.text;
BEGIN
	FOR grantee IN
		SELECT DISTINCT CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0 THEN 'PUBLIC'
							 ELSE pg_catalog.format('%I', pg_catalog.pg_get_userbyid(a.grantee)) END
		  FROM pg_catalog.pg_namespace AS n, pg_catalog.aclexplode(n.nspacl) AS a
		 WHERE n.nspname OPERATOR(pg_catalog.=) 'pinpoint_decoding'
		   AND a.grantee OPERATOR(pg_catalog.<>) n.nspowner
	LOOP
		EXECUTE pg_catalog.format('REVOKE ALL ON SCHEMA pinpoint_decoding FROM %s CASCADE', grantee);
	END LOOP;
END
$$;

GRANT USAGE ON SCHEMA pinpoint_decoding TO PUBLIC;

ALTER EXTENSION pg_pinpoint_decoding ADD SCHEMA pinpoint_decoding;

CREATE FUNCTION pinpoint_decoding.stat_get_standby_snapshots()
RETURNS bigint
AS 'MODULE_PATHNAME', 'pinpoint_decoding_stat_get_standby_snapshots'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint_decoding.stat_get_standby_snapshots() IS
'snapshots of the running transactions that were written to the WAL; see the view pinpoint_decoding.stat_server';

CREATE OR REPLACE VIEW pinpoint_decoding.stat_server AS
SELECT s.*, pinpoint_decoding.stat_get_standby_snapshots() AS standby_snapshots
FROM pinpoint_decoding.stat_get_server() AS s;

COMMENT ON VIEW pinpoint_decoding.stat_server IS
'one row: is the library active, and if not, why; what the relation-file maps of all sessions did since the server started, and the entries they have now; the snapshots of running transactions that the library has written to the WAL';

-- For everybody, whatever default privileges say.
GRANT EXECUTE ON FUNCTION
	pinpoint_decoding.stat_get_server(),
	pinpoint_decoding.stat_get_standby_snapshots(),
	pinpoint_decoding.stat_get_sessions()
TO PUBLIC;
