-- The EXECUTE privilege on pg_notify() keeps its force, wherever the call
-- stands; NOTIFY, LISTEN and UNLISTEN ask for no privilege.

CREATE ROLE notify_allowed;
CREATE ROLE notify_refused;
GRANT CREATE ON SCHEMA public TO notify_allowed, notify_refused;
CREATE TABLE notify_privileges_rows (i int);
GRANT ALL ON notify_privileges_rows TO PUBLIC;
CREATE VIEW notify_privileges_view AS SELECT pg_notify('privileges', 'view')::text AS sent;
GRANT SELECT ON notify_privileges_view TO PUBLIC;

REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO notify_allowed;

SET ROLE notify_allowed;
SELECT pg_notify('privileges', 'allowed');
SELECT * FROM notify_privileges_view;

SET ROLE notify_refused;
SELECT pg_notify('privileges', 'refused');
\echo :SQLSTATE
-- before the first row, so also where there is none
SELECT pg_notify('privileges', i::text) FROM notify_privileges_rows;
\echo :SQLSTATE
SELECT count(pg_notify('privileges', i::text)) FROM notify_privileges_rows;
SELECT i FROM notify_privileges_rows WHERE pg_notify('privileges', 'where')::text = '';
SELECT i FROM notify_privileges_rows ORDER BY pg_notify('privileges', 'order')::text;
SELECT i FROM notify_privileges_rows LIMIT length(pg_notify('privileges', 'limit')::text);
INSERT INTO notify_privileges_rows SELECT i FROM notify_privileges_rows
  RETURNING pg_notify('privileges', 'returning');
UPDATE notify_privileges_rows SET i = 1 WHERE i = 0 RETURNING pg_notify('privileges', 'returning');
SELECT * FROM pg_notify('privileges', 'from');
SELECT i FROM notify_privileges_rows, LATERAL pg_notify('privileges', i::text);
SELECT (SELECT pg_notify('privileges', 'sub-select'));
WITH n AS MATERIALIZED (SELECT pg_notify('privileges', 'cte')) SELECT * FROM n;
VALUES (pg_notify('privileges', 'values'));
SELECT CASE WHEN i = 1 THEN pg_notify('privileges', 'case') END FROM notify_privileges_rows;
SELECT * FROM notify_privileges_view;
\echo :SQLSTATE
CREATE TABLE notify_privileges_as AS SELECT pg_notify('privileges', 'as')::text AS t;
DECLARE c CURSOR WITH HOLD FOR SELECT pg_notify('privileges', 'cursor');
DO $$ BEGIN PERFORM pg_notify('privileges', 'do'); END $$;
\echo :SQLSTATE
DO $$ DECLARE t text; BEGIN t := pg_notify('privileges', 'expression'); END $$;
DO $$ BEGIN EXECUTE 'SELECT pg_notify(''privileges'', ''execute'')'; END $$;
EXPLAIN (COSTS OFF) SELECT pg_notify('privileges', 'explain') FROM notify_privileges_rows;
-- a channel name that would be an error by itself: the privilege comes first
SELECT pg_notify('', 'refused');
-- a call that is never reached is refused as well
SELECT pg_notify('privileges', 'never') WHERE false;
SELECT CASE WHEN true THEN 'constant' ELSE pg_notify('privileges', 'folded away')::text END;

-- these statements ask for no privilege
NOTIFY privileges, 'statement';
LISTEN privileges_statement;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;
SELECT pg_notification_queue_usage() = 0 AS empty;
RESET ROLE;

-- the current role counts when the statement runs, not when it was planned
PREPARE p AS SELECT pg_notify('privileges', 'prepared');
EXECUTE p;
SET ROLE notify_refused;
EXECUTE p;
\echo :SQLSTATE
SET ROLE notify_allowed;
EXECUTE p;
RESET ROLE;
SET plan_cache_mode = force_generic_plan;
PREPARE g(int) AS SELECT pg_notify('privileges', $1::text) FROM notify_privileges_rows WHERE i = $1;
EXECUTE g(1);
SET ROLE notify_refused;
EXECUTE g(1);
\echo :SQLSTATE
SET ROLE notify_allowed;
EXECUTE g(1);
RESET ROLE;
RESET plan_cache_mode;
-- and a privilege taken or given later counts too
SET ROLE notify_refused;
PREPARE l AS SELECT pg_notify('privileges', 'later');
EXECUTE l;
RESET ROLE;
GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO notify_refused;
SET ROLE notify_refused;
EXECUTE l;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM notify_refused;
SET ROLE notify_refused;
EXECUTE l;
RESET ROLE;
DEALLOCATE ALL;

