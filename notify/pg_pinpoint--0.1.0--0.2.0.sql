/* notify/pg_pinpoint--0.1.0--0.2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION pg_pinpoint UPDATE TO '0.2.0'" to load this file. \quit

-- The extension was in the schema "pinpoint", which was no part of it, and which
-- somebody else may own.  Now the schema is in the extension.  PostgreSQL has no
-- command to move an extension that is not relocatable, but what it would do is
-- change one column and one dependency: on pg_catalog, as a pinned schema, there
-- is none.
UPDATE pg_catalog.pg_extension
   SET extnamespace = 'pg_catalog'::pg_catalog.regnamespace
 WHERE extname OPERATOR(pg_catalog.=) 'pg_pinpoint';

DELETE FROM pg_catalog.pg_depend AS d
 USING pg_catalog.pg_extension AS e
 WHERE e.extname OPERATOR(pg_catalog.=) 'pg_pinpoint'
   AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
   AND d.objid OPERATOR(pg_catalog.=) e.oid
   AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
   AND d.refobjid OPERATOR(pg_catalog.=) 'pinpoint'::pg_catalog.regnamespace;

DO $$
BEGIN
	EXECUTE pg_catalog.format('ALTER SCHEMA pinpoint OWNER TO %I',
		(SELECT pg_catalog.pg_get_userbyid(e.extowner)
		   FROM pg_catalog.pg_extension AS e
		  WHERE e.extname OPERATOR(pg_catalog.=) 'pg_pinpoint'));
END
$$;

ALTER EXTENSION pg_pinpoint ADD SCHEMA pinpoint;

-- Who shares a channel.
DROP VIEW pinpoint.stat_channels;
DROP FUNCTION pinpoint.stat_get_channels();

CREATE FUNCTION pinpoint.stat_get_channels(
	OUT datid oid,
	OUT channel text,
	OUT listeners integer,
	OUT sharers integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pinpoint_stat_get_channels'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.stat_get_channels() IS
'the channels of the whole server that somebody listens on; see the view pinpoint.stat_channels';

CREATE VIEW pinpoint.stat_channels AS
SELECT c.datid, d.datname, c.channel, c.listeners, c.sharers
  FROM pinpoint.stat_get_channels() AS c
  LEFT JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) c.datid;

COMMENT ON VIEW pinpoint.stat_channels IS
'one row per channel that somebody listens on, with the number of its listeners, and of those among them who share it';

REVOKE ALL ON FUNCTION pinpoint.stat_get_channels() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pinpoint.stat_get_channels() TO pg_read_all_stats;
GRANT SELECT ON pinpoint.stat_channels TO pg_read_all_stats;
