-- PREPARE TRANSACTION is refused after LISTEN, UNLISTEN or NOTIFY, and allowed
-- when a rollback to a savepoint took them back.  (Needs max_prepared_transactions > 0.)

CREATE TABLE prepare_transaction_rows (t text);

BEGIN;
NOTIFY prepared;
PREPARE TRANSACTION 'pinpoint notify';
\echo :SQLSTATE
BEGIN;
SELECT pg_notify('prepared', 'payload');
PREPARE TRANSACTION 'pinpoint pg_notify';
\echo :SQLSTATE
BEGIN;
LISTEN prepared;
PREPARE TRANSACTION 'pinpoint listen';
\echo :SQLSTATE
SELECT * FROM pg_listening_channels() ORDER BY 1;
LISTEN prepared;
BEGIN;
UNLISTEN prepared;
PREPARE TRANSACTION 'pinpoint unlisten';
\echo :SQLSTATE
BEGIN;
UNLISTEN *;
PREPARE TRANSACTION 'pinpoint unlisten all';
\echo :SQLSTATE
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;

-- refused means rolled back
BEGIN;
INSERT INTO prepare_transaction_rows VALUES ('refused');
SAVEPOINT a;
NOTIFY prepared;
RELEASE SAVEPOINT a;
PREPARE TRANSACTION 'pinpoint savepoint';
SELECT * FROM prepare_transaction_rows;
SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE 'pinpoint%';

-- other reasons come first, as on a server without the library
BEGIN;
CREATE TEMPORARY TABLE prepare_transaction_temporary ();
NOTIFY prepared;
PREPARE TRANSACTION 'pinpoint temporary';
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pg_export_snapshot() <> '' AS exported;
LISTEN prepared;
PREPARE TRANSACTION 'pinpoint snapshot';
SELECT * FROM pg_listening_channels() ORDER BY 1;

-- what a savepoint took back does not count
BEGIN;
INSERT INTO prepare_transaction_rows VALUES ('allowed');
SAVEPOINT a;
NOTIFY prepared;
LISTEN prepared;
SELECT pg_notify('prepared', 'payload');
ROLLBACK TO SAVEPOINT a;
PREPARE TRANSACTION 'pinpoint rolled back';
SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'pinpoint%';
SELECT * FROM pg_listening_channels() ORDER BY 1;
COMMIT PREPARED 'pinpoint rolled back';
SELECT * FROM prepare_transaction_rows;

-- looking is no obstacle, nor is what the session listened to before
LISTEN prepared;
BEGIN;
SELECT * FROM pg_listening_channels() ORDER BY 1;
SELECT pg_notification_queue_usage() = 0 AS empty;
PREPARE TRANSACTION 'pinpoint look';
ROLLBACK PREPARED 'pinpoint look';
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;

-- UNLISTEN in a session that never listened is nothing at all
\c -
BEGIN;
UNLISTEN prepared;
UNLISTEN *;
PREPARE TRANSACTION 'pinpoint never listened';
\echo :SQLSTATE
ROLLBACK PREPARED 'pinpoint never listened';

-- temporary objects are refused first, as in PostgreSQL
BEGIN;
CREATE TEMPORARY TABLE prepare_transaction_temporary ();
NOTIFY prepared;
PREPARE TRANSACTION 'pinpoint temporary';
\echo :SQLSTATE

DROP TABLE prepare_transaction_rows;
