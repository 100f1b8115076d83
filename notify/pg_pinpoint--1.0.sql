/* notify/pg_pinpoint--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION pg_pinpoint" to load this file. \quit

-- The extension creates the schema, so no other role owns its contents, and
-- DROP EXTENSION drops it.
-- The function raises an error with a hint if there is such a schema.
CREATE FUNCTION pg_catalog.pinpoint_check_schema()
RETURNS void
AS 'MODULE_PATHNAME', 'pinpoint_check_schema'
LANGUAGE C;
SELECT pg_catalog.pinpoint_check_schema();
DROP FUNCTION pg_catalog.pinpoint_check_schema();
CREATE SCHEMA pinpoint;

-- pg_notify(text, text) and pg_notification_queue_usage() of PostgreSQL are
-- replaced by these two when a query is planned.  They have the properties of
-- the originals: see pg_proc.dat in PostgreSQL's source, and the chapter
-- "NOTIFY" of its documentation for the rules they follow.

CREATE FUNCTION pinpoint.notify(channel text, payload text)
RETURNS void
AS 'MODULE_PATHNAME', 'pinpoint_notify'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.notify(text, text) IS
'send a notification event; replaces pg_notify(text, text) when a query is planned';

CREATE FUNCTION pinpoint.notification_queue_usage()
RETURNS double precision
AS 'MODULE_PATHNAME', 'pinpoint_notification_queue_usage'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.notification_queue_usage() IS
'get the used fraction of the notification queue of pg_pinpoint or PostgreSQL, whichever is fuller';

CREATE FUNCTION pinpoint.stat_get_listeners(
	OUT pid integer,
	OUT datid oid,
	OUT state text,
	OUT channels integer,
	OUT wakeups bigint,
	OUT notifications bigint,
	OUT backlog_bytes bigint,
	OUT backlog_batches bigint,
	OUT oldest_unread timestamp with time zone,
	OUT wakes_for_all boolean)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pinpoint_stat_get_listeners'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.stat_get_listeners() IS
'used by the view pinpoint.stat_listeners';

CREATE VIEW pinpoint.stat_listeners AS
SELECT l.pid, l.datid, d.datname, a.usesysid, r.rolname AS usename,
	   a.application_name, a.client_addr, l.state, l.channels, l.wakeups,
	   l.notifications, l.backlog_bytes, l.backlog_batches, l.oldest_unread,
	   l.wakes_for_all
  FROM pinpoint.stat_get_listeners() AS l
  LEFT JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) l.datid
  LEFT JOIN pg_catalog.pg_stat_get_activity(NULL) AS a
	ON a.pid OPERATOR(pg_catalog.=) l.pid AND l.state IS NOT NULL
  LEFT JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) a.usesysid;

COMMENT ON VIEW pinpoint.stat_listeners IS
'one row per listening session: identity, state, channels, signals, notifications delivered, backlog, and whether all notifications of its database wake it';

CREATE FUNCTION pinpoint.stat_get_listening(
	OUT pid integer,
	OUT datid oid,
	OUT channel text,
	OUT shared boolean,
	OUT sharing_group oid)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pinpoint_stat_get_listening'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.stat_get_listening() IS
'used by the view pinpoint.listening';

CREATE VIEW pinpoint.listening AS
SELECT l.pid, l.datid, d.datname, l.channel, l.shared,
	   r.rolname AS sharing_group
  FROM pinpoint.stat_get_listening() AS l
  LEFT JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) l.datid
  LEFT JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) l.sharing_group;

COMMENT ON VIEW pinpoint.listening IS
'one row per listening session and channel, and the role whose sessions share the channel';

CREATE FUNCTION pinpoint.stat_get_notify(
	OUT datid oid,
	OUT transactions bigint,
	OUT notifications bigint,
	OUT replayed bigint,
	OUT unheard bigint,
	OUT held_back bigint,
	OUT max_held_back_time double precision,
	OUT published_by_others bigint,
	OUT signals bigint,
	OUT signals_saved bigint,
	OUT waker_signals bigint,
	OUT delivered bigint,
	OUT folded bigint,
	OUT reassigned bigint,
	OUT warned bigint,
	OUT disconnected bigint,
	OUT queue_full bigint,
	OUT disk_full bigint,
	OUT stats_reset timestamp with time zone)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pinpoint_stat_get_notify'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.stat_get_notify() IS
'used by the view pinpoint.stat_notify';

CREATE VIEW pinpoint.stat_notify AS
SELECT n.datid, d.datname, n.transactions, n.notifications, n.replayed,
	   n.unheard, n.held_back, n.max_held_back_time, n.published_by_others,
	   n.signals, n.signals_saved, n.waker_signals, n.delivered, n.folded,
	   n.reassigned, n.warned, n.disconnected, n.queue_full, n.disk_full,
	   n.stats_reset
  FROM pinpoint.stat_get_notify() AS n
  LEFT JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) n.datid;

COMMENT ON VIEW pinpoint.stat_notify IS
'one row per database: counters since the server start or the last pinpoint.stat_reset()';

CREATE FUNCTION pinpoint.stat_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'pinpoint_stat_reset'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.stat_reset() IS
'set all counters of pinpoint.stat_notify to zero, for all databases';

CREATE FUNCTION pinpoint.stat_get_queue(
	OUT size_bytes bigint,
	OUT used_bytes bigint,
	OUT file_bytes bigint,
	OUT batches bigint,
	OUT in_flight bigint,
	OUT held_back bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'pinpoint_stat_get_queue'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.stat_get_queue() IS
'used by the view pinpoint.stat_queue';

CREATE VIEW pinpoint.stat_queue AS
SELECT q.* FROM pinpoint.stat_get_queue() AS q;

COMMENT ON VIEW pinpoint.stat_queue IS
'one row: size and use of the notification queue, size of its file, and commits in flight or held back';

CREATE FUNCTION pinpoint.stat_get_channels(
	OUT datid oid,
	OUT channel text,
	OUT listeners integer,
	OUT sharers integer,
	OUT transactions bigint,
	OUT sharing_groups integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pinpoint_stat_get_channels'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.stat_get_channels() IS
'used by the view pinpoint.stat_channels';

CREATE VIEW pinpoint.stat_channels AS
SELECT c.datid, d.datname, c.channel, c.listeners, c.sharers, c.sharing_groups,
	   c.transactions
  FROM pinpoint.stat_get_channels() AS c
  LEFT JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) c.datid;

COMMENT ON VIEW pinpoint.stat_channels IS
'one row per channel with listeners: listeners, sharing sessions and roles, and transactions that notified it';

-- VOLATILE, as each call has another answer. Not STRICT: a position that is NULL means
-- that all channels have changed.
CREATE FUNCTION pinpoint.position()
RETURNS text
AS 'MODULE_PATHNAME', 'pinpoint_position'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.position() IS
'get the current position, for a later call of pinpoint.changed_since()';

CREATE FUNCTION pinpoint.changed_since(
	"position" text,
	VARIADIC channels text[],
	OUT changed text[],
	OUT "position" text)
RETURNS record
AS 'MODULE_PATHNAME', 'pinpoint_changed_since'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pinpoint.changed_since(text, text[]) IS
'get the channels that were notified in this database since a position, and the position for the next call';

GRANT EXECUTE ON FUNCTION
	pinpoint.position(),
	pinpoint.changed_since(text, text[])
TO PUBLIC;

-- Every role can call pg_notify(), and calls of it are replaced, so PUBLIC needs
-- EXECUTE on these functions, also if default privileges do not grant it.
GRANT EXECUTE ON FUNCTION
	pinpoint.notify(text, text),
	pinpoint.notification_queue_usage(),
	pinpoint.stat_get_listeners(),
	pinpoint.stat_get_notify(),
	pinpoint.stat_get_queue()
TO PUBLIC;

-- As in pg_stat_activity, every role can see that a session exists. Only members
-- of pg_read_all_stats can see the channels of other sessions.
REVOKE ALL ON FUNCTION pinpoint.stat_get_channels() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pinpoint.stat_get_channels() TO pg_read_all_stats;
REVOKE ALL ON FUNCTION pinpoint.stat_get_listening() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pinpoint.stat_get_listening() TO pg_read_all_stats;
REVOKE ALL ON FUNCTION pinpoint.stat_reset() FROM PUBLIC;

GRANT USAGE ON SCHEMA pinpoint TO PUBLIC;
GRANT SELECT ON pinpoint.stat_listeners, pinpoint.stat_queue, pinpoint.stat_notify TO PUBLIC;
GRANT SELECT ON pinpoint.stat_channels, pinpoint.listening TO pg_read_all_stats;
