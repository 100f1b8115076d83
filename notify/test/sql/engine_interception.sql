-- Every way to notify that PostgreSQL plans or runs as a statement goes by
-- pg_pinpoint: each transaction is published there, and PostgreSQL's own queue is
-- not touched.  The specs notify-statement and pg-notify-in-* show that they arrive.

-- Accesses to the pages of PostgreSQL's own queue, by statements before the flush.
CREATE VIEW own_queue AS
  SELECT blks_zeroed + blks_hit + blks_read AS accesses FROM pg_stat_slru WHERE lower(name) = 'notify';
\set flush 'SELECT pg_stat_force_next_flush() \\gset'

CREATE TABLE engine_rows (i int);
INSERT INTO engine_rows VALUES (1), (2);
CREATE TABLE engine_target (i int, t text DEFAULT pg_notify('engine', 'default')::text);
CREATE TABLE engine_ruled (i int);
CREATE RULE notify_rule AS ON INSERT TO engine_ruled DO ALSO NOTIFY engine, 'rule';
CREATE RULE select_rule AS ON DELETE TO engine_ruled DO INSTEAD SELECT pg_notify('engine', 'rule');
CREATE VIEW engine_view AS SELECT pg_notify('engine', 'view ' || i)::text AS sent FROM engine_rows;
CREATE MATERIALIZED VIEW engine_stored AS SELECT pg_notify('engine', 'stored')::text AS sent WITH NO DATA;

