-- Every mistake in LISTEN, UNLISTEN, NOTIFY and pg_notify() gets PostgreSQL's
-- own message and SQLSTATE, and the session goes on.

-- channel missing or empty
SELECT pg_notify('', 'payload');
\echo :SQLSTATE
SELECT pg_notify(NULL, 'payload');
\echo :SQLSTATE
SELECT pg_notify(NULL, NULL);
\echo :SQLSTATE
NOTIFY;
\echo :SQLSTATE
NOTIFY "";
\echo :SQLSTATE
LISTEN "";
\echo :SQLSTATE
LISTEN *;
\echo :SQLSTATE
UNLISTEN;
\echo :SQLSTATE
NOTIFY errors, 5;
\echo :SQLSTATE
NOTIFY errors, NULL;
\echo :SQLSTATE

-- a channel name of 63 bytes is the longest, counted in bytes
SELECT pg_notify(repeat('c', 63), 'payload');
SELECT pg_notify(repeat('c', 64), 'payload');
\echo :SQLSTATE
SELECT pg_notify(repeat('ß', 31) || 'c', 'payload');
SELECT pg_notify(repeat('ß', 32), 'payload');
\echo :SQLSTATE
-- the channel is looked at before the payload
SELECT pg_notify('', repeat('p', 8000));
SELECT pg_notify(repeat('c', 64), repeat('p', 8000));

-- a payload of 7,999 bytes is the longest, counted in bytes
SELECT pg_notify('errors', repeat('p', 7999));
SELECT pg_notify('errors', repeat('p', 8000));
\echo :SQLSTATE
SELECT pg_notify('errors', repeat('ß', 3999) || 'p');
SELECT pg_notify('errors', repeat('ß', 4000));
\echo :SQLSTATE
SELECT format('NOTIFY errors, %L', repeat('p', 8000)) AS command \gset
\set ECHO none
:command;
\set ECHO all
\echo :SQLSTATE
SELECT format('NOTIFY errors, %L', repeat('p', 7999)) AS command \gset
\set ECHO none
:command;
\set ECHO all
\echo :SQLSTATE

-- wrong arguments are found by the parser; PostgreSQL's versions differ in their hints
\set VERBOSITY terse
SELECT pg_notify('errors');
\echo :SQLSTATE
SELECT pg_notify('errors', 1);
\echo :SQLSTATE
SELECT pg_notify('errors', 'payload', 'more');
\echo :SQLSTATE
\set VERBOSITY default
CALL pg_notify('errors', 'payload');
\echo :SQLSTATE
PREPARE p AS NOTIFY errors;
\echo :SQLSTATE

-- the context lines, as anyone who reads the server's log knows them
DO $$ BEGIN PERFORM pg_notify('', 'payload'); END $$;
\echo :SQLSTATE
DO $$ BEGIN PERFORM pg_notify('errors', repeat('p', 8000)); END $$;
\echo :SQLSTATE
CREATE FUNCTION notify_nobody() RETURNS void LANGUAGE sql
AS $$ SELECT pg_notify('', 'payload'); SELECT NULL::void $$;
SELECT notify_nobody();
\echo :SQLSTATE
CREATE FUNCTION notify_nobody_inline(channel text) RETURNS void LANGUAGE sql
AS $$ SELECT pg_notify(channel, 'payload') $$;
SELECT notify_nobody_inline('');
\echo :SQLSTATE
DROP FUNCTION notify_nobody(), notify_nobody_inline(text);

-- an error takes the statement with it, and a subtransaction can catch it
DO $$
BEGIN
	PERFORM pg_notify('', 'payload');
EXCEPTION WHEN invalid_parameter_value THEN
	RAISE NOTICE 'caught: %', SQLERRM;
END $$;

-- a transaction that failed refuses everything until it ends
BEGIN;
NOTIFY "";
NOTIFY errors;
\echo :SQLSTATE
LISTEN errors;
\echo :SQLSTATE
UNLISTEN *;
\echo :SQLSTATE
SELECT pg_notify('errors', 'payload');
\echo :SQLSTATE
ROLLBACK;

-- not in a transaction block
BEGIN;
DISCARD ALL;
\echo :SQLSTATE
ROLLBACK;

SELECT count(*) FROM pg_listening_channels();
