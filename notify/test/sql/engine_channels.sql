-- What pg_pinpoint knows of a session's channels agrees with
-- pg_listening_channels(), whatever the session did to them.

CREATE VIEW ours AS SELECT channel FROM pinpoint.stat_channels WHERE datname = current_database();
CREATE VIEW agreement AS
  SELECT (SELECT count(*) FROM pg_listening_channels()) AS channels,
         (SELECT count(*) FROM ours) AS in_map,
         (SELECT channels FROM pinpoint.stat_listeners WHERE pid = pg_backend_pid()) AS of_session,
         ARRAY(SELECT pg_listening_channels() EXCEPT SELECT channel FROM ours) AS missing,
         ARRAY(SELECT channel FROM ours EXCEPT SELECT pg_listening_channels()) AS surplus;

SELECT * FROM agreement;
LISTEN alpha;
LISTEN "Alpha";
LISTEN alpha;
SELECT * FROM agreement;
BEGIN;
LISTEN beta;
SELECT * FROM agreement;
ROLLBACK;
SELECT * FROM agreement;
BEGIN;
LISTEN beta;
SAVEPOINT a;
LISTEN gamma;
UNLISTEN alpha;
SAVEPOINT b;
UNLISTEN *;
ROLLBACK TO SAVEPOINT b;
RELEASE SAVEPOINT a;
COMMIT;
SELECT * FROM agreement;
BEGIN;
UNLISTEN *;
LISTEN delta;
UNLISTEN gamma;
LISTEN epsilon;
COMMIT;
SELECT * FROM agreement;
BEGIN;
LISTEN zeta;
SAVEPOINT a;
UNLISTEN *;
RELEASE SAVEPOINT a;
LISTEN eta;
COMMIT;
SELECT * FROM agreement;
DO $$
BEGIN
	FOR i IN 1..1000 LOOP EXECUTE format('LISTEN channel_%s', i); END LOOP;
END $$;
SELECT * FROM agreement;
DO $$
BEGIN
	FOR i IN 1..1000 LOOP
		EXECUTE format('UNLISTEN channel_%s', i);
		IF i % 10 = 0 THEN ROLLBACK; ELSIF i % 2 = 0 THEN COMMIT; END IF;
	END LOOP;
END $$;
SELECT * FROM agreement;
LISTEN c23456789_123456789_123456789_123456789_123456789_123456789_123;
LISTEN c23456789_123456789_123456789_123456789_123456789_123456789_12;
LISTEN "ピンポイント";
SELECT * FROM agreement;
UNLISTEN *;
SELECT * FROM agreement;
LISTEN alpha;
LISTEN beta;
DISCARD ALL;
SELECT * FROM agreement;

-- LISTEN that changes nothing, and later UNLISTEN
LISTEN alpha;
LISTEN alpha;
UNLISTEN alpha;
SELECT * FROM agreement;
-- one channel several times in a transaction
BEGIN;
LISTEN alpha;
UNLISTEN alpha;
UNLISTEN alpha;
UNLISTEN beta;
LISTEN beta;
UNLISTEN beta;
LISTEN beta;
COMMIT;
SELECT * FROM agreement;
BEGIN;
UNLISTEN *;
UNLISTEN beta;
LISTEN alpha;
UNLISTEN alpha;
LISTEN gamma;
UNLISTEN alpha;
COMMIT;
SELECT * FROM agreement;
UNLISTEN gamma;
SELECT * FROM agreement;

DROP VIEW agreement, ours;