CREATE FUNCTION engine_plpgsql() RETURNS void LANGUAGE plpgsql AS
$$ BEGIN NOTIFY engine; END $$;
CREATE FUNCTION engine_perform() RETURNS void LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('engine', 'perform'); END $$;
CREATE FUNCTION engine_expression() RETURNS text LANGUAGE plpgsql AS
$$ BEGIN RETURN pg_notify('engine', 'expression'); END $$;
CREATE FUNCTION engine_inline(p text) RETURNS void LANGUAGE sql AS
$$ SELECT pg_notify('engine', p) $$;
CREATE FUNCTION engine_nested(p text) RETURNS void LANGUAGE sql AS
$$ SELECT engine_inline(p) $$;
CREATE FUNCTION engine_body(p text) RETURNS void LANGUAGE sql AS
$$ SELECT pg_notify('engine', p); SELECT NULL::void $$;
CREATE FUNCTION engine_spelling(p text) RETURNS void LANGUAGE sql AS
$$ SELECT pg_catalog . "pg_notify" ('engine', p) $$;
CREATE FUNCTION engine_upper_case(p text) RETURNS void LANGUAGE sql AS
$$ SELECT PG_NOTIFY('engine', p) $$;
CREATE FUNCTION engine_atomic(p text) RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_notify('engine', p); END;
CREATE FUNCTION engine_return(p text) RETURNS text LANGUAGE sql
RETURN pg_notify('engine', p)::text;
CREATE FUNCTION engine_set(p text) RETURNS TABLE (sent text) LANGUAGE sql AS
$$ SELECT pg_notify('engine', p || i)::text FROM engine_rows $$;
CREATE FUNCTION engine_set_stable(p text) RETURNS TABLE (sent text) LANGUAGE sql STABLE AS
$$ SELECT pg_notify('engine', p || i)::text FROM engine_rows $$;
CREATE FUNCTION engine_statement() RETURNS void LANGUAGE sql AS
$$ NOTIFY engine $$;
CREATE PROCEDURE engine_sql_procedure() LANGUAGE sql AS
$$ SELECT pg_notify('engine', 'procedure') $$;
CREATE PROCEDURE engine_atomic_procedure() LANGUAGE sql
BEGIN ATOMIC SELECT pg_notify('engine', 'procedure'); END;
CREATE PROCEDURE engine_commits() LANGUAGE plpgsql AS
$$ BEGIN NOTIFY engine; COMMIT; PERFORM pg_notify('engine', ''); COMMIT; NOTIFY engine; END $$;
CREATE FUNCTION engine_trigger() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('engine', TG_NAME); RETURN NEW; END $$;
CREATE TABLE engine_triggered (i int);
CREATE TRIGGER before_row BEFORE INSERT ON engine_triggered FOR EACH ROW EXECUTE FUNCTION engine_trigger();
CREATE TABLE engine_deferred (i int);
CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON engine_deferred DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION engine_trigger();
PREPARE engine_prepared(text) AS SELECT pg_notify('engine', $1);
PREPARE engine_given(text) AS SELECT $1 AS given;
CREATE PROCEDURE engine_argument(p text) LANGUAGE plpgsql AS $$ BEGIN END $$;
CREATE PROCEDURE engine_argument_default(p text DEFAULT pg_notify('engine', 'default')::text) LANGUAGE plpgsql AS $$ BEGIN END $$;
CREATE OPERATOR @@> (FUNCTION = pg_notify, LEFTARG = text, RIGHTARG = text);
CREATE FUNCTION engine_number(p text) RETURNS int LANGUAGE sql AS
$$ SELECT length(coalesce(pg_notify('engine', p)::text, '')) $$;
-- the planner evaluates this one, and has a subtransaction abort in its midst
CREATE FUNCTION engine_folded(p int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN RETURN p / 0; EXCEPTION WHEN division_by_zero THEN RETURN 0; END $$;
CREATE TABLE engine_check_inlined (i int CHECK (engine_number('check') = 0));
CREATE TABLE engine_default_inlined (i int, j int DEFAULT engine_number('default'));

CREATE TABLE ways (id int GENERATED ALWAYS AS IDENTITY, way text, command text, published bigint);
INSERT INTO ways (way, command) VALUES
	('NOTIFY', $$NOTIFY engine$$),
	('NOTIFY with a payload', $$NOTIFY engine, 'payload'$$),
	('NOTIFY in a block', $$BEGIN; NOTIFY engine; COMMIT$$),
	('NOTIFY in a rule', $$INSERT INTO engine_ruled VALUES (1)$$),
	('NOTIFY in PL/pgSQL', $$SELECT engine_plpgsql()$$),
	('NOTIFY in PL/pgSQL again', $$SELECT engine_plpgsql()$$),
	('NOTIFY in an SQL function', $$SELECT engine_statement()$$),
	('NOTIFY in EXECUTE', $$DO 'BEGIN EXECUTE ''NOTIFY engine''; END'$$),
	('NOTIFY in DO', $$DO 'BEGIN NOTIFY engine; END'$$),
	('three transactions of a procedure', $$CALL engine_commits()$$),
	('select list', $$SELECT pg_notify('engine', 'x')$$),
	('select list, qualified', $$SELECT pg_catalog.pg_notify('engine', 'x')$$),
	('select list, rows', $$SELECT pg_notify('engine', i::text) FROM engine_rows$$),
	('from', $$SELECT * FROM pg_notify('engine', 'x')$$),
	('lateral', $$SELECT i FROM engine_rows, LATERAL pg_notify('engine', i::text)$$),
	('rows from', $$SELECT * FROM ROWS FROM (pg_notify('engine', 'x'), generate_series(1, 2))$$),
	('where', $$SELECT i FROM engine_rows WHERE pg_notify('engine', i::text)::text = ''$$),
	('join condition', $$SELECT 1 FROM engine_rows a JOIN engine_rows b ON a.i = b.i AND pg_notify('engine', 'x')::text = ''$$),
	('group by', $$SELECT count(*) FROM engine_rows GROUP BY pg_notify('engine', i::text)::text$$),
	('having', $$SELECT count(*) FROM engine_rows HAVING pg_notify('engine', count(*)::text)::text = ''$$),
	('order by', $$SELECT i FROM engine_rows ORDER BY pg_notify('engine', i::text)::text$$),
	('distinct', $$SELECT DISTINCT pg_notify('engine', i::text)::text FROM engine_rows$$),
	('limit', $$SELECT i FROM engine_rows LIMIT length(pg_notify('engine', 'x')::text)$$),
	('offset', $$SELECT i FROM engine_rows OFFSET length(pg_notify('engine', 'x')::text)$$),
	('aggregate argument', $$SELECT count(pg_notify('engine', i::text)) FROM engine_rows$$),
	('aggregate filter', $$SELECT count(*) FILTER (WHERE pg_notify('engine', i::text)::text = '') FROM engine_rows$$),
	('window argument', $$SELECT count(pg_notify('engine', i::text)) OVER () FROM engine_rows$$),
	('window partition', $$SELECT count(*) OVER (PARTITION BY pg_notify('engine', i::text)::text) FROM engine_rows$$),
	('case', $$SELECT CASE WHEN i = 1 THEN pg_notify('engine', 'x')::text END FROM engine_rows$$),
	('array', $$SELECT ARRAY[pg_notify('engine', 'x')::text]$$),
	('argument of itself', $$SELECT pg_notify('engine', pg_notify('engine', 'x')::text)$$),
	('scalar sub-select', $$SELECT (SELECT pg_notify('engine', 'x'))$$),
	('correlated sub-select', $$SELECT (SELECT pg_notify('engine', i::text)) FROM engine_rows$$),
	('exists', $$SELECT EXISTS (SELECT FROM engine_rows WHERE pg_notify('engine', 'x')::text = '')$$),
	('in', $$SELECT '' IN (SELECT pg_notify('engine', 'x')::text)$$),
	('sub-select in from', $$SELECT * FROM (SELECT pg_notify('engine', 'x') OFFSET 0) AS s$$),
	('cte', $$WITH n AS (SELECT pg_notify('engine', 'x')) SELECT * FROM n$$),
	('cte, not materialized', $$WITH n AS NOT MATERIALIZED (SELECT pg_notify('engine', 'x')) SELECT * FROM n$$),
	('cte, recursive', $$WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3 AND pg_notify('engine', i::text)::text = '') SELECT * FROM n$$),
	('union', $$SELECT pg_notify('engine', 'x')::text UNION SELECT pg_notify('engine', 'y')::text$$),
	('values', $$VALUES (pg_notify('engine', 'x'))$$),
	('view', $$SELECT * FROM engine_view$$),
	('rule with select', $$DELETE FROM engine_ruled$$),
	('column default', $$INSERT INTO engine_target (i) VALUES (1)$$),
	('insert values', $$INSERT INTO engine_target VALUES (2, pg_notify('engine', 'x'))$$),
	('insert select', $$INSERT INTO engine_target SELECT i, pg_notify('engine', 'x') FROM engine_rows$$),
	('insert returning', $$INSERT INTO engine_target VALUES (3, '') RETURNING pg_notify('engine', 'x')$$),
	('update set', $$UPDATE engine_target SET t = pg_notify('engine', 'x')$$),
	('update returning', $$UPDATE engine_target SET t = '' RETURNING pg_notify('engine', 'x')$$),
	('update default', $$UPDATE engine_target SET t = DEFAULT$$),
	('delete returning', $$DELETE FROM engine_target WHERE i = 3 RETURNING pg_notify('engine', 'x')$$),
	('merge condition', $$MERGE INTO engine_target t USING engine_rows s ON t.i = s.i WHEN MATCHED AND pg_notify('engine', 'x')::text = 'x' THEN DELETE$$),
	('merge update', $$MERGE INTO engine_target t USING (VALUES (1)) AS s(i) ON t.i = s.i WHEN MATCHED THEN UPDATE SET t = pg_notify('engine', 'x')$$),
	('merge insert', $$MERGE INTO engine_target t USING (VALUES (9)) AS s(i) ON t.i = s.i WHEN NOT MATCHED THEN INSERT VALUES (9, pg_notify('engine', 'x'))$$),
	('modifying cte', $$WITH d AS (DELETE FROM engine_target RETURNING pg_notify('engine', 'x')) SELECT 1$$),
	('create table as', $$CREATE TEMP TABLE made AS SELECT pg_notify('engine', 'x')::text AS t$$),
	('select into', $$SELECT pg_notify('engine', 'x')::text AS t INTO TEMP made2$$),
	('refresh materialized view', $$REFRESH MATERIALIZED VIEW engine_stored$$),
	('copy to', $$COPY (SELECT pg_notify('engine', 'x')) TO '/dev/null'$$),
	('cursor', $$BEGIN; DECLARE c CURSOR FOR SELECT pg_notify('engine', 'x'); FETCH c; COMMIT$$),
	('cursor with hold', $$DECLARE c CURSOR WITH HOLD FOR SELECT pg_notify('engine', 'x')$$),
	('explain analyze', $$EXPLAIN ANALYZE SELECT pg_notify('engine', 'x')$$),
	('prepared statement', $$EXECUTE engine_prepared('x')$$),
	('prepared statement, custom plan', $$SET plan_cache_mode = force_custom_plan; EXECUTE engine_prepared('x')$$),
	('prepared statement, generic plan', $$SET plan_cache_mode = force_generic_plan; EXECUTE engine_prepared('x')$$),
	('create table as execute', $$CREATE TEMP TABLE made3 AS EXECUTE engine_as$$),
	('PL/pgSQL perform', $$SELECT engine_perform()$$),
	('PL/pgSQL perform again', $$SELECT engine_perform()$$),
	('PL/pgSQL expression', $$SELECT engine_expression()$$),
	('PL/pgSQL execute', $$DO 'BEGIN EXECUTE ''SELECT pg_notify($1, $2)'' USING ''engine'', ''x''; END'$$),
	('SQL function, inlined', $$SELECT engine_inline('x')$$),
	('SQL function, inlined for rows', $$SELECT engine_inline(i::text) FROM engine_rows$$),
	('SQL function, nested', $$SELECT engine_nested('x')$$),
	('SQL function, where', $$SELECT i FROM engine_rows WHERE engine_inline(i::text)::text = ''$$),
	('SQL function, one-time filter', $$SELECT i FROM engine_rows WHERE engine_inline('x')::text = ''$$),
	('SQL function, from', $$SELECT * FROM engine_inline('x')$$),
	('SQL function, lateral', $$SELECT i FROM engine_rows, LATERAL engine_inline(i::text)$$),
	('SQL function, join condition', $$SELECT 1 FROM engine_rows a JOIN engine_rows b ON a.i = b.i AND engine_inline('x')::text = ''$$),
	('SQL function, cross join condition', $$SELECT 1 FROM engine_rows a JOIN engine_rows b ON engine_inline(a.i::text || b.i)::text = ''$$),
	('SQL function, order by', $$SELECT i FROM engine_rows ORDER BY engine_inline(i::text)::text$$),
	('SQL function, having', $$SELECT count(*) FROM engine_rows HAVING engine_inline(count(*)::text)::text = ''$$),
	('SQL function, aggregate', $$SELECT count(engine_inline(i::text)) FILTER (WHERE engine_inline('x')::text = '') FROM engine_rows$$),
	('SQL function, window', $$SELECT count(engine_inline(i::text)) OVER () FROM engine_rows$$),
	('SQL function, limit', $$SELECT i FROM engine_rows LIMIT length(coalesce(engine_inline('x')::text, '')) + 1$$),
	('SQL function, values', $$VALUES (engine_inline('x')), (engine_inline('y'))$$),
	('SQL function, union all', $$SELECT engine_inline('x') UNION ALL SELECT engine_inline('y')$$),
	('SQL function, sub-select', $$SELECT (SELECT engine_inline('x'))$$),
	('SQL function, sub-select in from', $$SELECT * FROM (SELECT engine_inline('x') OFFSET 0) AS s$$),
	('SQL function, cte', $$WITH n AS MATERIALIZED (SELECT engine_inline('x')) SELECT * FROM n$$),
	('SQL function, insert', $$INSERT INTO engine_target SELECT 7, engine_inline('x')$$),
	('SQL function, insert returning', $$INSERT INTO engine_target VALUES (8, '') RETURNING engine_inline('x')$$),
	('SQL function, update where', $$UPDATE engine_target SET t = engine_inline('x') WHERE i = 8 OR engine_inline('y')::text = ''$$),
	('SQL function, delete returning', $$DELETE FROM engine_target WHERE i IN (7, 8) RETURNING engine_inline('x')$$),
	('SQL function, merge', $$MERGE INTO engine_rows t USING (VALUES (1)) AS s(i) ON t.i = s.i WHEN MATCHED AND engine_inline('x')::text = 'x' THEN DELETE$$),
	('SQL function, PL/pgSQL', $$DO 'BEGIN PERFORM engine_inline(''x''); END'$$),
	('SQL function, two statements', $$SELECT engine_body('x')$$),
	('SQL function, quoted name', $$SELECT engine_spelling('x')$$),
	('SQL function, upper case', $$SELECT engine_upper_case('x')$$),
	('SQL function, atomic', $$SELECT engine_atomic('x')$$),
	('SQL function, return', $$SELECT engine_return('x')$$),
	('SQL function, set-returning', $$SELECT * FROM engine_set('x')$$),
	('SQL function, set-returning, stable', $$SELECT * FROM engine_set_stable('x')$$),
	('SQL procedure', $$CALL engine_sql_procedure()$$),
	('SQL procedure, atomic', $$CALL engine_atomic_procedure()$$),
	('trigger', $$INSERT INTO engine_triggered VALUES (1)$$),
	('deferred constraint trigger', $$INSERT INTO engine_deferred VALUES (1)$$),
	('call, argument', $$CALL engine_argument(pg_notify('engine', 'x')::text)$$),
	('call, argument default', $$CALL engine_argument_default()$$),
	('call, argument, SQL function', $$CALL engine_argument(engine_number('x')::text)$$),
	('call, argument, PL/pgSQL', $$DO 'BEGIN CALL engine_argument(pg_notify(''engine'', ''x'')::text); END'$$),
	('execute, argument', $$EXECUTE engine_given(pg_notify('engine', 'x')::text)$$),
	('execute, argument, qualified name', $$EXECUTE engine_given(pg_catalog.pg_notify('engine', 'x')::text)$$),
	('execute, argument, twice', $$EXECUTE engine_given(coalesce(pg_notify('engine', 'x')::text, '') || pg_notify('engine', 'y')::text)$$),
	('execute, argument, SQL function', $$EXECUTE engine_given(engine_number('x')::text)$$),
	('explain execute, argument', $$EXPLAIN ANALYZE EXECUTE engine_given(pg_notify('engine', 'x')::text)$$),
	('create table as execute, argument', $$CREATE TEMP TABLE made4 AS EXECUTE engine_given(pg_notify('engine', 'x')::text)$$),
	('copy from, where', $$COPY engine_target FROM PROGRAM 'echo 1,x' WITH (FORMAT csv) WHERE pg_notify('engine', 'x' || i)::text = ''$$),
	('copy from, where, SQL function', $$COPY engine_target FROM PROGRAM 'echo 1,x' WITH (FORMAT csv) WHERE engine_number('x') = 1$$),
	('copy from, default, SQL function', $$COPY engine_default_inlined (i) FROM PROGRAM 'echo 1'$$),
	('check constraint, SQL function', $$INSERT INTO engine_check_inlined VALUES (1)$$),
	('operator', $$SELECT 'engine' @@> 'x'$$),
	('SQL function, window frame', $$SELECT count(*) OVER (ORDER BY i ROWS BETWEEN engine_number('x') PRECEDING AND engine_number('y') FOLLOWING) FROM engine_rows$$),
	('SQL function, sample', $$SELECT count(*) FROM engine_rows TABLESAMPLE BERNOULLI (engine_number('x')) REPEATABLE (engine_number('y'))$$),
	('SQL function, after a function that the planner evaluates', $$SELECT engine_folded(1), engine_inline('x')$$),
	('read-only transaction', $$BEGIN READ ONLY; SELECT pg_notify('engine', 'x'); COMMIT$$);
