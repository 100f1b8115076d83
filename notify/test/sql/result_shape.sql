-- What a client and the catalogs see of NOTIFY and pg_notify(): command tags,
-- column names and types, definitions of views, rules and functions.

\set QUIET off
LISTEN shape;
UNLISTEN shape;
UNLISTEN *;
NOTIFY shape;
NOTIFY shape, 'payload';
DISCARD ALL;
\set QUIET on

-- names and types of columns
SELECT pg_notify('shape', 'payload') \gdesc
SELECT pg_notification_queue_usage() \gdesc
SELECT pg_listening_channels() \gdesc
SELECT * FROM pg_notify('shape', 'payload') \gdesc
SELECT * FROM pg_notification_queue_usage() \gdesc
PREPARE p(text) AS SELECT pg_notify('shape', $1), pg_notification_queue_usage() AS usage;
EXECUTE p('payload') \gdesc
SELECT parameter_types, statement FROM pg_prepared_statements WHERE name = 'p';
DEALLOCATE p;

-- values
\pset null '(null)'
SELECT pg_notify('shape', 'payload');
SELECT pg_notify('shape', NULL) IS NULL AS is_null;
SELECT pg_notify('shape', 'payload')::text = '' AS is_empty;
SELECT * FROM pg_notify('shape', 'payload');
SELECT count(pg_notify('shape', i::text)) FROM generate_series(1, 3) AS i;
SELECT n, i FROM generate_series(1, 3) AS i, LATERAL pg_notify('shape', i::text) AS n;
SELECT * FROM ROWS FROM (pg_notify('shape', 'payload'), generate_series(1, 2)) WITH ORDINALITY;
SELECT pg_notification_queue_usage() = 0 AS empty;
SELECT pg_notification_queue_usage() BETWEEN 0 AND 1 AS fraction FROM generate_series(1, 2);
VALUES (pg_notify('shape', 'payload'), 1);
\pset null ''

-- definitions say what their author wrote
CREATE TABLE shape_table (i int, t text);
CREATE VIEW shape_view AS
  SELECT pg_notify('shape', 'view')::text AS sent, pg_notification_queue_usage() AS usage
   WHERE pg_notify('shape', 'where')::text = '';
CREATE RULE shape_rule AS ON INSERT TO shape_table DO ALSO NOTIFY shape, 'it''s a "payload"';
CREATE RULE shape_plain AS ON DELETE TO shape_table DO ALSO NOTIFY "Shape";
ALTER TABLE shape_table ALTER t SET DEFAULT pg_notify('shape', 'default')::text;
CREATE FUNCTION shape_atomic(p text) RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_notify('shape', p); END;
SELECT pg_get_viewdef('shape_view');
SELECT rulename, definition FROM pg_rules WHERE tablename = 'shape_table' ORDER BY rulename;
SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'shape_table'::regclass;
SELECT pg_get_functiondef('shape_atomic'::regproc);
-- nothing the user made depends on anything but PostgreSQL itself
SELECT pg_describe_object(refclassid, refobjid, 0) AS refers_to
  FROM pg_depend
 WHERE refclassid = 'pg_proc'::regclass
   AND (objid = 'shape_atomic'::regproc
        OR objid IN (SELECT oid FROM pg_rewrite WHERE ev_class = 'shape_view'::regclass)
        OR objid IN (SELECT oid FROM pg_attrdef WHERE adrelid = 'shape_table'::regclass));
DROP VIEW shape_view;
DROP TABLE shape_table;
DROP FUNCTION shape_atomic(text);

-- the function looked up by name is PostgreSQL's own
SELECT 'pg_notify'::regproc, 'pg_notify(text, text)'::regprocedure::oid < 16384 AS built_in;
SELECT 'pg_notification_queue_usage()'::regprocedure::oid < 16384 AS built_in;
