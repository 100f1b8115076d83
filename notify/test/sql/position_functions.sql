-- pinpoint.position() and pinpoint.changed_since(), in one session.

-- a position is a text, and is the same while nothing is notified
SELECT pinpoint.position() AS p \gset
SELECT :'p' ~ '^[0-9a-f]{16}-[0-9a-f]{16}-[0-9a-f]{16}-[0-9a-f]{8}-[0-9a-f]{16}$' AS is_position;
SELECT changed, position = :'p' AS same FROM pinpoint.changed_since(:'p', 'a', 'b');
NOTIFY a;
SELECT changed FROM pinpoint.changed_since(:'p', 'a', 'b');
SELECT changed FROM pinpoint.changed_since(:'p', 'b', 'a', 'b', 'a');
-- the next position
SELECT position AS q FROM pinpoint.changed_since(:'p', 'a', 'b') \gset
SELECT :'q' > :'p' AS later;
SELECT changed, position = :'q' AS same FROM pinpoint.changed_since(:'q', 'a', 'b');
-- sessions that have the first one still get their answer
SELECT changed FROM pinpoint.changed_since(:'p', 'a', 'b');
-- both ways to notify count, names are exact, and nobody has to listen
SELECT pg_notify('A', 'x');
SELECT changed FROM pinpoint.changed_since(:'q', 'a', 'b', 'A');
NOTIFY "b";
SELECT changed FROM pinpoint.changed_since(:'q', VARIADIC ARRAY['a', 'b', 'A']);

-- only what commits counts
SELECT pinpoint.position() AS p \gset
BEGIN;
NOTIFY a;
SELECT changed FROM pinpoint.changed_since(:'p', 'a', 'b', 'c');
ROLLBACK;
SELECT changed FROM pinpoint.changed_since(:'p', 'a', 'b', 'c');
BEGIN;
NOTIFY a;
SAVEPOINT s;
NOTIFY b;
ROLLBACK TO s;
SAVEPOINT s;
NOTIFY c;
RELEASE s;
COMMIT;
SELECT changed FROM pinpoint.changed_since(:'p', 'a', 'b', 'c');

-- a transaction with many channels: all of them, and few others
SELECT pinpoint.position() AS p \gset
SELECT count(pg_notify('many_' || i, '')) FROM generate_series(1, 1000) AS i;
SELECT cardinality(changed) FROM pinpoint.changed_since(:'p',
	VARIADIC (SELECT array_agg('many_' || i) FROM generate_series(1, 1000) AS i));
SELECT cardinality(changed) < 100 AS few FROM pinpoint.changed_since(:'p',
	VARIADIC (SELECT array_agg('other_' || i) FROM generate_series(1, 1000) AS i));

-- so many channels that most places are set: the place of the database is not
SELECT pinpoint.position() AS p \gset
SELECT count(pg_notify('very_many_' || i, '')) FROM generate_series(1, 200000) AS i;
SELECT cardinality(changed) < 1000 AS not_all FROM pinpoint.changed_since(:'p',
	VARIADIC (SELECT array_agg('other_' || i) FROM generate_series(1, 1000) AS i));

-- nothing is known: all have changed
SELECT changed FROM pinpoint.changed_since(NULL, 'never', 'notified');
-- of another system, of another incarnation, from the future, of another database, with
-- another signature, in the form of version 1.0: not given by this server
SELECT pinpoint.position() AS p \gset
SELECT changed FROM pinpoint.changed_since('0000000000000001' || substr(:'p', 17), 'never');
SELECT changed FROM pinpoint.changed_since(substr(:'p', 1, 17) || '0000000000000001' || substr(:'p', 34), 'never');
SELECT changed FROM pinpoint.changed_since(substr(:'p', 1, 34) || '7fffffffffffffff' || substr(:'p', 51), 'never');
SELECT changed FROM pinpoint.changed_since(substr(:'p', 1, 34) || 'ffffffffffffffff' || substr(:'p', 51), 'never');
SELECT changed FROM pinpoint.changed_since(substr(:'p', 1, 51) || '00000001' || substr(:'p', 60), 'never');
SELECT changed FROM pinpoint.changed_since(substr(:'p', 1, 60) || translate(right(:'p', 16), '0123456789abcdef', '123456789abcdef0'), 'never');
SELECT changed FROM pinpoint.changed_since(substr(:'p', 1, 50), 'never');
-- a number that the counter will reach: a role that notifies on the channel of heartbeats
-- can choose the text
SELECT substr(:'p', 1, 34) || lpad(to_hex(('x' || substr(:'p', 35, 16))::bit(64)::bigint + 5), 16, '0') || substr(:'p', 51) AS future \gset
SELECT count(pg_notify('guessed', i::text)) FROM generate_series(1, 1) AS i;
DO $$ BEGIN FOR i IN 1 .. 9 LOOP PERFORM pg_notify('fill', i::text); COMMIT; END LOOP; END $$;
SELECT changed FROM pinpoint.changed_since(:'future', 'guessed');
SELECT pinpoint.position() AS p \gset
SELECT changed FROM pinpoint.changed_since(:'p', 'never');

