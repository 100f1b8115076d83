-- pinpoint.channels_of(): the tables that a query reads.
CREATE TABLE orders (id int, secret int);
CREATE TABLE customers (id int);
CREATE TABLE items (id int);
CREATE TABLE parts (id int) PARTITION BY LIST (id);
CREATE TABLE parts1 PARTITION OF parts FOR VALUES IN (1) PARTITION BY LIST (id);
CREATE TABLE parts11 PARTITION OF parts1 FOR VALUES IN (1);
CREATE TABLE parent (id int);
CREATE TABLE child () INHERITS (parent);
CREATE VIEW joined AS SELECT orders.id FROM orders JOIN customers USING (id);
CREATE VIEW nested AS SELECT * FROM joined WHERE id IN (SELECT id FROM items);
CREATE MATERIALIZED VIEW summary AS SELECT id FROM orders;
CREATE SEQUENCE effects;
SELECT pinpoint.watch('orders'), pinpoint.watch('customers', 'c'), pinpoint.watch('summary');

CREATE FUNCTION tables(query text) RETURNS text LANGUAGE sql AS
	$$ SELECT string_agg(relation || coalesce(' -> ' || channel, ''), ', ' ORDER BY relation::text COLLATE "C") FROM pinpoint.channels_of(query) $$;

SELECT tables('SELECT * FROM orders'), tables('TABLE items;'), tables('SELECT 1'), tables('VALUES (1)');
SELECT tables('SELECT * FROM orders a, orders b JOIN customers USING (id) WHERE b.id = $1');
SELECT tables('SELECT * FROM nested');
SELECT tables('WITH w AS (SELECT * FROM customers) SELECT * FROM w ORDER BY (SELECT max(id) FROM items)');
SELECT tables('SELECT (SELECT max(id) FROM customers), EXISTS (SELECT FROM items) FROM generate_series(1, 2)');
SELECT tables('SELECT id FROM orders UNION SELECT id FROM customers EXCEPT SELECT id FROM items');
SELECT tables('SELECT * FROM items, LATERAL (SELECT * FROM orders WHERE orders.id = items.id) l');
SELECT tables('SELECT * FROM items TABLESAMPLE SYSTEM (10) FOR UPDATE');
SELECT tables('SELECT * FROM summary'), tables('SELECT count(*) FROM pg_class');
-- partitions and children: the nearest watched table, or the root
SELECT tables('SELECT * FROM parts11'), tables('SELECT * FROM child');
SELECT pinpoint.watch('parts', 'p'), pinpoint.watch('parent', 'q');
SELECT tables('SELECT * FROM parts11, parts'), tables('SELECT * FROM child');
SELECT pinpoint.watch('parts11', 'leaf');
SELECT tables('SELECT * FROM parts11'), tables('SELECT * FROM parts1'), tables('SELECT * FROM parts');
-- nothing is executed
SELECT tables('SELECT nextval(''effects''), 1 / 0 FROM orders');
SELECT is_called FROM effects;

-- one SELECT only
\set SHOW_CONTEXT never
SELECT tables('');
SELECT tables('SELECT 1; SELECT 2');
SELECT tables('DELETE FROM orders');
SELECT tables('WITH d AS (DELETE FROM orders RETURNING *) SELECT * FROM d');
SELECT tables('SELECT * INTO copied FROM orders');
SELECT tables('EXPLAIN SELECT 1');
SELECT tables('LISTEN x');
-- the position of an error is one in the query
SELECT relation FROM pinpoint.channels_of('SELECT nothing FROM orders');
SELECT relation FROM pinpoint.channels_of('SELEC 1');
SELECT pinpoint.channels_of(NULL);

-- only what the role may read and call
CREATE ROLE channels_reader;
GRANT EXECUTE ON FUNCTION tables(text) TO channels_reader;
CREATE FUNCTION secret() RETURNS int LANGUAGE sql AS 'SELECT 1';
REVOKE EXECUTE ON FUNCTION secret() FROM PUBLIC;
CREATE TABLE rows_of (id int);
CREATE TABLE members (id int, who name);
ALTER TABLE rows_of ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON rows_of USING (EXISTS (SELECT FROM members WHERE members.id = rows_of.id AND who = current_user));
SET ROLE channels_reader;
SELECT tables('SELECT id FROM orders');
SELECT tables('SELECT EXISTS (SELECT FROM orders)');
SELECT tables('SELECT * FROM joined');
SELECT tables('SELECT secret()');
RESET ROLE;
GRANT SELECT (id) ON orders TO channels_reader;
GRANT SELECT ON joined, rows_of, members TO channels_reader;
SET ROLE channels_reader;
SELECT tables('SELECT id FROM orders');
SELECT tables('SELECT secret FROM orders');
SELECT tables('SELECT * FROM joined');
-- the tables of a policy, for roles to which it applies
SELECT tables('SELECT * FROM rows_of');
RESET ROLE;
SELECT tables('SELECT * FROM rows_of');

DROP TABLE orders, customers, items, parts, parent, rows_of, members CASCADE;
DROP SEQUENCE effects;
DROP FUNCTION tables(text), secret();
DROP ROLE channels_reader;
