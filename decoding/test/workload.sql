-- What logical decoding can meet: run by t/004_streams.pl, and decoded with
-- and without the library.

\set ON_ERROR_STOP on
SET client_min_messages = warning;

-- ---- tables of every kind

CREATE TABLESPACE elsewhere LOCATION '';
CREATE TABLE plain (id int PRIMARY KEY, a text);
CREATE TABLE wide (id int PRIMARY KEY, a text, b text);
ALTER TABLE wide ALTER a SET STORAGE external, ALTER b SET STORAGE external;
CREATE TABLE everything_old (id int, a text);
ALTER TABLE everything_old REPLICA IDENTITY FULL;
CREATE TABLE there (id int PRIMARY KEY, a text) TABLESPACE elsewhere;
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY, a text);
CREATE TEMP TABLE mine (id int PRIMARY KEY, a text);
CREATE TABLE settings (id int PRIMARY KEY, a text) WITH (user_catalog_table = true);
CREATE TABLE parts (id int, a text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (200) PARTITION BY HASH (id);
CREATE TABLE parts_2_0 PARTITION OF parts_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parts_2_1 PARTITION OF parts_2 FOR VALUES WITH (MODULUS 2, REMAINDER 1) TABLESPACE elsewhere;
CREATE TABLE parent (id int PRIMARY KEY, a text);
CREATE TABLE child (b int, PRIMARY KEY (id)) INHERITS (parent);
CREATE MATERIALIZED VIEW summary AS SELECT a, count(*) AS n FROM everything_old GROUP BY a;
CREATE UNIQUE INDEX ON summary (a);
CREATE SEQUENCE counting;

INSERT INTO plain SELECT n, 'plain ' || n FROM generate_series(1, 50) n;
INSERT INTO wide SELECT n, repeat('a' || n, 3000), repeat('b' || n, 3000) FROM generate_series(1, 5) n;
INSERT INTO everything_old SELECT n, 'old ' || n FROM generate_series(1, 20) n;
INSERT INTO there SELECT n, 'there ' || n FROM generate_series(1, 20) n;
INSERT INTO unlogged VALUES (1, 'seen when it is logged');
INSERT INTO mine VALUES (1, 'temporary row');
INSERT INTO settings VALUES (1, 'one'), (2, 'two');
INSERT INTO parts SELECT n, 'part ' || n FROM generate_series(90, 110) n;
INSERT INTO parent VALUES (1, 'parent');
INSERT INTO child VALUES (2, 'child', 2);
SELECT nextval('counting') FROM generate_series(1, 40);
REFRESH MATERIALIZED VIEW summary;
REFRESH MATERIALIZED VIEW CONCURRENTLY summary;

-- ---- every table gets new files, in a transaction each

VACUUM FULL plain;
INSERT INTO plain VALUES (51, 'after VACUUM FULL');
CLUSTER plain USING plain_pkey;
UPDATE plain SET a = 'after CLUSTER' WHERE id = 51;
TRUNCATE plain;
INSERT INTO plain VALUES (52, 'after TRUNCATE');
TRUNCATE parts, child, wide RESTART IDENTITY CASCADE;
INSERT INTO wide VALUES (6, repeat('a6', 3000), 'short');
UPDATE wide SET b = 'the other is unchanged' WHERE id = 6;
ALTER TABLE plain ADD COLUMN b int;
INSERT INTO plain VALUES (53, 'a column', 1);
ALTER TABLE plain ADD COLUMN c int DEFAULT 7;
INSERT INTO plain VALUES (54, 'a column with a default', 1);
ALTER TABLE plain ADD COLUMN d double precision DEFAULT random();
UPDATE plain SET d = 0;
ALTER TABLE plain ALTER COLUMN b TYPE bigint;
INSERT INTO plain VALUES (55, 'another type', 1, 2, 3);
ALTER TABLE plain ALTER COLUMN a TYPE varchar;
ALTER TABLE plain DROP COLUMN c;
INSERT INTO plain VALUES (56, 'a column less', 1, 3);
ALTER TABLE plain RENAME TO renamed;
INSERT INTO renamed VALUES (57, 'renamed', 1, 3);
ALTER TABLE renamed RENAME TO plain;
ALTER TABLE plain SET TABLESPACE elsewhere;
INSERT INTO plain VALUES (58, 'in another tablespace', 1, 3);
ALTER TABLE plain SET TABLESPACE pg_default;
INSERT INTO plain VALUES (59, 'and back', 1, 3);
ALTER TABLE there SET TABLESPACE pg_default;
DELETE FROM there WHERE id = 1;
ALTER TABLE there SET TABLESPACE elsewhere;
DELETE FROM there WHERE id = 2;
ALTER TABLE unlogged SET LOGGED;
INSERT INTO unlogged VALUES (2, 'seen');
ALTER TABLE unlogged SET UNLOGGED;
INSERT INTO unlogged VALUES (3, 'unlogged row');
ALTER TABLE plain SET ACCESS METHOD heap;
REINDEX TABLE plain;
INSERT INTO plain VALUES (60, 'after REINDEX', 1, 3);
ALTER TABLE everything_old REPLICA IDENTITY DEFAULT;
INSERT INTO everything_old VALUES (21, 'identity');
ALTER TABLE everything_old REPLICA IDENTITY FULL;
DELETE FROM everything_old WHERE id < 5;
ANALYZE plain;
VACUUM plain;

-- ---- catalogs get new files: mapped, shared, and those that decoding reads

VACUUM FULL pg_class;
INSERT INTO plain VALUES (61, 'after VACUUM FULL pg_class', 1, 3);
VACUUM FULL pg_attribute;
VACUUM FULL pg_type;
VACUUM FULL pg_database;
VACUUM FULL pg_publication;
CLUSTER pg_index USING pg_index_indexrelid_index;
REINDEX INDEX pg_class_tblspc_relfilenode_index;
INSERT INTO plain VALUES (62, 'after all the others', 1, 3);

-- ---- several files within one transaction

BEGIN;
INSERT INTO plain VALUES (70, 'file 1', 1, 3);
TRUNCATE plain;
INSERT INTO plain VALUES (71, 'file 2', 1, 3);
ALTER TABLE plain ALTER COLUMN b TYPE int;
INSERT INTO plain VALUES (72, 'file 3', 1, 3);
CLUSTER plain USING plain_pkey;
INSERT INTO plain VALUES (73, 'file 4', 1, 3);
ALTER TABLE plain SET TABLESPACE elsewhere;
INSERT INTO plain VALUES (74, 'file 5', 1, 3);
ALTER TABLE plain ADD COLUMN e text;
INSERT INTO plain VALUES (75, 'file 5', 1, 3, 'e');
CREATE TABLE born (id int PRIMARY KEY, a text);
INSERT INTO born VALUES (1, 'born');
INSERT INTO wide VALUES (7, repeat('a7', 3000), repeat('b7', 3000));
ALTER TABLE wide ADD COLUMN c text DEFAULT repeat('c', 3000);
UPDATE wide SET c = repeat('d', 5000);
COMMIT;

BEGIN;
ALTER TABLE plain SET TABLESPACE pg_default;
INSERT INTO plain VALUES (80, 'lost');
ALTER TABLE plain ALTER COLUMN b TYPE bigint;
INSERT INTO plain VALUES (81, 'lost');
CREATE TABLE unborn (id int PRIMARY KEY, a text);
INSERT INTO unborn VALUES (1, 'lost');
DROP TABLE born;
ROLLBACK;
INSERT INTO plain VALUES (82, 'after a rollback', 1, 3, 'e');
INSERT INTO born VALUES (2, 'still there');

-- ---- files that come and go with savepoints

BEGIN;
INSERT INTO plain VALUES (90, 'kept', 1, 3);
SAVEPOINT s1;
TRUNCATE plain;
INSERT INTO plain VALUES (91, 'lost', 1, 3);
SAVEPOINT s2;
ALTER TABLE plain ADD COLUMN f int DEFAULT 5;
INSERT INTO plain VALUES (92, 'lost', 1, 3, 'e', 6);
ROLLBACK TO s2;
INSERT INTO plain VALUES (93, 'lost', 1, 3);
ROLLBACK TO s1;
INSERT INTO plain VALUES (94, 'kept', 1, 3);
SAVEPOINT s3;
ALTER TABLE plain ALTER COLUMN b TYPE numeric;
INSERT INTO plain VALUES (95, 'kept', 1.5, 3);
RELEASE s3;
INSERT INTO plain VALUES (96, 'kept', 2.5, 3);
COMMIT;
UPDATE plain SET b = b + 1;

-- tables created in many subtransactions, a third of which fail
DO $$
BEGIN
	FOR i IN 1 .. 90 LOOP
		BEGIN
			EXECUTE format('CREATE TABLE many_%s (id int PRIMARY KEY, a text)', i);
			EXECUTE format('INSERT INTO many_%s VALUES (%s, ''first'')', i, i);
			BEGIN
				EXECUTE format('ALTER TABLE many_%s ADD COLUMN b int DEFAULT 1', i);
				EXECUTE format('INSERT INTO many_%s VALUES (%s, ''second'', 2)', i, i + 1000);
				IF i % 5 = 0 THEN
					RAISE EXCEPTION 'inner';
				END IF;
			EXCEPTION WHEN raise_exception THEN
				EXECUTE format('TRUNCATE many_%s', i);
			END;
			EXECUTE format('UPDATE many_%s SET a = ''third''', i);
			IF i % 3 = 0 THEN
				RAISE EXCEPTION 'outer';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END $$;
SELECT format('ALTER TABLE many_%s ADD COLUMN c text', i) FROM generate_series(1, 90) i WHERE i % 3 <> 0 \gexec
SELECT format('INSERT INTO many_%s (id, c) VALUES (2000, ''c'')', i) FROM generate_series(1, 90) i WHERE i % 3 <> 0 \gexec
BEGIN;
SELECT format('DROP TABLE many_%s', i) FROM generate_series(1, 30) i WHERE i % 3 <> 0 \gexec
INSERT INTO many_31 (id) VALUES (3000);
COMMIT;

-- ---- partitions and inheritance

INSERT INTO parts SELECT n, 'again' FROM generate_series(90, 110) n;
CREATE TABLE parts_3 (id int PRIMARY KEY, a text);
INSERT INTO parts_3 VALUES (250, 'before it is a partition');
ALTER TABLE parts ATTACH PARTITION parts_3 FOR VALUES FROM (200) TO (300);
INSERT INTO parts VALUES (251, 'a partition');
UPDATE parts SET id = id + 150 WHERE id = 99;
ALTER TABLE parts ADD COLUMN b int DEFAULT 1;
INSERT INTO parts VALUES (252, 'with b', 2);
ALTER TABLE parts DETACH PARTITION parts_1;
INSERT INTO parts_1 VALUES (1, 'alone', 3);
TRUNCATE parts_2;
INSERT INTO parts VALUES (150, 'hashed', 4);
ALTER TABLE parts_2_1 SET TABLESPACE pg_default;
INSERT INTO parts SELECT n, 'hashed', 5 FROM generate_series(151, 160) n;
DROP TABLE parts_3;
ALTER TABLE parent ADD COLUMN c int;
INSERT INTO child VALUES (3, 'child', 4, 5);
UPDATE parent SET c = 1;

-- ---- user catalog tables and temporary tables

UPDATE settings SET a = 'changed';
ALTER TABLE settings ADD COLUMN b int DEFAULT 1;
INSERT INTO settings VALUES (3, 'three', 3);
TRUNCATE settings;
INSERT INTO settings VALUES (4, 'four', 4);
ALTER TABLE settings RESET (user_catalog_table);
INSERT INTO settings VALUES (5, 'five', 5);
BEGIN;
CREATE TEMP TABLE brief (id int) ON COMMIT DROP;
INSERT INTO brief VALUES (1);
INSERT INTO plain VALUES (100, 'beside a temporary table', 1, 3);
ALTER TABLE mine ADD COLUMN b int DEFAULT 1;
TRUNCATE mine;
INSERT INTO mine VALUES (2, 'temporary row', 3);
COMMIT;
CREATE TEMP TABLE again (id int);
DROP TABLE again;

-- ---- two phases

BEGIN;
INSERT INTO plain VALUES (110, 'prepared', 1, 3);
ALTER TABLE born ADD COLUMN b int DEFAULT 1;
INSERT INTO born VALUES (3, 'prepared', 2);
PREPARE TRANSACTION 'kept';
INSERT INTO plain VALUES (111, 'in between', 1, 3);
COMMIT PREPARED 'kept';
BEGIN;
INSERT INTO plain VALUES (112, 'lost', 1, 3);
TRUNCATE born;
INSERT INTO born VALUES (4, 'lost', 2);
PREPARE TRANSACTION 'lost';
INSERT INTO plain VALUES (113, 'in between', 1, 3);
ROLLBACK PREPARED 'lost';
INSERT INTO born VALUES (5, 'after all', 2);
BEGIN;
SAVEPOINT s1;
CREATE TABLE two_phases (id int PRIMARY KEY, a text);
INSERT INTO two_phases SELECT n, repeat('x', 100) FROM generate_series(1, 2000) n;
SAVEPOINT s2;
TRUNCATE two_phases;
ROLLBACK TO s2;
ALTER TABLE two_phases ADD COLUMN b int DEFAULT 1;
INSERT INTO two_phases SELECT n, repeat('y', 100), 2 FROM generate_series(2001, 4000) n;
PREPARE TRANSACTION 'large';
VACUUM FULL plain;
COMMIT PREPARED 'large';

-- ---- large transactions, which are spilled to disk or streamed

BEGIN;
INSERT INTO plain SELECT n, repeat('large', 20), 1, 3 FROM generate_series(1000, 3000) n;
ALTER TABLE plain ADD COLUMN g int DEFAULT 1;
INSERT INTO plain SELECT n, repeat('large', 20), 1, 3, 'e', 2 FROM generate_series(3001, 5000) n;
SAVEPOINT s1;
TRUNCATE wide;
INSERT INTO wide SELECT n, repeat('a', 4000), repeat('b', 4000) FROM generate_series(1, 50) n;
ROLLBACK TO s1;
INSERT INTO wide SELECT n, repeat('c', 4000), repeat('d', 4000) FROM generate_series(100, 150) n;
SAVEPOINT s2;
CREATE TABLE streamed (id int PRIMARY KEY, a text);
INSERT INTO streamed SELECT n, repeat('s', 100) FROM generate_series(1, 3000) n;
RELEASE s2;
ALTER TABLE streamed ALTER COLUMN id TYPE bigint;
INSERT INTO streamed SELECT n, repeat('t', 100) FROM generate_series(3001, 6000) n;
COMMIT;
BEGIN;
INSERT INTO streamed SELECT n, repeat('lost', 20) FROM generate_series(10000, 13000) n;
TRUNCATE streamed;
INSERT INTO streamed SELECT n, repeat('lost', 20) FROM generate_series(10000, 13000) n;
ROLLBACK;
DELETE FROM streamed WHERE id % 2 = 0;

-- ---- the end of some tables, and what is written after them

SELECT pg_logical_emit_message(true, 'workload', 'transactional');
SELECT pg_logical_emit_message(false, 'workload', 'at once');
DROP TABLE born, child, parent CASCADE;
DROP MATERIALIZED VIEW summary;
CREATE SCHEMA doomed;
CREATE TABLE doomed.t1 (id int PRIMARY KEY);
CREATE TABLE doomed.t2 AS SELECT n FROM generate_series(1, 10) n;
INSERT INTO doomed.t1 VALUES (1);
DROP SCHEMA doomed CASCADE;
CREATE TABLE born (id text PRIMARY KEY);
INSERT INTO born VALUES ('another of this name');
UPDATE plain SET a = 'the end' WHERE id = 100;
