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

-- What its former owner has granted on it goes.
DO $$
DECLARE
	grantee pg_catalog.text;
BEGIN
	FOR grantee IN
		SELECT DISTINCT CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0 THEN 'PUBLIC'
							 ELSE pg_catalog.format('%I', pg_catalog.pg_get_userbyid(a.grantee)) END
		  FROM pg_catalog.pg_namespace AS n, pg_catalog.aclexplode(n.nspacl) AS a
		 WHERE n.nspname OPERATOR(pg_catalog.=) 'pinpoint'
		   AND a.grantee OPERATOR(pg_catalog.<>) n.nspowner
	LOOP
		EXECUTE pg_catalog.format('REVOKE ALL ON SCHEMA pinpoint FROM %s CASCADE', grantee);
	END LOOP;
END
$$;

GRANT USAGE ON SCHEMA pinpoint TO PUBLIC;

ALTER EXTENSION pg_pinpoint ADD SCHEMA pinpoint;

-- Who shares a channel.
DROP VIEW pinpoint.stat_channels;
DROP FUNCTION pinpoint.stat_get_channels();

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

REVOKE ALL ON FUNCTION pinpoint.stat_get_channels() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pinpoint.stat_get_channels() TO pg_read_all_stats;
GRANT SELECT ON pinpoint.stat_channels TO pg_read_all_stats;

-- Who listens, on what, and what has happened.
DROP VIEW pinpoint.stat_listeners;
DROP FUNCTION pinpoint.stat_get_listeners();

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
'one row per listening session and channel, with the role with whose sessions it shares the channel';

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

-- What it counted is in pinpoint.stat_notify.
DROP VIEW pinpoint.stat_queue;
DROP FUNCTION pinpoint.stat_get_queue();

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

-- Functions are for everybody unless default privileges say otherwise; these have
-- to be: a call of pg_notify() is replaced only if nobody can notice.
GRANT EXECUTE ON FUNCTION
	pinpoint.notify(text, text),
	pinpoint.notification_queue_usage(),
	pinpoint.stat_get_listeners(),
	pinpoint.stat_get_notify(),
	pinpoint.stat_get_queue()
TO PUBLIC;

REVOKE ALL ON FUNCTION pinpoint.stat_get_listening() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pinpoint.stat_get_listening() TO pg_read_all_stats;
REVOKE ALL ON FUNCTION pinpoint.stat_reset() FROM PUBLIC;

GRANT SELECT ON pinpoint.stat_listeners, pinpoint.stat_queue, pinpoint.stat_notify TO PUBLIC;
GRANT SELECT ON pinpoint.listening TO pg_read_all_stats;

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
