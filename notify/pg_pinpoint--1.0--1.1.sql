/* notify/pg_pinpoint--1.0--1.1.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION pg_pinpoint UPDATE TO '1.1'" to load this file. \quit

CREATE FUNCTION pinpoint.listen(VARIADIC channels text[])
RETURNS void
AS 'MODULE_PATHNAME', 'pinpoint_listen'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.listen(text[]) IS
'listen on channels, as the statement LISTEN does';

CREATE FUNCTION pinpoint.unlisten(VARIADIC channels text[])
RETURNS void
AS 'MODULE_PATHNAME', 'pinpoint_unlisten'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.unlisten(text[]) IS
'stop listening on channels, as the statement UNLISTEN does';

-- A procedure, because a function is called with a snapshot, which holds back VACUUM.
CREATE PROCEDURE pinpoint.wait(
	INOUT changed text[],
	INOUT "position" text,
	timeout interval DEFAULT '1 minute')
AS 'MODULE_PATHNAME', 'pinpoint_wait'
LANGUAGE C;

COMMENT ON PROCEDURE pinpoint.wait(text[], text, interval) IS
'wait until one of the channels was notified since a position, or until the timeout is over';

CREATE FUNCTION pinpoint.stat_get_waiting(
	OUT pid integer,
	OUT datid oid,
	OUT channels integer,
	OUT since timestamp with time zone)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pinpoint_stat_get_waiting'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.stat_get_waiting() IS
'used by the view pinpoint.waiting';

CREATE VIEW pinpoint.waiting AS
SELECT w.pid, w.datid, d.datname, a.usesysid, r.rolname AS usename,
	   a.application_name, a.client_addr, w.channels, w.since
  FROM pinpoint.stat_get_waiting() AS w
  LEFT JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) w.datid
  LEFT JOIN pg_catalog.pg_stat_get_activity(NULL) AS a
	ON a.pid OPERATOR(pg_catalog.=) w.pid AND w.channels IS NOT NULL
  LEFT JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) a.usesysid;

COMMENT ON VIEW pinpoint.waiting IS
'one row per session in pinpoint.wait(): identity, number of channels, and since when it waits';

GRANT EXECUTE ON FUNCTION
	pinpoint.listen(text[]),
	pinpoint.unlisten(text[]),
	pinpoint.stat_get_waiting()
TO PUBLIC;
GRANT EXECUTE ON PROCEDURE pinpoint.wait(text[], text, interval) TO PUBLIC;
GRANT SELECT ON pinpoint.waiting TO PUBLIC;

-- With OUT parameters, the server decodes their names and types several times for each call.
CREATE TYPE pinpoint.changes AS (changed text[], "position" text);

COMMENT ON TYPE pinpoint.changes IS
'result of pinpoint.changed_since()';

DROP FUNCTION pinpoint.changed_since(text, text[]);

CREATE FUNCTION pinpoint.changed_since("position" text, VARIADIC channels text[])
RETURNS pinpoint.changes
AS 'MODULE_PATHNAME', 'pinpoint_changed_since'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.changed_since(text, text[]) IS
'get the channels that were notified in this database since a position, and the position for the next call';

GRANT EXECUTE ON FUNCTION pinpoint.changed_since(text, text[]) TO PUBLIC;

-- watched tables

CREATE FUNCTION pinpoint.watch(relation regclass, channel text DEFAULT NULL)
RETURNS name
AS 'MODULE_PATHNAME', 'pinpoint_watch'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

COMMENT ON FUNCTION pinpoint.watch(regclass, text) IS
'notify a channel, by default the name of the table, when a transaction has changed rows of the table';

CREATE FUNCTION pinpoint.unwatch(relation regclass)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pinpoint_unwatch'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;

COMMENT ON FUNCTION pinpoint.unwatch(regclass) IS
'end pinpoint.watch() for a table; false if it was not watched';

CREATE FUNCTION pinpoint.change_source(relation regclass)
RETURNS text
AS 'MODULE_PATHNAME', 'pinpoint_change_source'
LANGUAGE C STABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION pinpoint.change_source(regclass) IS
'how changes of a watched table are noticed: by counts of rows, by locks, or not all of them';

CREATE VIEW pinpoint.watched AS
SELECT l.objoid::pg_catalog.regclass AS relation,
	   l.label::pg_catalog.name AS channel,
	   pinpoint.change_source(l.objoid) AS source
  FROM pg_catalog.pg_seclabel AS l
 WHERE l.provider OPERATOR(pg_catalog.=) 'pinpoint'
   AND l.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
   AND l.objsubid OPERATOR(pg_catalog.=) 0;

COMMENT ON VIEW pinpoint.watched IS
'one row per watched table of this database, with its channel, and how changes are noticed';

CREATE FUNCTION pinpoint.notify_row()
RETURNS trigger
AS 'MODULE_PATHNAME', 'pinpoint_notify_row'
LANGUAGE C;

COMMENT ON FUNCTION pinpoint.notify_row() IS
'trigger function: notify a channel for each row; the arguments are templates of channel and payload';

CREATE FUNCTION pinpoint.channels_of(
	query text,
	OUT relation regclass,
	OUT channel name)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pinpoint_channels_of'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.channels_of(text) IS
'get the tables that a SELECT reads, with their channels if they are watched';

GRANT EXECUTE ON FUNCTION
	pinpoint.watch(regclass, text),
	pinpoint.unwatch(regclass),
	pinpoint.change_source(regclass),
	pinpoint.notify_row(),
	pinpoint.channels_of(text)
TO PUBLIC;
GRANT SELECT ON pinpoint.watched TO PUBLIC;