PREPARE engine_as AS SELECT pg_notify('engine', 'x')::text AS t;

-- each command as the client sends it, with the counter read before and after
:flush
SELECT accesses FROM own_queue \gset
\o /dev/null
\set ECHO none
SELECT format('UPDATE ways SET published = (SELECT coalesce(sum(transactions), 0) FROM pinpoint.stat_notify) WHERE id = %s', id),
       command,
       format('UPDATE ways SET published = (SELECT coalesce(sum(transactions), 0) FROM pinpoint.stat_notify) - published WHERE id = %s', id)
  FROM ways ORDER BY id
\gexec
\set ECHO all
\o
RESET plan_cache_mode;
CLOSE ALL;
SELECT way, published FROM ways ORDER BY id;
:flush
SELECT accesses - :accesses AS accesses FROM own_queue;

-- nothing is published for what never happened, or cannot be sent
SELECT coalesce(sum(transactions), 0) AS before FROM pinpoint.stat_notify \gset
BEGIN;
NOTIFY engine;
SELECT pg_notify('engine', 'x');
ROLLBACK;
BEGIN;
SAVEPOINT a;
NOTIFY engine;
ROLLBACK TO SAVEPOINT a;
COMMIT;
SELECT pg_notify('', 'x');
SELECT pg_notify('engine', 'x') WHERE false;
EXPLAIN (COSTS OFF) SELECT pg_notify('engine', 'x');
SELECT sum(transactions) - :before AS published FROM pinpoint.stat_notify;

