-- The replacement adds and removes no privilege: pinpoint.notify() requires EXECUTE
-- on pg_notify(), and no privilege on schema pinpoint.

CREATE ROLE engine_plain;
CREATE ROLE engine_monitor;
GRANT pg_read_all_stats TO engine_monitor;

-- no rights in the schema
REVOKE ALL ON SCHEMA pinpoint FROM PUBLIC;
SELECT coalesce(sum(transactions), 0) AS before FROM pinpoint.stat_notify \gset
SET ROLE engine_plain;
SELECT pg_notify('privileges', 'no rights in schema pinpoint');
SELECT pg_notification_queue_usage() = 0 AS empty;
NOTIFY privileges;
DO $$ BEGIN PERFORM pg_notify('privileges', 'do'); END $$;
SELECT pinpoint.notify('privileges', 'by its own name');
\echo :SQLSTATE
SELECT count(*) FROM pinpoint.stat_queue;
\echo :SQLSTATE
RESET ROLE;
SELECT sum(transactions) - :before AS published FROM pinpoint.stat_notify;
GRANT USAGE ON SCHEMA pinpoint TO PUBLIC;

-- calling the replacement by its own name needs the privilege on the original
SET ROLE engine_plain;
SELECT pinpoint.notify('privileges', 'allowed');
SELECT pinpoint.notification_queue_usage() = 0 AS empty;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION pg_notify(text, text), pg_notification_queue_usage() FROM PUBLIC;
SET ROLE engine_plain;
SELECT pinpoint.notify('privileges', 'refused');
\echo :SQLSTATE
SELECT pinpoint.notify('privileges', 'refused') WHERE false;
SELECT pinpoint.notification_queue_usage();
\echo :SQLSTATE
RESET ROLE;
SELECT pinpoint.notify('privileges', 'superuser');
GRANT EXECUTE ON FUNCTION pg_notify(text, text), pg_notification_queue_usage() TO PUBLIC;
-- and makes the same checks
SELECT pinpoint.notify('', 'x');
\echo :SQLSTATE
SELECT pinpoint.notify(NULL, NULL);
SELECT pinpoint.notify(repeat('c', 64), 'x');
SELECT pinpoint.notify('privileges', repeat('x', 8000));
\echo :SQLSTATE

-- the views: counters are for everybody, names of channels for roles that may monitor
SET ROLE engine_plain;
SELECT count(*) FROM pinpoint.stat_queue;
LISTEN privileges;
SELECT channels FROM pinpoint.stat_listeners WHERE pid = pg_backend_pid();
SELECT count(*) FROM pinpoint.stat_channels;
\echo :SQLSTATE
SELECT count(*) FROM pinpoint.stat_get_channels();
\echo :SQLSTATE
SET ROLE engine_monitor;
SELECT datname = current_database() AS here, channel, listeners FROM pinpoint.stat_channels;
RESET ROLE;
UNLISTEN *;
SELECT datname, channel, listeners FROM pinpoint.stat_channels;

-- the switch is for superusers, and for roles to which they grant it
SET ROLE engine_plain;
SET pinpoint.enabled = off;
\echo :SQLSTATE
SHOW pinpoint.enabled;
RESET ROLE;
GRANT SET ON PARAMETER pinpoint.enabled TO engine_plain;
SET ROLE engine_plain;
SET pinpoint.enabled = off;
SHOW pinpoint.enabled;
RESET pinpoint.enabled;
RESET ROLE;
REVOKE SET ON PARAMETER pinpoint.enabled FROM engine_plain;

-- the extension is for superusers
GRANT CREATE ON DATABASE :DBNAME TO engine_plain;
BEGIN;
DROP EXTENSION pg_pinpoint;
SET ROLE engine_plain;
CREATE EXTENSION pg_pinpoint;
\echo :SQLSTATE
ROLLBACK;
REVOKE CREATE ON DATABASE :DBNAME FROM engine_plain;

DROP ROLE engine_plain, engine_monitor;
