-- pinpoint.enabled off and on again, within a session and a transaction, with
-- statements planned before; and what kind of settings there are.

-- :start begins to count, :show tells what was published by pg_pinpoint since then,
-- and whether PostgreSQL's own queue was used.
CREATE VIEW queues AS
  SELECT (SELECT coalesce(sum(transactions), 0) FROM pinpoint.stat_notify) AS published,
         blks_zeroed + blks_hit + blks_read AS accesses
    FROM pg_stat_slru WHERE lower(name) = 'notify';
\set start 'SELECT pg_stat_force_next_flush() \\gset \\\\ SELECT published AS p, accesses AS a FROM queues \\gset'
\set show 'SELECT pg_stat_force_next_flush() \\gset \\\\ SELECT published - :p AS published, accesses > :a AS own_queue FROM queues;'

SELECT name, vartype, context, unit, min_val, boot_val
  FROM pg_settings WHERE name LIKE 'pinpoint.%' ORDER BY name COLLATE "C";
SET pinpoint.enabled = maybe;
\echo :SQLSTATE
SET pinpoint.queue_size = '1GB';
\echo :SQLSTATE
SET pinpoint.unknown = 1;
\echo :SQLSTATE

CREATE FUNCTION switch_plpgsql() RETURNS void LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('switch', 'plpgsql'); END $$;
CREATE FUNCTION switch_sql() RETURNS void LANGUAGE sql AS
$$ SELECT pg_notify('switch', 'sql') $$;
CREATE FUNCTION switch_off() RETURNS void LANGUAGE plpgsql SET pinpoint.enabled = off AS
$$ BEGIN NOTIFY switch; PERFORM pg_notify('switch', 'off'); END $$;
SET plan_cache_mode = force_generic_plan;
PREPARE p AS SELECT pg_notify('switch', 'prepared');
\o /dev/null

-- on
:start
EXECUTE p;
SELECT switch_plpgsql();
SELECT switch_sql();
SELECT pg_notify('switch', 'x');
NOTIFY switch;
\o
:show
-- off, for plans made before
\o /dev/null
SET pinpoint.enabled = off;
:start
EXECUTE p;
\o
:show
\o /dev/null
:start
SELECT switch_plpgsql();
\o
:show
\o /dev/null
:start
SELECT switch_sql();
\o
:show
\o /dev/null
:start
SELECT pg_notify('switch', 'x');
\o
:show
:start
NOTIFY switch;
:show
-- off, for plans made while it is
\o /dev/null
:start
PREPARE q AS SELECT pg_notify('switch', 'prepared while off');
EXECUTE q;
\o
:show
-- on again, for both
\o /dev/null
RESET pinpoint.enabled;
:start
EXECUTE p;
EXECUTE q;
SELECT switch_plpgsql();
SELECT switch_sql();
SELECT pg_notify('switch', 'x');
NOTIFY switch;
\o
:show
-- within a transaction: each way has its part
:start
BEGIN;
NOTIFY switch, 'on';
SET LOCAL pinpoint.enabled = off;
NOTIFY switch, 'off';
COMMIT;
NOTIFY switch, 'on again';
:show
-- the part of a savepoint that is rolled back, on either way
:start
BEGIN;
SAVEPOINT a;
NOTIFY switch, 'on';
SET LOCAL pinpoint.enabled = off;
NOTIFY switch, 'off';
ROLLBACK TO SAVEPOINT a;
SHOW pinpoint.enabled;
COMMIT;
:show
-- for a function only
:start
SELECT switch_off();
:show
:start
SELECT switch_off(), pg_notify('switch', 'on');
:show

-- errors are the same, whichever way is taken
SET pinpoint.enabled = off;
SELECT pg_notify('', 'x');
SELECT pg_notify(repeat('c', 64), 'x');
SELECT pg_notify('switch', repeat('x', 8000));
\echo :SQLSTATE
BEGIN;
NOTIFY switch;
PREPARE TRANSACTION 'switch';
\echo :SQLSTATE
RESET pinpoint.enabled;
BEGIN;
NOTIFY switch;
SET LOCAL pinpoint.enabled = off;
PREPARE TRANSACTION 'switch';
\echo :SQLSTATE
-- LISTEN is not switched
SET pinpoint.enabled = off;
LISTEN while_off;
RESET pinpoint.enabled;
LISTEN while_on;
SELECT * FROM pg_listening_channels() ORDER BY 1;
SELECT channels FROM pinpoint.stat_listeners WHERE pid = pg_backend_pid();
UNLISTEN *;

DEALLOCATE ALL;
DROP VIEW queues;
DROP FUNCTION switch_plpgsql(), switch_sql(), switch_off();
