-- What EXPLAIN shows of the replacement: pinpoint.notify() and
-- pinpoint.notification_queue_usage() stand in the plan where the query has
-- PostgreSQL's functions.

CREATE TABLE plan_rows (i int);
CREATE VIEW plan_view AS SELECT pg_notify('plans', 'view')::text AS sent;
EXPLAIN (VERBOSE, COSTS OFF) SELECT pg_notify('plans', 'payload');
EXPLAIN (VERBOSE, COSTS OFF) SELECT pg_notification_queue_usage();
EXPLAIN (VERBOSE, COSTS OFF) SELECT * FROM pg_notify('plans', 'from');
EXPLAIN (VERBOSE, COSTS OFF) SELECT i FROM plan_rows WHERE pg_notify('plans', i::text)::text = '';
EXPLAIN (VERBOSE, COSTS OFF) SELECT * FROM plan_view;
EXPLAIN (VERBOSE, COSTS OFF) WITH n AS MATERIALIZED (SELECT pg_notify('plans', 'cte')::text) SELECT * FROM n;
EXPLAIN (VERBOSE, COSTS OFF) INSERT INTO plan_rows VALUES (1) RETURNING pg_notify('plans', 'returning');
PREPARE p(text) AS SELECT pg_notify('plans', $1);
SET plan_cache_mode = force_generic_plan;
EXPLAIN (VERBOSE, COSTS OFF) EXECUTE p('generic');
RESET plan_cache_mode;
DEALLOCATE p;
-- restricted to the leader, as the original is
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
INSERT INTO plan_rows SELECT generate_series(1, 1000);
ANALYZE plan_rows;
EXPLAIN (VERBOSE, COSTS OFF) SELECT pg_notify('plans', i::text) FROM plan_rows WHERE i % 100 = 0;
DROP VIEW plan_view;
DROP TABLE plan_rows;

-- the replacements have the properties of the originals
SELECT o.proname AS original, r.proname AS replacement, o.provolatile = r.provolatile AS volatility,
       o.proisstrict = r.proisstrict AS strictness, o.proparallel = r.proparallel AS parallel,
       o.proleakproof = r.proleakproof AS leakproof, o.prorettype = r.prorettype AS result,
       o.proargtypes = r.proargtypes AS arguments, o.procost = r.procost AS cost, r.prosecdef AS security_definer
  FROM pg_proc AS o, pg_proc AS r
 WHERE (o.oid, r.oid) IN (('pg_notify(text, text)'::regprocedure, 'pinpoint.notify(text, text)'::regprocedure),
                          ('pg_notification_queue_usage()'::regprocedure, 'pinpoint.notification_queue_usage()'::regprocedure))
 ORDER BY 1;