-- a call that PostgreSQL evaluates by itself goes by its own queue; the spec
-- pg-notify-outside-planner shows that it arrives
CREATE TABLE engine_check (i int CHECK (pg_notify('engine', 'check')::text = ''));
SELECT coalesce(sum(transactions), 0) AS before FROM pinpoint.stat_notify \gset
INSERT INTO engine_check VALUES (1);
SELECT sum(transactions) - :before AS published FROM pinpoint.stat_notify;
:flush
SELECT accesses > :accesses AS accessed FROM own_queue;

-- errors in arguments are PostgreSQL's own, and another function of the name stays
-- what it is
\set VERBOSITY terse
-- (PostgreSQL 19 words the hint anew.)
EXECUTE engine_given(pg_notify(1, 2)::text);
\set VERBOSITY default
EXECUTE engine_given(pg_notify('engine', 'x')::text, 1);
EXECUTE engine_given(pg_notify('engine', 'x'));
EXECUTE engine_missing(pg_notify('engine', 'x')::text);
EXECUTE engine_given(pg_notify('engine', max(1)::text)::text);
COPY engine_target FROM PROGRAM 'echo 1,x' WITH (FORMAT csv) WHERE pg_notify('engine', missing)::text = '';
COPY engine_missing FROM PROGRAM 'echo 1,x' WHERE pg_notify('engine', 'x')::text = '';
CREATE FUNCTION pg_notify(text, int) RETURNS text LANGUAGE sql AS $$ SELECT 'another' $$;
SELECT coalesce(sum(transactions), 0) AS before FROM pinpoint.stat_notify \gset
EXECUTE engine_given(pg_notify('engine', 1));
SELECT sum(transactions) - :before AS published FROM pinpoint.stat_notify;
DROP FUNCTION pg_notify(text, int);

