-- LISTEN, UNLISTEN, NOTIFY and pg_notify() are allowed in a read-only
-- transaction, at every isolation level.

SET default_transaction_read_only = on;
LISTEN read_only_default;
NOTIFY read_only;
SELECT pg_notify('read_only', 'payload');
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN read_only_default;
SELECT * FROM pg_listening_channels() ORDER BY 1;
RESET default_transaction_read_only;

BEGIN READ ONLY;
LISTEN read_only_block;
NOTIFY read_only;
SELECT pg_notify('read_only', 'payload');
COMMIT;
BEGIN TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
LISTEN read_only_deferrable;
NOTIFY read_only;
SELECT pg_notify('read_only', 'payload');
COMMIT;
BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;
UNLISTEN read_only_block;
NOTIFY read_only;
SAVEPOINT a;
NOTIFY read_only, 'savepoint';
RELEASE SAVEPOINT a;
COMMIT;
SELECT * FROM pg_listening_channels() ORDER BY 1;
UNLISTEN *;

-- the transaction is still read-only
BEGIN READ ONLY;
NOTIFY read_only;
CREATE TABLE read_only_table (i int);
\echo :SQLSTATE
ROLLBACK;
