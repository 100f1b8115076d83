-- What one session does and two sessions receive. A statement is a paragraph. One that begins
-- with "listener:" is of the session "listener".

CREATE TABLE t (id int PRIMARY KEY, value text);

CREATE FUNCTION tell(channel text, payload text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify(channel, payload);
  NOTIFY a, 'from a function';
  RETURN 1;
END $$;

CREATE FUNCTION tell_sql(payload text) RETURNS void LANGUAGE sql AS $$ SELECT pg_notify('a', payload) $$;

CREATE FUNCTION tell_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('rows', NEW.id || ' ' || NEW.value);
  RETURN NEW;
END $$;

CREATE TRIGGER tell AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION tell_row();

CREATE PROCEDURE tell_and_commit() LANGUAGE plpgsql AS $$
BEGIN
  NOTIFY a, 'first transaction';
  COMMIT;
  NOTIFY a, 'rolled back';
  ROLLBACK;
  NOTIFY a, 'third transaction';
END $$;

listener: LISTEN a

listener: LISTEN rows

NOTIFY a

NOTIFY a, 'statement'

NOTIFY "Nobody listens", 'x'

SELECT pg_notify('a', 'function')

SELECT pg_notify('a', 'row ' || i) FROM generate_series(1, 3) i

SELECT pg_notify('', 'no channel')

SELECT pg_notify(repeat('x', 64), 'long channel')

SELECT pg_notify('a', repeat('x', 8000))

PREPARE p(text) AS SELECT pg_notify('a', $1)

EXECUTE p('prepared')

EXECUTE p('prepared again')

EXPLAIN (COSTS OFF) SELECT pg_notify('a', 'explained')

EXPLAIN (COSTS OFF, VERBOSE) SELECT pg_notify('a', 'explained') FROM generate_series(1, 2)

EXPLAIN (COSTS OFF) EXECUTE p('explained')

EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT pg_notify('a', 'analyzed')

DO $$ BEGIN NOTIFY a, 'do'; PERFORM pg_notify('a', 'do, function'); EXECUTE 'NOTIFY a, ''do, dynamic'''; END $$

SELECT tell('a', 'called')

SELECT tell_sql('sql function')

CALL tell_and_commit()

INSERT INTO t VALUES (1, 'one'), (2, 'two')

UPDATE t SET value = 'zwei' WHERE id = 2

COPY (SELECT pg_notify('a', 'copied')) TO '/dev/null'

CREATE TABLE made AS SELECT pg_notify('a', 'create table as')

CREATE TABLE made AS SELECT 1 AS one FROM pg_notify('a', 'create table as')

BEGIN

NOTIFY a, 'twice'

NOTIFY a, 'twice'

SELECT pg_notify('a', 'twice')

NOTIFY a, 'once'

COMMIT

BEGIN

NOTIFY a, 'not sent'

LISTEN b

SELECT 1/0

COMMIT

SELECT * FROM pg_listening_channels() c WHERE c <> 'sync'

BEGIN

NOTIFY a, 'before the savepoint'

SAVEPOINT s

NOTIFY a, 'in the savepoint'

LISTEN b

ROLLBACK TO s

NOTIFY a, 'after the savepoint'

COMMIT

NOTIFY b, 'nobody'

LISTEN a

SELECT * FROM pg_listening_channels() c WHERE c <> 'sync'

NOTIFY a, 'to both'

BEGIN

UNLISTEN a

ROLLBACK

NOTIFY a, 'still to both'

UNLISTEN a

SELECT * FROM pg_listening_channels() c WHERE c <> 'sync'

NOTIFY a, 'to one'

listener: BEGIN

NOTIFY a, 'to an open transaction'

listener: COMMIT

listener: UNLISTEN rows

INSERT INTO t VALUES (3, 'three')

listener: LISTEN rows

BEGIN

NOTIFY a, 'prepared transaction'

PREPARE TRANSACTION 'x'

BEGIN READ ONLY

NOTIFY a, 'read only'

COMMIT

CREATE RULE tell AS ON DELETE TO t DO ALSO NOTIFY a, 'rule'

DELETE FROM t WHERE id = 3

DISCARD PLANS

DEALLOCATE ALL

DROP TABLE made
