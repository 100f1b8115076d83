-- The trigger function pinpoint.notify_row(): errors.  The spec notify-row shows
-- notifications.
CREATE TABLE orders (id int, customer_id int, "Odd name" text);
\set VERBOSITY default

-- templates
CREATE FUNCTION try(arguments text, events text DEFAULT 'AFTER INSERT', level text DEFAULT 'ROW')
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TRIGGER try %s ON orders FOR EACH %s EXECUTE FUNCTION pinpoint.notify_row(%s)', events, level, arguments);
	INSERT INTO orders VALUES (1, 2, repeat('é', 31));
	DROP TRIGGER try ON orders;
END $$;
\set SHOW_CONTEXT never
SELECT try($$'{id}'$$), try($$'{id}', '{Odd name}'$$), try($$'{{}}'$$);
SELECT try('');
SELECT try($$'a', 'b', 'c'$$);
SELECT try($$'{nothing}'$$);
SELECT try($$'c', '{nothing}'$$);
SELECT try($$'{ctid}'$$);
SELECT try($$'{odd name}'$$);
SELECT try($$'{}'$$);
SELECT try($$'a{id'$$);
SELECT try($$'a}b'$$);
SELECT try($$'{id}}'$$);
-- names
SELECT try($$''$$);
SELECT try($$'x{Odd name}'$$);
SELECT try($$'xy{Odd name}'$$);
SELECT try($$'pinpoint_heartbeat'$$);
-- triggers
SELECT try($$'c'$$, 'BEFORE INSERT');
SELECT try($$'c'$$, 'AFTER INSERT', 'STATEMENT');
SELECT pinpoint.notify_row();
-- a column that was dropped or renamed
CREATE TRIGGER t AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION pinpoint.notify_row('{customer_id}');
ALTER TABLE orders RENAME customer_id TO customer;
INSERT INTO orders VALUES (1, 2);
ALTER TABLE orders DROP customer;
INSERT INTO orders VALUES (1);
DROP TABLE orders;
DROP FUNCTION try;