-- what is no position
\set VERBOSITY terse
SELECT pinpoint.changed_since('', 'a');
\echo :SQLSTATE
SELECT pinpoint.changed_since('0/0', 'a');
\echo :SQLSTATE
SELECT pinpoint.changed_since('0000000000000000-0000000000000000-0000000000000000-', 'a');
\echo :SQLSTATE
SELECT pinpoint.changed_since(replace('0000000000000000-0000000000000000-0000000000000000', '-', '0'), 'a');
SELECT pinpoint.changed_since('000000000000000g-0000000000000000-0000000000000000', 'a');
SELECT pinpoint.changed_since('0000000000000000000000000000000000000000000000000000000000000000000000000000', 'a');
SELECT pinpoint.changed_since('0000000000000000-0000000000000000-0000000000000000-00000000-000000000000000g', 'a');

-- what are no channels
SELECT changed FROM pinpoint.changed_since(:'p', VARIADIC '{}');
SELECT changed FROM pinpoint.changed_since(:'p', VARIADIC NULL);
\echo :SQLSTATE
SELECT changed FROM pinpoint.changed_since(:'p', 'a', NULL);
\echo :SQLSTATE
SELECT changed FROM pinpoint.changed_since(NULL, 'a', NULL);
\echo :SQLSTATE
SELECT changed FROM pinpoint.changed_since(:'p', '');
\echo :SQLSTATE
SELECT changed FROM pinpoint.changed_since(:'p', repeat('c', 63));
SELECT changed FROM pinpoint.changed_since(:'p', repeat('c', 64));
\echo :SQLSTATE
\set VERBOSITY default

-- above READ COMMITTED the snapshot is older than the answer
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pinpoint.position();
\echo :SQLSTATE
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT pinpoint.changed_since(NULL, 'a');
\echo :SQLSTATE
ROLLBACK;
BEGIN ISOLATION LEVEL READ UNCOMMITTED;
SELECT changed FROM pinpoint.changed_since(NULL, 'a');
ROLLBACK;

-- of what goes PostgreSQL's own way the channels are not known
SELECT pinpoint.position() AS p \gset
BEGIN;
SET LOCAL pinpoint.enabled = off;
NOTIFY a;
ROLLBACK;
SELECT changed FROM pinpoint.changed_since(:'p', 'a');
BEGIN;
SET LOCAL pinpoint.enabled = off;
NOTIFY a;
COMMIT;
SELECT changed FROM pinpoint.changed_since(:'p', 'a', 'never');
SELECT changed FROM pinpoint.changed_since(pinpoint.position(), 'a', 'never');
-- what nobody rewrites, in a transaction that also notifies our way
CREATE TABLE position_check (i int CHECK (pg_notify('a', '') IS NOT NULL));
SELECT pinpoint.position() AS p \gset
BEGIN;
NOTIFY b;
INSERT INTO position_check VALUES (1);
COMMIT;
SELECT changed FROM pinpoint.changed_since(:'p', 'a', 'b', 'never');
DROP TABLE position_check;
SELECT pinpoint.position() AS p \gset

-- LISTEN is not valid before its transaction has committed: a notification until then
-- does not arrive, so the channel counts as changed
BEGIN;
LISTEN a;
SAVEPOINT s;
LISTEN b;
SELECT changed FROM pinpoint.changed_since(:'p', 'a', 'b', 'c');
ROLLBACK TO s;
SELECT changed FROM pinpoint.changed_since(:'p', 'a', 'b', 'c');
COMMIT;
SELECT changed FROM pinpoint.changed_since(:'p', 'a', 'b', 'c');
BEGIN;
LISTEN a;
SELECT changed FROM pinpoint.changed_since(:'p', 'a', 'b', 'c');
COMMIT;
UNLISTEN a;

-- anyone may ask
CREATE ROLE position_plain;
SET ROLE position_plain;
SELECT pinpoint.position() = :'p' AS same;
SELECT changed FROM pinpoint.changed_since(:'p', 'a');
RESET ROLE;
DROP ROLE position_plain;

-- the extension anew: what went by in between is counted like that
SELECT pinpoint.position() AS p \gset
BEGIN;
DROP EXTENSION pg_pinpoint;
CREATE EXTENSION pg_pinpoint;
ROLLBACK;
SELECT changed FROM pinpoint.changed_since(:'p', 'a');
CREATE EXTENSION IF NOT EXISTS pg_pinpoint;
SELECT changed FROM pinpoint.changed_since(:'p', 'a');
DROP EXTENSION pg_pinpoint;
NOTIFY a;
CREATE EXTENSION pg_pinpoint;
SELECT changed FROM pinpoint.changed_since(:'p', 'never');
SELECT changed FROM pinpoint.changed_since(pinpoint.position(), 'never');
BEGIN;
DROP EXTENSION pg_pinpoint;
NOTIFY a;
CREATE EXTENSION pg_pinpoint;
SELECT pinpoint.position() AS q \gset
COMMIT;
SELECT changed FROM pinpoint.changed_since(:'q', 'never');
