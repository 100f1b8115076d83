-- pg_listening_channels() shows what LISTEN, UNLISTEN, UNLISTEN * and DISCARD ALL
-- leave when their transaction commits, and nothing of one that does not.

SELECT * FROM pg_listening_channels() ORDER BY 1;
LISTEN alpha;
LISTEN beta;
SELECT * FROM pg_listening_channels() ORDER BY 1;
-- twice is once
LISTEN alpha;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN alpha;
SELECT * FROM pg_listening_channels() ORDER BY 1;
-- unknown to this session: no error
UNLISTEN alpha;
UNLISTEN never_listened;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;

-- they act when their transaction commits, not before
BEGIN;
LISTEN alpha;
SELECT * FROM pg_listening_channels() ORDER BY 1;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
BEGIN;
UNLISTEN alpha;
SELECT * FROM pg_listening_channels() ORDER BY 1;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;

-- rolled back
LISTEN alpha;
BEGIN;
LISTEN beta;
UNLISTEN alpha;
ROLLBACK;
SELECT * FROM pg_listening_channels() ORDER BY 1;
BEGIN;
UNLISTEN *;
LISTEN beta;
SELECT 1 / 0;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
-- an implicit transaction block of one message
LISTEN beta\; UNLISTEN alpha\; SELECT 1 / 0;
SELECT * FROM pg_listening_channels() ORDER BY 1;

-- several actions of one transaction are applied in their order
BEGIN;
LISTEN beta;
UNLISTEN *;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
BEGIN;
UNLISTEN *;
LISTEN alpha;
LISTEN beta;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
BEGIN;
UNLISTEN alpha;
LISTEN alpha;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
BEGIN;
LISTEN gamma;
UNLISTEN gamma;
LISTEN gamma;
UNLISTEN beta;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;

-- savepoints: released, rolled back, nested
BEGIN;
LISTEN top;
SAVEPOINT a;
LISTEN released;
RELEASE SAVEPOINT a;
SAVEPOINT b;
LISTEN rolled_back;
ROLLBACK TO SAVEPOINT b;
LISTEN after_rollback;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;

-- UNLISTEN in a savepoint that is rolled back never happened
BEGIN;
SAVEPOINT a;
UNLISTEN top;
UNLISTEN released;
ROLLBACK TO SAVEPOINT a;
UNLISTEN released;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
BEGIN;
SAVEPOINT a;
UNLISTEN *;
ROLLBACK TO SAVEPOINT a;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;

-- inner level released into an outer one that is rolled back, and the reverse
BEGIN;
SAVEPOINT outer_level;
LISTEN outer_channel;
SAVEPOINT inner_level;
LISTEN inner_channel;
RELEASE SAVEPOINT inner_level;
ROLLBACK TO SAVEPOINT outer_level;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
BEGIN;
SAVEPOINT outer_level;
LISTEN outer_channel;
SAVEPOINT inner_level;
LISTEN inner_channel;
ROLLBACK TO SAVEPOINT inner_level;
RELEASE SAVEPOINT outer_level;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;

-- a level without actions of its own between two that have some, and a parent
-- that gets its first actions from a child
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SAVEPOINT c;
LISTEN from_depth;
RELEASE SAVEPOINT c;
RELEASE SAVEPOINT b;
RELEASE SAVEPOINT a;
LISTEN from_top;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
BEGIN;
UNLISTEN from_top;
SAVEPOINT a;
SAVEPOINT b;
UNLISTEN *;
LISTEN last;
RELEASE SAVEPOINT a;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
-- the order is kept across levels: LISTEN outside, UNLISTEN * inside
BEGIN;
LISTEN gone;
SAVEPOINT a;
UNLISTEN *;
RELEASE SAVEPOINT a;
LISTEN kept;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;

-- COMMIT AND CHAIN, ROLLBACK AND CHAIN
BEGIN;
LISTEN chained;
COMMIT AND CHAIN;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN chained;
ROLLBACK AND CHAIN;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN kept;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;

-- LISTEN in the procedural languages
DO $$ BEGIN LISTEN from_do; END $$;
DO $$ BEGIN EXECUTE 'LISTEN from_execute'; END $$;
CREATE FUNCTION listen_plpgsql() RETURNS void LANGUAGE plpgsql AS
$$ BEGIN LISTEN from_plpgsql; END $$;
CREATE FUNCTION listen_sql() RETURNS void LANGUAGE sql AS
$$ LISTEN from_sql; $$;
CREATE PROCEDURE listen_procedure() LANGUAGE plpgsql AS
$$
BEGIN
	LISTEN committed;
	COMMIT;
	LISTEN rolled_back;
	ROLLBACK;
	UNLISTEN from_do;
END $$;
SELECT listen_plpgsql();
SELECT listen_sql();
CALL listen_procedure();
SELECT * FROM pg_listening_channels() ORDER BY 1;
-- a PL/pgSQL block with EXCEPTION is a subtransaction
DO $$
BEGIN
	LISTEN before_block;
	BEGIN
		LISTEN failed_block;
		UNLISTEN *;
		RAISE EXCEPTION 'undo';
	EXCEPTION WHEN raise_exception THEN
		LISTEN handler;
	END;
	BEGIN
		LISTEN good_block;
	EXCEPTION WHEN raise_exception THEN
		NULL;
	END;
END $$;
SELECT * FROM pg_listening_channels() ORDER BY 1;
DO $$ BEGIN UNLISTEN *; END $$;
SELECT * FROM pg_listening_channels() ORDER BY 1;
DROP FUNCTION listen_plpgsql(), listen_sql();
DROP PROCEDURE listen_procedure();

-- LISTEN as the action of a rule is not known to the grammar, NOTIFY only
CREATE TABLE listening_channels_table (i int);
CREATE RULE r AS ON INSERT TO listening_channels_table DO ALSO LISTEN from_rule;
DROP TABLE listening_channels_table;

-- the other ways to forget everything
LISTEN alpha;
LISTEN beta;
DISCARD PLANS;
RESET ALL;
SELECT * FROM pg_listening_channels() ORDER BY 1;
DISCARD ALL;
SELECT * FROM pg_listening_channels() ORDER BY 1;
LISTEN alpha;
SELECT * FROM pg_listening_channels() ORDER BY 1;
\c -
SELECT * FROM pg_listening_channels() ORDER BY 1;

-- many channels, a few of them removed
DO $$
BEGIN
	FOR i IN 1..500 LOOP EXECUTE format('LISTEN channel_%s', i); END LOOP;
	FOR i IN 2..499 LOOP EXECUTE format('UNLISTEN channel_%s', i); END LOOP;
END $$;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;
SELECT count(*) FROM pg_listening_channels();