DEALLOCATE ALL;
DROP OPERATOR @@> (text, text);
DROP TABLE engine_check_inlined, engine_default_inlined, made4;
DROP FUNCTION engine_number(text), engine_folded(int);
DROP PROCEDURE engine_argument_default(text);
DROP TABLE ways, engine_target, engine_ruled, engine_triggered, engine_deferred, engine_check, made, made2, made3;
DROP VIEW engine_view;
DROP MATERIALIZED VIEW engine_stored;
DROP TABLE engine_rows CASCADE;
DROP VIEW own_queue;
DROP FUNCTION engine_plpgsql(), engine_perform(), engine_expression(), engine_inline(text),
  engine_nested(text), engine_body(text), engine_spelling(text), engine_upper_case(text), engine_atomic(text), engine_return(text), engine_set(text), engine_set_stable(text), engine_statement(),
  engine_trigger();
DROP PROCEDURE engine_sql_procedure(), engine_atomic_procedure(), engine_commits(), engine_argument(text);

-- Functions that are not volatile are inlined as ever, whatever their body mentions:
-- an index on what they return is found, also where PostgreSQL has looked at its
-- expression first outside of a query's planning.
CREATE TABLE indexed (a text);
CREATE FUNCTION mentions(t text) RETURNS text IMMUTABLE LANGUAGE sql
	AS $$ SELECT lower(t) /* for pg_notify */ $$;
