-- pinpoint.watch(), pinpoint.unwatch() and the view pinpoint.watched: results, errors,
-- privileges.
CREATE ROLE watch_owner;
CREATE ROLE watch_other;
GRANT CREATE ON SCHEMA public TO watch_owner;
SET ROLE watch_owner;
CREATE TABLE orders (id int);
CREATE TABLE "Odd Name" (id int);
CREATE TABLE parts (id int) PARTITION BY LIST (id);
CREATE VIEW view1 AS SELECT * FROM orders;
CREATE MATERIALIZED VIEW summary AS SELECT * FROM orders;
CREATE SEQUENCE numbers;
CREATE TYPE composite AS (id int);
CREATE INDEX orders_id ON orders (id);
CREATE TEMP TABLE temporary (id int);

SELECT pinpoint.watch('orders'), pg_typeof(pinpoint.watch('orders'));
SELECT pinpoint.watch('"Odd Name"');
SELECT pinpoint.watch('parts', 'all parts'), pinpoint.watch('summary', repeat('x', 63));
SELECT relation, channel, pg_typeof(relation), pg_typeof(channel) FROM pinpoint.watched ORDER BY relation::text COLLATE "C";
-- a second call replaces the channel
SELECT pinpoint.watch('orders', 'changed orders');
SELECT channel FROM pinpoint.watched WHERE relation = 'orders'::regclass;
SELECT pinpoint.unwatch('orders'), pinpoint.unwatch('orders'), pinpoint.unwatch('view1');
-- transactional
BEGIN;
SELECT pinpoint.watch('orders');
SAVEPOINT s;
SELECT pinpoint.watch('orders', 'inner');
ROLLBACK TO s;
SELECT channel FROM pinpoint.watched WHERE relation = 'orders'::regclass;
ROLLBACK;
SELECT count(*) FROM pinpoint.watched WHERE relation = 'orders'::regclass;
-- SECURITY LABEL does the same
SECURITY LABEL FOR pinpoint ON TABLE orders IS 'by label';
SELECT channel FROM pinpoint.watched WHERE relation = 'orders'::regclass;
SECURITY LABEL FOR pinpoint ON TABLE orders IS NULL;
SELECT count(*) FROM pinpoint.watched WHERE relation = 'orders'::regclass;
SECURITY LABEL FOR pinpoint ON MATERIALIZED VIEW summary IS NULL;

-- names
\set VERBOSITY verbose
\set SHOW_CONTEXT never
\pset format unaligned
SELECT regexp_replace(pinpoint.watch('orders', repeat('x', 63)), 'x{63}', '63 bytes');
\set VERBOSITY sqlstate
SELECT pinpoint.watch('orders', repeat('x', 64));
SELECT pinpoint.watch('orders', repeat('é', 32));
SELECT pinpoint.watch('orders', '');
SECURITY LABEL FOR pinpoint ON TABLE orders IS '';
\set VERBOSITY default
\pset format aligned
SELECT pinpoint.watch('orders', repeat('x', 64));
SELECT pinpoint.watch('orders', '');
SELECT pinpoint.watch('orders', 'pinpoint_heartbeat');
SECURITY LABEL FOR pinpoint ON TABLE orders IS 'pinpoint_heartbeat';
SECURITY LABEL FOR pinpoint ON TABLE orders IS 'this label is longer than the name of a channel, which has at most 63 bytes';

-- what cannot be watched
SELECT pinpoint.watch('view1');
SELECT pinpoint.watch('numbers');
SELECT pinpoint.watch('orders_id');
SELECT pinpoint.watch('composite');
SELECT pinpoint.watch('temporary');
SELECT pinpoint.watch(NULL);
SELECT pinpoint.unwatch(NULL);
SELECT pinpoint.watch(4000000000::oid::regclass);
SECURITY LABEL FOR pinpoint ON VIEW view1 IS 'x';
SECURITY LABEL FOR pinpoint ON SEQUENCE numbers IS 'x';
SECURITY LABEL FOR pinpoint ON COLUMN orders.id IS 'x';
RESET ROLE;
SELECT pinpoint.watch('pg_class');
SELECT pinpoint.watch('information_schema.sql_features');
SECURITY LABEL FOR pinpoint ON ROLE watch_other IS 'x';
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere;
CREATE FOREIGN TABLE elsewhere (id int) SERVER nowhere;
SELECT pinpoint.watch('elsewhere');
DROP FOREIGN DATA WRAPPER nowhere CASCADE;

-- privileges
SET ROLE watch_other;
SELECT pinpoint.watch('orders');
SELECT pinpoint.unwatch('orders');
SELECT pinpoint.watch('view1');
SELECT count(*) FROM pinpoint.watched WHERE relation = 'orders'::regclass;
RESET ROLE;
BEGIN READ ONLY;
SELECT pinpoint.watch('orders');
ROLLBACK;

-- changes count also if calls of pg_notify() cannot be replaced
CREATE FUNCTION pg_temp.changed_since(text) RETURNS text LANGUAGE sql AS
	$$ SELECT changed FROM pinpoint.changed_since($1, 'changes', 'other') $$;
SELECT pinpoint.watch('orders', 'changes'), pinpoint.position() AS position \gset
SELECT pg_temp.changed_since(:'position');
SELECT pinpoint.position() AS position \gset
REVOKE EXECUTE ON FUNCTION pinpoint.notify FROM PUBLIC;
INSERT INTO orders VALUES (1);
SELECT pg_temp.changed_since(:'position');
GRANT EXECUTE ON FUNCTION pinpoint.notify TO PUBLIC;
SELECT pinpoint.position() AS position \gset
ALTER SCHEMA pinpoint RENAME TO renamed;
INSERT INTO orders VALUES (1);
ALTER SCHEMA renamed RENAME TO pinpoint;
SELECT pg_temp.changed_since(:'position');
-- changes while the table is not watched
SELECT pinpoint.unwatch('orders');
SELECT pinpoint.position() AS position \gset
INSERT INTO orders VALUES (1);
SELECT pg_temp.changed_since(:'position');
SELECT pinpoint.watch('orders', 'changes');
SELECT pg_temp.changed_since(:'position');
SELECT pinpoint.position() AS position \gset
SECURITY LABEL FOR pinpoint ON TABLE orders IS 'other';
SELECT pg_temp.changed_since(:'position');
SELECT pinpoint.position() AS position \gset
SELECT pinpoint.unwatch('orders');
SELECT pg_temp.changed_since(:'position');
-- a new foreign table has rows that nobody has inserted here
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere;
SELECT pinpoint.watch('parts', 'changes');
SELECT pinpoint.position() AS position \gset
CREATE FOREIGN TABLE elsewhere PARTITION OF parts FOR VALUES IN (1) SERVER nowhere;
SELECT pg_temp.changed_since(:'position');
SELECT pinpoint.position() AS position \gset
CREATE TABLE here PARTITION OF parts FOR VALUES IN (2);
SELECT pg_temp.changed_since(:'position');
DROP FOREIGN DATA WRAPPER nowhere CASCADE;

-- the label goes with the table
DROP TABLE parts;
SELECT relation FROM pinpoint.watched ORDER BY relation::text COLLATE "C";
-- and all labels go with the extension
DROP EXTENSION pg_pinpoint;
SELECT count(*) FROM pg_seclabel;
CREATE EXTENSION pg_pinpoint;

-- SECURITY LABEL without FOR is not changed by this library
\c
SECURITY LABEL ON TABLE orders IS 'x';

DROP OWNED BY watch_owner;
DROP ROLE watch_owner, watch_other;
