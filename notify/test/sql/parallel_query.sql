-- pg_notify() in a parallel query runs in the leader; a function that wrongly
-- claims to be parallel safe and notifies is refused in the worker.

CREATE TABLE parallel_rows AS SELECT i FROM generate_series(1, 1000) AS i;
ANALYZE parallel_rows;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
SET parallel_leader_participation = off;

-- restricted: above the Gather
EXPLAIN (COSTS OFF) SELECT i, pg_notify('parallel', i::text) FROM parallel_rows WHERE i % 100 = 0;
SELECT count(pg_notify('parallel', i::text)) FROM parallel_rows WHERE i % 100 = 0;
SELECT count(*) FROM (SELECT pg_notify('parallel', i::text) FROM parallel_rows WHERE i % 100 = 0 OFFSET 0) AS s;
SELECT pg_notification_queue_usage() = 0 AS empty, count(*) FROM parallel_rows;
SELECT set_config(name, 'on', false) AS forced FROM pg_settings
 WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT pg_notify('parallel', 'forced');
SELECT pg_notification_queue_usage() = 0 AS empty;
SELECT set_config(name, 'off', false) AS forced FROM pg_settings
 WHERE name IN ('force_parallel_mode', 'debug_parallel_query');

-- what a worker may not do
CREATE FUNCTION parallel_liar(command text) RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS
$$ BEGIN EXECUTE command; RETURN command; END $$;
CREATE FUNCTION parallel_notify(payload text) RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS
$$ BEGIN PERFORM pg_notify('parallel', payload); RETURN payload; END $$;
SELECT set_config(name, 'on', false) AS forced FROM pg_settings
 WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
-- without the context lines, which name the worker's PID on some paths
\set VERBOSITY terse
SELECT parallel_notify('worker');
\echo :SQLSTATE
SELECT parallel_liar('NOTIFY parallel');
\echo :SQLSTATE
SELECT parallel_liar('LISTEN parallel');
\echo :SQLSTATE
SELECT parallel_liar('UNLISTEN parallel');
\echo :SQLSTATE
SELECT parallel_liar('UNLISTEN *');
\echo :SQLSTATE
SELECT parallel_liar('DISCARD ALL');
\echo :SQLSTATE
\set VERBOSITY default
SELECT set_config(name, 'off', false) AS forced FROM pg_settings
 WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT parallel_notify('leader');
SELECT parallel_liar('NOTIFY parallel');
SELECT parallel_liar('LISTEN parallel');
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;

DROP TABLE parallel_rows;
DROP FUNCTION parallel_liar(text), parallel_notify(text);
