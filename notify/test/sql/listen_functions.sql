-- pinpoint.listen() and pinpoint.unlisten(), in one session.

SET client_min_messages = warning;
CREATE VIEW mine AS SELECT array_agg(c ORDER BY c COLLATE "C") AS channels FROM pg_listening_channels() AS c;

SELECT pinpoint.listen('plain', 'Upper Case', repeat('x', 63), ';');
TABLE mine;
-- names are exact
SELECT pinpoint.unlisten('upper case', 'Upper Case', ';', 'never');
TABLE mine;
UNLISTEN *;
-- an array, also an empty one; the same name twice
SELECT pinpoint.listen(VARIADIC ARRAY['a', 'b', 'a']), pinpoint.listen(VARIADIC '{}');
TABLE mine;
-- LISTEN and UNLISTEN are the same
UNLISTEN a;
LISTEN c;
SELECT pinpoint.unlisten('c');
TABLE mine;
UNLISTEN *;

-- at commit
BEGIN;
SELECT pinpoint.listen('a');
TABLE mine;
ROLLBACK;
TABLE mine;
BEGIN;
SELECT pinpoint.listen('a');
SAVEPOINT s;
SELECT pinpoint.listen('b'), pinpoint.unlisten('a');
ROLLBACK TO s;
SELECT pinpoint.listen('c');
COMMIT;
TABLE mine;
-- in a function, for each row, in a read-only transaction
DO $$ BEGIN PERFORM pinpoint.listen('d'); END $$;
SELECT pinpoint.listen('e' || i) FROM generate_series(1, 2) AS i;
BEGIN READ ONLY;
SELECT pinpoint.unlisten('d');
COMMIT;
TABLE mine;
UNLISTEN *;

-- the errors are those of pg_notify(), and of LISTEN
\set SHOW_CONTEXT never
\set VERBOSITY sqlstate
SELECT pg_notify('', '');
SELECT pinpoint.listen('');
SELECT pinpoint.unlisten('');
SELECT pg_notify(repeat('x', 64), '');
SELECT pinpoint.listen(repeat('x', 64));
SELECT pinpoint.unlisten(repeat('x', 64));
\set VERBOSITY terse
SELECT pinpoint.listen('');
SELECT pinpoint.listen(repeat('x', 64));
SELECT pinpoint.listen(NULL);
SELECT pinpoint.listen(VARIADIC NULL);
SELECT pinpoint.unlisten('a', NULL);
-- an error leaves nothing
SELECT pinpoint.listen('good', '');
TABLE mine;
-- in an operation with restricted security
CREATE TABLE restricted (i int);
INSERT INTO restricted VALUES (1);
CREATE FUNCTION listens(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN PERFORM pinpoint.listen('a'); RETURN i; END $$;
CREATE INDEX ON restricted (listens(i));
CREATE OR REPLACE FUNCTION listens(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN PERFORM pinpoint.unlisten('a'); RETURN i; END $$;
CREATE INDEX ON restricted (listens(i));
DROP TABLE restricted;
DROP FUNCTION listens;
\set VERBOSITY default

-- for everybody
CREATE ROLE listen_nobody;
SET ROLE listen_nobody;
SELECT pinpoint.listen('a');
RESET ROLE;
TABLE mine;
DROP ROLE listen_nobody;
DROP VIEW mine;
