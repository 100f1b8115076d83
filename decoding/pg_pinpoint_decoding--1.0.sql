/* decoding/pg_pinpoint_decoding--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION pg_pinpoint_decoding" to load this file. \quit

-- The extension creates the schema, so no other role owns its contents, and
-- DROP EXTENSION drops it.
-- The function raises an error with a hint if there is such a schema.
CREATE FUNCTION pg_catalog.pinpoint_decoding_check_schema()
RETURNS void
AS 'MODULE_PATHNAME', 'pinpoint_decoding_check_schema'
LANGUAGE C;
SELECT pg_catalog.pinpoint_decoding_check_schema();
DROP FUNCTION pg_catalog.pinpoint_decoding_check_schema();
CREATE SCHEMA pinpoint_decoding;

CREATE FUNCTION pinpoint_decoding.stat_get_server(
	OUT active boolean,
	OUT refused_because text,
	OUT lookups bigint,
	OUT hits bigint,
	OUT entries bigint,
	OUT negative_entries bigint,
	OUT invalidations bigint,
	OUT resets bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'pinpoint_decoding_stat_get_server'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint_decoding.stat_get_server() IS
'used by the view pinpoint_decoding.stat_server';

CREATE FUNCTION pinpoint_decoding.stat_get_standby_snapshots()
RETURNS bigint
AS 'MODULE_PATHNAME', 'pinpoint_decoding_stat_get_standby_snapshots'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint_decoding.stat_get_standby_snapshots() IS
'used by the view pinpoint_decoding.stat_server';

CREATE VIEW pinpoint_decoding.stat_server AS
SELECT s.*, pinpoint_decoding.stat_get_standby_snapshots() AS standby_snapshots
FROM pinpoint_decoding.stat_get_server() AS s;

COMMENT ON VIEW pinpoint_decoding.stat_server IS
'one row: whether the library is active, the reason if not, counters of the relation-file maps since the server started, their current entries, and snapshots of running transactions written to the WAL';

CREATE FUNCTION pinpoint_decoding.stat_get_sessions(
	OUT pid integer,
	OUT lookups bigint,
	OUT hits bigint,
	OUT entries bigint,
	OUT negative_entries bigint,
	OUT invalidations bigint,
	OUT resets bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pinpoint_decoding_stat_get_sessions'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint_decoding.stat_get_sessions() IS
'used by the view pinpoint_decoding.stat_sessions';

CREATE VIEW pinpoint_decoding.stat_sessions AS
SELECT s.* FROM pinpoint_decoding.stat_get_sessions() AS s;

COMMENT ON VIEW pinpoint_decoding.stat_sessions IS
'one row per session that has looked up a relation by its file number: counters and current entries of its relation-file map';

-- Also if default privileges do not grant EXECUTE to PUBLIC.
GRANT EXECUTE ON FUNCTION
	pinpoint_decoding.stat_get_server(),
	pinpoint_decoding.stat_get_standby_snapshots(),
	pinpoint_decoding.stat_get_sessions()
TO PUBLIC;
GRANT USAGE ON SCHEMA pinpoint_decoding TO PUBLIC;
GRANT SELECT ON pinpoint_decoding.stat_server, pinpoint_decoding.stat_sessions TO PUBLIC;
