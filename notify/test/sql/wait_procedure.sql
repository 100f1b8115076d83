-- pinpoint.wait(), in one session: what returns at once, and what is an error.

SELECT pinpoint.position() AS p \gset
-- no position: all channels
CALL pinpoint.wait('{a,b}', NULL) \gset
\echo :changed
SELECT :'position' = :'p' AS same;
-- a position that is not known here
CALL pinpoint.wait('{a,b}', '0000000000000001' || substr(:'p', 17)) \gset
\echo :changed
-- notified before the call; in the given order
NOTIFY b;
NOTIFY a;
CALL pinpoint.wait('{c,b,a}', :'p', NULL) \gset
\echo :changed
SELECT :'position' > :'p' AS later;
-- the timeout
CALL pinpoint.wait('{a,b}', :'position', '0') \gset
\echo :changed
CALL pinpoint.wait('{a,b}', :'position', '-1 day') \gset
\echo :changed
CALL pinpoint.wait('{a,b}', :'position', '50 ms') \gset
\echo :changed
CALL pinpoint.wait('{}', :'position', '50 ms') \gset
\echo :changed
SELECT :'position' >= :'p' AS next;
-- with the names of the parameters
CALL pinpoint.wait("position" => :'p', changed => '{a}') \gset
\echo :changed

-- in PL/pgSQL, outside of a transaction block
DO $$
DECLARE
	c text[] := '{a}';
	p text := pinpoint.position();
BEGIN
	CALL pinpoint.wait(c, p, '10 ms');
	RAISE NOTICE 'changed: %, position: %', c, p IS NOT NULL;
	COMMIT;
	CALL pinpoint.wait(c, p, '10 ms');
	PERFORM count(*) FROM pg_class;
END $$;

-- errors
\set VERBOSITY terse
\set SHOW_CONTEXT never
CALL pinpoint.wait('{a}', 'nonsense');
CALL pinpoint.wait(NULL, NULL);
CALL pinpoint.wait('{a,NULL}', NULL);
CALL pinpoint.wait('{a,""}', NULL);
CALL pinpoint.wait(ARRAY[repeat('x', 64)], NULL);
BEGIN;
CALL pinpoint.wait('{a}', NULL);
ROLLBACK;
BEGIN;
SAVEPOINT s;
CALL pinpoint.wait('{a}', NULL);
ROLLBACK;
SELECT 1 \; CALL pinpoint.wait('{a}', NULL);
BEGIN ISOLATION LEVEL REPEATABLE READ;
CALL pinpoint.wait('{a}', NULL);
ROLLBACK;
CREATE FUNCTION waits() RETURNS void LANGUAGE plpgsql AS
$$
DECLARE
	c text[] := '{a}';
	p text;
BEGIN
	CALL pinpoint.wait(c, p, '10 ms');
END $$;
-- the text differs between versions
\set VERBOSITY sqlstate
SELECT waits();
\set VERBOSITY terse
DROP FUNCTION waits;
-- a transaction that would hold back VACUUM
CREATE TABLE wait_rows AS SELECT 1 AS i;
DO $$
DECLARE
	c text[] := '{a}';
	p text := pinpoint.position();
BEGIN
	INSERT INTO wait_rows VALUES (2);
	CALL pinpoint.wait(c, p, '10 ms');
END $$;
DO $$
DECLARE
	c text[] := '{a}';
	p text := pinpoint.position();
	r record;
BEGIN
	FOR r IN SELECT 1 FROM wait_rows LOOP
		CALL pinpoint.wait(c, p, '10 ms');
	END LOOP;
END $$;
-- in an exception block
DO $$
DECLARE
	c text[] := '{a}';
	p text := pinpoint.position();
BEGIN
	CALL pinpoint.wait(c, p, '10 ms');
EXCEPTION WHEN division_by_zero THEN
	NULL;
END $$;
-- cancelled; the session goes on
SET statement_timeout = '1 s';
CALL pinpoint.wait('{a}', pinpoint.position(), NULL);
RESET statement_timeout;
SELECT count(*) FROM wait_rows;
SELECT count(*) FROM pinpoint.waiting;
DROP TABLE wait_rows;

-- the limit for a role
CREATE ROLE wait_nobody;
SET pinpoint.max_waiting = 0;
CALL pinpoint.wait('{a}', pinpoint.position(), '10 ms') \gset
\echo :changed
SET SESSION AUTHORIZATION wait_nobody;
CALL pinpoint.wait('{a}', NULL) \gset
\echo :changed
\set VERBOSITY default
CALL pinpoint.wait('{a}', pinpoint.position(), '10 ms');
SET pinpoint.max_waiting = 1;
RESET SESSION AUTHORIZATION;
SET pinpoint.max_waiting = 1;
SET SESSION AUTHORIZATION wait_nobody;
CALL pinpoint.wait('{a}', pinpoint.position(), '10 ms') \gset
\echo :changed
RESET SESSION AUTHORIZATION;
RESET pinpoint.max_waiting;
DROP ROLE wait_nobody;

-- the extension anew, in a session that has waited
DROP EXTENSION pg_pinpoint;
CREATE EXTENSION pg_pinpoint;
CALL pinpoint.wait('{a}', NULL) \gset
\echo :changed