-- PL/pgSQL keeps plans for the session
CREATE FUNCTION notify_plpgsql() RETURNS text LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('privileges', 'plpgsql'); RETURN 'sent'; END $$;
SELECT notify_plpgsql();
SET ROLE notify_refused;
SELECT notify_plpgsql();
\echo :SQLSTATE
SET ROLE notify_allowed;
SELECT notify_plpgsql();
RESET ROLE;

-- SQL functions, inlined or not
CREATE FUNCTION notify_inline(p text) RETURNS void LANGUAGE sql AS
$$ SELECT pg_notify('privileges', p) $$;
CREATE FUNCTION notify_body(p text) RETURNS void LANGUAGE sql AS
$$ SELECT pg_notify('privileges', p); SELECT NULL::void $$;
CREATE FUNCTION notify_atomic(p text) RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_notify('privileges', p); END;
CREATE FUNCTION notify_set(p text) RETURNS TABLE (sent text) LANGUAGE sql AS
$$ SELECT pg_notify('privileges', p)::text FROM generate_series(1, 2) $$;
SET ROLE notify_refused;
SELECT notify_inline('inline');
SELECT notify_inline(i::text) FROM notify_privileges_rows;
SELECT i FROM notify_privileges_rows WHERE notify_inline('where')::text = '';
INSERT INTO notify_privileges_rows SELECT 1 WHERE false RETURNING notify_inline('returning');
SELECT notify_body('body');
SELECT notify_atomic('atomic');
SELECT * FROM notify_set('set');
SET ROLE notify_allowed;
SELECT notify_inline('inline');
SELECT notify_body('body');
SELECT notify_atomic('atomic');
SELECT * FROM notify_set('set');
RESET ROLE;

-- SECURITY DEFINER: the owner of the function counts
CREATE FUNCTION notify_as_owner(p text) RETURNS void LANGUAGE sql SECURITY DEFINER AS
$$ SELECT pg_notify('privileges', p) $$;
SET ROLE notify_refused;
SELECT notify_as_owner('owner is superuser');
CREATE FUNCTION notify_as_refused(p text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS
$$ BEGIN PERFORM pg_notify('privileges', p); END $$;
RESET ROLE;
SELECT notify_as_refused('owner is refused');
\echo :SQLSTATE
ALTER FUNCTION notify_as_owner(text) OWNER TO notify_allowed;
SET ROLE notify_refused;
SELECT notify_as_owner('owner is allowed');
RESET ROLE;

-- a trigger runs as the role that fires it
CREATE FUNCTION notify_trigger() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('privileges', NEW.i::text); RETURN NEW; END $$;
CREATE TRIGGER t BEFORE INSERT ON notify_privileges_rows
  FOR EACH ROW EXECUTE FUNCTION notify_trigger();
SET ROLE notify_refused;
INSERT INTO notify_privileges_rows VALUES (1);
\echo :SQLSTATE
SET ROLE notify_allowed;
INSERT INTO notify_privileges_rows VALUES (1);
RESET ROLE;
SELECT * FROM notify_privileges_rows;

-- queue usage has a privilege of its own
REVOKE EXECUTE ON FUNCTION pg_notification_queue_usage() FROM PUBLIC;
SET ROLE notify_allowed;
SELECT pg_notification_queue_usage();
\echo :SQLSTATE
SELECT pg_notification_queue_usage() FROM notify_privileges_rows WHERE false;
SELECT * FROM pg_notification_queue_usage();
RESET ROLE;
SELECT pg_notification_queue_usage() = 0 AS empty;

GRANT EXECUTE ON FUNCTION pg_notification_queue_usage() TO PUBLIC;
GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO PUBLIC;
SET ROLE notify_refused;
SELECT pg_notify('privileges', 'granted again');
RESET ROLE;

DROP TABLE notify_privileges_rows CASCADE;
DROP VIEW notify_privileges_view;
DROP FUNCTION notify_plpgsql(), notify_inline(text), notify_body(text), notify_atomic(text),
  notify_set(text), notify_as_owner(text), notify_as_refused(text), notify_trigger();
REVOKE ALL ON FUNCTION pg_notify(text, text) FROM notify_allowed;
DROP OWNED BY notify_allowed, notify_refused;
DROP ROLE notify_allowed, notify_refused;
