/* decoding/pg_pinpoint_decoding--0.1.0--0.2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION pg_pinpoint_decoding UPDATE TO '0.2.0'" to load this file. \quit

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