CREATE UNIQUE INDEX ON indexed (mentions(a));
\c -
INSERT INTO indexed VALUES ('a');
INSERT INTO indexed VALUES ('A') ON CONFLICT (mentions(a)) DO NOTHING;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT * FROM indexed WHERE mentions(a) = 'a';
DROP TABLE indexed;
DROP FUNCTION mentions;

-- A function that returns void returns something where it is inlined, and null where it
-- is executed.  Where no planner is, it is inlined as ever.
CREATE FUNCTION engine_void(text) RETURNS void LANGUAGE sql AS $$ SELECT pg_notify('engine', $1) $$;
CREATE FUNCTION engine_fires() RETURNS trigger LANGUAGE plpgsql
	AS $$ BEGIN RAISE NOTICE 'fires for %', NEW.a; RETURN NULL; END $$;
CREATE TABLE engine_voids (a text CHECK (engine_void(a) IS NOT NULL), b text DEFAULT engine_void('b')::text);
CREATE TRIGGER engine_fires AFTER INSERT ON engine_voids
	FOR EACH ROW WHEN (engine_void(NEW.a) IS NOT NULL) EXECUTE FUNCTION engine_fires();
INSERT INTO engine_voids VALUES ('inserted');
COPY engine_voids (a) FROM PROGRAM 'echo copied';
SELECT a, b IS NULL AS is_null FROM engine_voids ORDER BY a;
PREPARE engine_given (text) AS SELECT $1 IS NULL AS is_null;
EXECUTE engine_given(engine_void('x')::text);
DEALLOCATE engine_given;
DROP TABLE engine_voids;
DROP FUNCTION engine_void, engine_fires;
