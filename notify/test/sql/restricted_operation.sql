-- LISTEN and UNLISTEN are refused within a security-restricted operation;
-- NOTIFY is not.

-- PostgreSQL 17 names the function in another way.
\set SHOW_CONTEXT never

CREATE FUNCTION restricted(command text) RETURNS text LANGUAGE plpgsql AS
$$ BEGIN EXECUTE command; RETURN command; END $$;

CREATE MATERIALIZED VIEW restricted_listen AS SELECT restricted('LISTEN restricted') WITH NO DATA;
REFRESH MATERIALIZED VIEW restricted_listen;
\echo :SQLSTATE
CREATE MATERIALIZED VIEW restricted_unlisten AS SELECT restricted('UNLISTEN restricted') WITH NO DATA;
REFRESH MATERIALIZED VIEW restricted_unlisten;
\echo :SQLSTATE
CREATE MATERIALIZED VIEW restricted_unlisten_all AS SELECT restricted('UNLISTEN *') WITH NO DATA;
REFRESH MATERIALIZED VIEW restricted_unlisten_all;
\echo :SQLSTATE
CREATE MATERIALIZED VIEW restricted_notify AS SELECT restricted('NOTIFY restricted') WITH NO DATA;
REFRESH MATERIALIZED VIEW restricted_notify;
SELECT * FROM restricted_notify;
CREATE MATERIALIZED VIEW restricted_pg_notify AS SELECT pg_notify('restricted', 'payload')::text AS t WITH NO DATA;
REFRESH MATERIALIZED VIEW restricted_pg_notify;
SELECT * FROM restricted_pg_notify;
SELECT * FROM pg_listening_channels() ORDER BY 1;

DROP MATERIALIZED VIEW restricted_listen, restricted_unlisten, restricted_unlisten_all,
  restricted_notify, restricted_pg_notify;
DROP FUNCTION restricted(text);
