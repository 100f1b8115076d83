-- A database without the extension is left alone, whatever it calls its schemas and
-- functions; CREATE EXTENSION and DROP EXTENSION take effect in running sessions.

\set main :DBNAME
CREATE DATABASE pinpoint_without_extension TEMPLATE template0;
SELECT coalesce(sum(transactions), 0) AS before FROM pinpoint.stat_notify \gset
\c pinpoint_without_extension

-- look-alikes, in the place and of the type of the real ones
CREATE SCHEMA pinpoint;
CREATE FUNCTION pinpoint.notify(channel text, payload text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'called a look-alike'; END $$;
CREATE FUNCTION pinpoint.notification_queue_usage() RETURNS double precision LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'called a look-alike'; END $$;
SELECT pg_notify('without', 'x');
SELECT pg_notification_queue_usage() = 0 AS empty;
EXPLAIN (VERBOSE, COSTS OFF) SELECT pg_notify('without', 'x'), pg_notification_queue_usage();
NOTIFY without;
DO $$ BEGIN NOTIFY without; PERFORM pg_notify('without', 'x'); END $$;
LISTEN without;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;
-- also where another extension than ours owns the look-alike
SELECT extname FROM pg_extension;
ALTER EXTENSION plpgsql ADD FUNCTION pinpoint.notify(text, text);
EXPLAIN (VERBOSE, COSTS OFF) SELECT pg_notify('without', 'x');
ALTER EXTENSION plpgsql DROP FUNCTION pinpoint.notify(text, text);
-- privileges are those of the original
CREATE ROLE without_extension;
REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC;
SET ROLE without_extension;
SELECT pg_notify('without', 'x');
RESET ROLE;
GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO PUBLIC;
DROP ROLE without_extension;

-- the extension does not take over what somebody else made
\set SHOW_CONTEXT never
CREATE EXTENSION pg_pinpoint;
\echo :SQLSTATE
DROP FUNCTION pinpoint.notify(text, text), pinpoint.notification_queue_usage();
DROP SCHEMA pinpoint;

-- its place is fixed
CREATE EXTENSION pg_pinpoint SCHEMA public;
\echo :SQLSTATE

-- a session that has planned and sent before the extension is there
PREPARE p AS SELECT pg_notify('without', 'prepared');
EXECUTE p;
\c :main
SELECT sum(transactions) - :before AS published FROM pinpoint.stat_notify;
\c pinpoint_without_extension
SELECT pg_notify('without', 'before');
CREATE EXTENSION pg_pinpoint;
ALTER EXTENSION pg_pinpoint SET SCHEMA public;
\echo :SQLSTATE
SELECT coalesce(sum(transactions), 0) AS before FROM pinpoint.stat_notify \gset
NOTIFY without;
SELECT pg_notify('without', 'after');
SELECT sum(transactions) - :before AS published FROM pinpoint.stat_notify;
EXPLAIN (VERBOSE, COSTS OFF) SELECT pg_notify('without', 'x'), pg_notification_queue_usage();

-- plans made with the extension survive it
SET plan_cache_mode = force_generic_plan;
PREPARE p AS SELECT pg_notify('without', 'prepared'), pg_notification_queue_usage() >= 0 AS usage;
CREATE FUNCTION notify_plpgsql() RETURNS void LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('without', 'plpgsql'); END $$;
CREATE FUNCTION notify_inline(p text) RETURNS void LANGUAGE sql AS
$$ SELECT pg_notify('without', p) $$;
PREPARE i AS SELECT notify_inline('inlined');
CREATE VIEW notify_view AS SELECT pg_notify('without', 'view')::text AS sent;
EXECUTE p;
EXECUTE i;
SELECT notify_plpgsql();
LISTEN listened_before;
-- an inlined call is not in the query, but only in the plan
BEGIN;
ALTER EXTENSION pg_pinpoint DROP FUNCTION pinpoint.notify(text, text);
DROP FUNCTION pinpoint.notify(text, text);
EXECUTE i;
ROLLBACK;
-- nothing that the user made is in the way
DROP EXTENSION pg_pinpoint;
EXECUTE p;
EXECUTE i;
SELECT notify_plpgsql();
SELECT * FROM notify_view;
SELECT pg_notify('without', 'x');
NOTIFY without;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN listened_before;
SELECT * FROM pg_listening_channels() ORDER BY 1;
-- its schema stays, as with every extension: a DROP SCHEMA is the user's to make
SELECT count(*) FROM pg_proc WHERE pronamespace = 'pinpoint'::regnamespace;

-- dropped in the transaction that notifies, and brought back by a rollback
CREATE EXTENSION pg_pinpoint;
BEGIN;
NOTIFY without, 'before';
DROP EXTENSION pg_pinpoint;
NOTIFY without, 'after';
SELECT pg_notify('without', 'after');
ROLLBACK;
BEGIN;
NOTIFY without, 'before';
DROP EXTENSION pg_pinpoint;
NOTIFY without, 'after';
COMMIT;
CREATE EXTENSION pg_pinpoint;
EXECUTE p;
SELECT coalesce(sum(transactions), 0) AS before FROM pinpoint.stat_notify \gset
EXECUTE p;
SELECT sum(transactions) - :before AS published FROM pinpoint.stat_notify;

-- while the schema has another name, its functions are not called by their names
PREPARE given AS SELECT $1::text AS given;
EXECUTE given(pg_notify('without', 'x')::text);
ALTER SCHEMA pinpoint RENAME TO pinpoint_moved;
EXECUTE given(pg_notify('without', 'x')::text);
EXPLAIN (VERBOSE, COSTS OFF) SELECT pg_notify('without', 'x');
ALTER SCHEMA pinpoint_moved RENAME TO pinpoint;
EXPLAIN (VERBOSE, COSTS OFF) SELECT pg_notify('without', 'x');

-- not by name: the replacements are found as members of the extension
ALTER SCHEMA pinpoint RENAME TO pinpoint_moved;
CREATE SCHEMA pinpoint;
CREATE FUNCTION pinpoint.notify(channel text, payload text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'called a look-alike'; END $$;
CREATE FUNCTION pinpoint.notification_queue_usage() RETURNS double precision LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'called a look-alike'; END $$;
EXECUTE p;
SELECT pg_notify('without', 'x'), pg_notification_queue_usage() = 0 AS empty;
\c -
SELECT pg_notify('without', 'x'), pg_notification_queue_usage() = 0 AS empty;

\c :main
DROP DATABASE pinpoint_without_extension;
