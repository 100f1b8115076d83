CREATE EXTENSION IF NOT EXISTS pg_pinpoint;
CREATE TABLE orders (product text, quantity int, ordered_at timestamptz DEFAULT now());
SELECT pinpoint.watch('orders');
INSERT INTO orders VALUES ('Apples', 12), ('Bread', 7), ('Coffee', 31);
