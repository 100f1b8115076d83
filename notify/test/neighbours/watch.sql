-- What only a server with pg_pinpoint can do. The notifications and rows are in watch.out.

CREATE TABLE w (id int PRIMARY KEY, value text);

CREATE TABLE parted (id int, value text) PARTITION BY RANGE (id);

CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (1) TO (100);

listener: LISTEN w

listener: LISTEN parted

SELECT pinpoint.watch('w')

SELECT pinpoint.watch('parted')

SELECT relation::text, channel FROM pinpoint.watched ORDER BY 1

INSERT INTO w VALUES (1, 'one'), (2, 'two')

UPDATE w SET value = 'x' WHERE id = 7

UPDATE w SET value = 'x' WHERE id = 1

BEGIN

INSERT INTO w VALUES (3, 'three')

ROLLBACK

BEGIN

INSERT INTO w VALUES (4, 'four')

DELETE FROM w WHERE id = 4

COMMIT

INSERT INTO parted VALUES (1, 'one')

TRUNCATE w

INSERT INTO parted_1 VALUES (2, 'two')

BEGIN

CREATE TABLE parted_2 (LIKE parted)

ALTER TABLE parted ATTACH PARTITION parted_2 FOR VALUES FROM (100) TO (200)

COMMIT

CREATE TABLE parted_3 PARTITION OF parted FOR VALUES FROM (200) TO (300)

CREATE TABLE parted_4 (LIKE parted)

ALTER TABLE parted ATTACH PARTITION parted_4 FOR VALUES FROM (300) TO (400)

BEGIN

CREATE TABLE parted_5 AS SELECT 400 AS id, 'x'::text AS value

ALTER TABLE parted ATTACH PARTITION parted_5 FOR VALUES FROM (400) TO (500)

COMMIT

BEGIN

INSERT INTO w VALUES (5, 'five')

PREPARE TRANSACTION 'x'

COMMIT PREPARED 'x'

DROP TABLE parted_1

ALTER TABLE w ADD COLUMN another int

SELECT pinpoint.unwatch('parted')

INSERT INTO parted VALUES (150, 'nobody')
