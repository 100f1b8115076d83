-- Schema pinpoint in SQL and PL/pgSQL, for a server that cannot load the library. For PostgreSQL 15 to 19. The owner of the database
-- executes it: psql -1 -v ON_ERROR_STOP=1 -f pinpoint.sql. README.md says what differs from the library.
-- A position is a snapshot. A transaction that changes a watched table writes a row with the channel and its own transaction ID. A channel
-- has changed since a position if it has a row whose transaction the snapshot of the position does not see; and if that is in doubt:
-- * The rows are in an UNLOGGED table, with an identity. A crash and a promotion remove both. A position contains the start of the server,
--   the database, the table and the identity, and is unknown if these are others.
-- * A position contains a fingerprint of the watched tables, of what is below them, and of their triggers and policies: the transactions
--   that wrote their rows in the catalogs, and where. So ALTER TABLE counts, and a trigger that was disabled meanwhile.

-- What the library, or an older version of this file, watches here: it is replaced, and the end of this file watches it again.
DO $$
DECLARE kept text[] := '{}'; path text := pg_catalog.current_setting('search_path');
BEGIN
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false), pg_catalog.set_config('pinpoint_sql.path', path, false);
  IF EXISTS (SELECT FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = to_regclass('pinpoint.watched')        -- not of somebody else
       AND (r.rolsuper OR r.rolname = current_user OR r.oid = (SELECT datdba FROM pg_database WHERE datname = current_database()))) THEN
    EXECUTE $q$ SELECT ARRAY(SELECT format('SELECT pinpoint.watch(%L, %L)', relation, channel) FROM pinpoint.watched UNION ALL
      SELECT format('%s; ALTER TABLE %s %s TRIGGER %I', pg_get_triggerdef(oid), tgrelid::regclass, CASE tgenabled WHEN 'A' THEN 'ENABLE ALWAYS'
        WHEN 'R' THEN 'ENABLE REPLICA' WHEN 'D' THEN 'DISABLE' ELSE 'ENABLE' END, tgname) FROM pg_trigger WHERE tgfoid = 'pinpoint.notify_row()'::regprocedure AND tgparentid = 0) $q$ INTO kept;
    DROP EXTENSION IF EXISTS pg_pinpoint CASCADE; DROP SCHEMA IF EXISTS pinpoint CASCADE;
  END IF;
  PERFORM pg_catalog.set_config('pinpoint_sql.kept', pg_catalog.to_json(kept)::text, false); END $$;
CREATE SCHEMA pinpoint;
CREATE TYPE pinpoint.changes AS (changed text[], "position" text);
-- source: 't' the transaction xid has changed the channel by a trigger, 'n' by pinpoint.notify(); 'i' id is an identity, written by xid;
-- 'f' rows of transactions before id may have been removed. The key contains the own transaction, so nobody waits for another one.
CREATE UNLOGGED TABLE pinpoint.written (channel text COLLATE "C", xid xid8, source "char", id text, PRIMARY KEY (channel, xid, source)) WITH
  (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = -1, vacuum_truncate = off);
CREATE FUNCTION pinpoint.check_channels(channels text[]) RETURNS text[] LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF channels IS NULL THEN RAISE 'list of channels cannot be null' USING ERRCODE = '22004'; END IF;
  IF array_position(channels, NULL) IS NOT NULL THEN RAISE 'null array element not allowed in this context' USING ERRCODE = '22004'; END IF;
  IF (SELECT min(octet_length(c)) = 0 OR max(octet_length(c)) > 63 FROM unnest(channels) c) THEN
    RAISE 'channel name %', CASE WHEN '' = ANY (channels) THEN 'cannot be empty' ELSE 'too long' END USING ERRCODE = '22023'; END IF;
  RETURN channels;
END $$;
-- Remove rows in passing. Other rows of the channel are not needed if this transaction commits: a position that does not see the
-- transaction of one of them was taken before that transaction ended, and so before this one ends, whose row it does not see either.
-- Channels without a change for 10,000,000 transactions are removed: positions from before are unknown. Locks are never waited for. A
-- serializable transaction reads what others write, so only one in 1024 does it.
CREATE FUNCTION pinpoint.clean(ch text, src "char") RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE floor xid8 := greatest(pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 10000000, 0)::text::xid8; old tid[];
BEGIN
  IF current_setting('transaction_isolation') = 'serializable' AND hashint8(pg_current_xact_id()::text::bigint) & 960 <> 0 THEN RETURN; END IF;
  DELETE FROM pinpoint.written d WHERE d.ctid = ANY (ARRAY(SELECT w.ctid FROM pinpoint.written w
   WHERE w.channel = ch AND w.source = src AND w.xid <> pg_current_xact_id() ORDER BY w.xid LIMIT 2000 FOR UPDATE SKIP LOCKED));
  old := ARRAY(SELECT n.ctid FROM (SELECT w.ctid, w.xid FROM pinpoint.written w WHERE w.channel > ch ORDER BY w.channel, w.xid LIMIT 100) n WHERE n.xid < floor);
  IF old = '{}' THEN RETURN; END IF;
  INSERT INTO pinpoint.written (channel, xid, source, id) VALUES ('', pg_current_xact_id(), 'f', floor) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN RETURN; END IF;       -- this transaction has written a lower floor
  DELETE FROM pinpoint.written d WHERE d.ctid = ANY (ARRAY(SELECT w.ctid FROM pinpoint.written w
   WHERE w.channel = '' AND w.source = 'f' AND w.xid <> pg_current_xact_id() AND w.id::xid8 <= floor FOR UPDATE SKIP LOCKED));
  DELETE FROM pinpoint.written d WHERE d.ctid = ANY (ARRAY(SELECT w.ctid FROM pinpoint.written w
   WHERE w.ctid = ANY (old) AND w.channel <> '' AND w.xid < floor FOR UPDATE SKIP LOCKED));
EXCEPTION WHEN serialization_failure THEN NULL;     -- REPEATABLE READ, and another session has removed the rows
END $$;
-- This transaction changes a channel. Returns false if that is known.
CREATE FUNCTION pinpoint.add_change(ch text, src "char") RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO pinpoint.written (channel, xid, source) VALUES (ch, pg_current_xact_id(), src) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN RETURN false; END IF;
  IF hashint8(pg_current_xact_id()::text::bigint) & 63 = 0 THEN PERFORM pinpoint.clean(ch, src); END IF;
  RETURN true;
END $$;
CREATE FUNCTION pinpoint.add_notification(ch text, by_trigger boolean) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pinpoint.check_channels(ARRAY[coalesce(ch, '')]);
  IF ch = 'pinpoint_heartbeat' THEN RAISE 'channel name "%" is reserved', ch USING ERRCODE = '42939', DETAIL = 'The server notifies on it.'; END IF;
  PERFORM pinpoint.add_change(ch, CASE WHEN by_trigger THEN 't' ELSE 'n' END::"char");
END $$;
CREATE FUNCTION pinpoint.notify(channel text, payload text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pinpoint.add_notification(channel, false), pg_catalog.pg_notify(channel, payload); END $$;
-- The trigger of a watched table, and of what is below it. The first argument is the channel. With SET pinpoint.notify = off there is no
-- notification: then PREPARE TRANSACTION works, and commits do not wait for each other.
CREATE FUNCTION pinpoint.changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_LEVEL = 'ROW' AND current_setting('transaction_isolation') <> 'serializable' AND EXISTS (SELECT FROM pinpoint.written w
     WHERE w.channel = TG_ARGV[0] AND w.xid = pg_current_xact_id() AND w.source = 't') THEN RETURN NULL; END IF;
  IF pinpoint.add_change(TG_ARGV[0], 't') AND current_setting('pinpoint.notify', true) IS DISTINCT FROM 'off' THEN PERFORM pg_notify(TG_ARGV[0], ''); END IF;
  RETURN NULL;
END $$;

-- The SQL expression of a template of notify_row(): NULL if a column is NULL, unless null_is_empty.
CREATE FUNCTION pinpoint.expression(template text, relation regclass, null_is_empty boolean) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE part text; parts text := ''''''; nulls text := 'false'; a record;
BEGIN
  FOR part IN SELECT m[1] FROM regexp_matches(template, '(\{\{|\}\}|\{\}|\{[^{}][^}]*\}|[^{}]+|.)', 'g') m LOOP
    IF part IN ('{', '}') THEN RAISE 'unmatched brace in template "%"', template USING ERRCODE = '22023', HINT = 'Write {{ or }} for a brace.'; END IF;
    IF part NOT LIKE '{%}' THEN parts := parts || format(', %L', CASE WHEN part IN ('{{', '}}') THEN left(part, 1) ELSE part END); CONTINUE; END IF;
    part := substr(part, 2, length(part) - 2);
    SELECT c.relname, t.attname, to_jsonb(t) ->> 'attgenerated' AS generated INTO a FROM pg_class c
      LEFT JOIN pg_attribute t ON t.attrelid = c.oid AND t.attname = part AND t.attnum > 0 AND NOT t.attisdropped WHERE c.oid = relation;
    IF a.attname IS NULL OR a.generated = 'v' THEN RAISE 'column "%" of relation "%" %', part, a.relname, CASE WHEN a.attname IS NULL
      THEN 'does not exist' ELSE 'is a virtual generated column' END USING ERRCODE = CASE WHEN a.attname IS NULL THEN '42703' ELSE '0A000' END; END IF;
    parts := parts || format(', ($1).%I', part);
    nulls := nulls || format(' OR (($1).%I) IS NOT DISTINCT FROM NULL', part);
  END LOOP;
  RETURN format(CASE WHEN null_is_empty THEN 'concat(%s)' ELSE 'CASE WHEN NOT (%2$s) THEN concat(%1$s) END' END, parts, nulls);
END $$;
CREATE FUNCTION pinpoint.notify_row() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE query text; first text; channel text; payload text; r record;
BEGIN
  IF TG_WHEN <> 'AFTER' OR TG_LEVEL <> 'ROW' THEN RAISE 'function "notify_row" must be fired AFTER ROW' USING ERRCODE = '39P01'; END IF;
  IF TG_NARGS NOT IN (1, 2) THEN RAISE 'trigger "%" must have one or two arguments: the channel, and optionally the payload', TG_NAME
    USING ERRCODE = '39P01'; END IF;
  query := format('SELECT %s, %s', pinpoint.expression(TG_ARGV[0], TG_RELID, false), pinpoint.expression(coalesce(TG_ARGV[1], ''), TG_RELID, true));
  FOREACH r IN ARRAY CASE TG_OP WHEN 'INSERT' THEN ARRAY[NEW] WHEN 'UPDATE' THEN ARRAY[NEW, OLD] ELSE ARRAY[OLD] END LOOP
    EXECUTE query INTO channel, payload USING r;
    CONTINUE WHEN channel IS NULL OR channel = first;
    first := channel;
    IF octet_length(channel) > 63 THEN RAISE 'channel name too long' USING ERRCODE = '22023', DETAIL = format(
      'Trigger "%s" of relation "%s" made a name of %s bytes. The maximum is 63.', TG_NAME, TG_TABLE_NAME, octet_length(channel)); END IF;
    PERFORM pinpoint.add_notification(channel, true), pg_notify(channel, payload);
  END LOOP;
  RETURN NULL;
END $$;

-- The triggers that call a function here, with their first argument. They are all that watch() stores: so pg_dump keeps them, DROP TABLE
-- removes them, and PostgreSQL checks the privileges. complete: after all changes, without a condition.
CREATE VIEW pinpoint.triggers AS
SELECT f.name AS function, t.tgrelid AS relid, t.oid, concat_ws(':', t.xmin, t.ctid) AS version, t.tgname, t.tgenabled, t.tgparentid <> 0 AS cloned,
       CASE WHEN t.tgtype & 1 = 1 THEN 'rows' WHEN t.tgnargs = 1 THEN 'table' ELSE 'child' END AS kind,
       t.tgtype & 30 = 28 AND t.tgqual IS NULL AND t.tgattr::text = '' AS complete,
       pg_catalog.convert_from(pg_catalog.substr(t.tgargs, 1, greatest(pg_catalog.position(t.tgargs, '\x00'::bytea) - 1, 0)),
                               pg_catalog.getdatabaseencoding()::name) AS argument
  FROM (VALUES ('pinpoint.changed()'::regprocedure, 'changed'), ('pinpoint.notify_row()', 'notify_row')) f (oid, name)
  JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_proc'::regclass AND d.refobjid = f.oid AND d.classid = 'pg_catalog.pg_trigger'::regclass
  JOIN pg_catalog.pg_trigger t ON t.oid = d.objid;
-- The watched tables (own) and all partitions and children below them, by channel. A statement trigger fires for the table that the
-- statement names, so each table of a tree has one, which always fires. Two cases need a trigger for rows:
-- * Apply workers of logical replication fire nothing else. In other sessions it does not fire (mode R: ENABLE REPLICA).
-- * A statement can name a table that has none: another one above (inherited: the watched table is a partition or child, or one below has two
--   parents), or a new partition. There it always fires (A). A new partition gets a copy of that of its parent, so that is A.
-- path: the table and all above it have the statement trigger. covered: no change of rows is missed. armed: nothing is to be done.
CREATE VIEW pinpoint.tree AS
WITH RECURSIVE g AS MATERIALIZED (
  SELECT relid, argument AS channel, bool_or(kind = 'table') AS own, min(tgname) FILTER (WHERE kind <> 'rows') AS name,
         bool_or(kind <> 'rows' AND complete AND tgenabled = 'A') AS statements, bool_or(tgenabled = 'D' OR NOT complete) AS spoiled,
         min(tgname) FILTER (WHERE kind = 'rows') AS rows_name, min(tgenabled::text) FILTER (WHERE kind = 'rows' AND complete) AS rows,
         string_agg(concat_ws(':', oid, version), ',' ORDER BY oid) AS version
    FROM pinpoint.triggers WHERE function = 'changed' GROUP BY relid, argument),
t AS (
  SELECT relid, channel, 0 AS level, statements AS path, '' AS link, EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = relid) AS inherited FROM g WHERE own
  UNION         -- not ALL: there can be very many ways from one table down to another
  SELECT i.inhrelid, t.channel, t.level + 1, t.path AND coalesce(g.statements, false), concat_ws(':', i.inhparent, i.xmin, i.ctid),
         t.inherited OR (SELECT count(*) > 1 FROM pg_catalog.pg_inherits o WHERE o.inhrelid = i.inhrelid)
    FROM t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid LEFT JOIN g ON g.relid = i.inhrelid AND g.channel = t.channel)
SELECT t.*, g.own, g.name, g.rows_name, g.rows, c.relkind, c.relispartition, m.mode, pg_catalog.pg_has_role(c.relowner, 'USAGE') AS mine,
       coalesce(g.spoiled, false) AS spoiled, c.relpersistence = 't' OR coalesce(t.path AND g.rows = m.mode, false) AS armed,
       c.relpersistence = 't' OR c.relkind = 'p' OR coalesce(g.rows = 'A' OR t.path AND g.rows = m.mode, false) AS covered,
       concat_ws(' ', t.relid, t.channel, t.links, c.xmin, c.ctid, g.version,
         (SELECT sum(a.xmin::text::bigint + pg_catalog.hashtid(a.ctid)) FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.relid),
         (SELECT string_agg(concat_ws(':', p.oid, p.xmin, p.ctid), ',' ORDER BY p.oid) FROM pg_catalog.pg_policy p WHERE p.polrelid = t.relid)) AS version
  FROM (SELECT relid, channel, max(level) AS level, bool_and(path) AS path, bool_or(inherited) AS inherited,
               string_agg(DISTINCT link, ',' ORDER BY link) AS links FROM t GROUP BY relid, channel) t
  JOIN pg_catalog.pg_class c ON c.oid = t.relid LEFT JOIN g ON g.relid = t.relid AND g.channel = t.channel,
  LATERAL (SELECT CASE WHEN c.relkind = 'p' OR t.inherited THEN 'A' ELSE 'R' END AS mode) m;
-- source: 'incomplete' if a change of rows may not be noticed, because a trigger of this channel is missing or does not always fire.
CREATE VIEW pinpoint.watched AS
SELECT w.relid::regclass AS relation, w.argument::name AS channel, CASE WHEN EXISTS (
         SELECT FROM pinpoint.tree t WHERE t.channel = w.argument AND NOT t.covered) THEN 'incomplete' ELSE 'triggers' END AS source
  FROM pinpoint.triggers w WHERE w.function = 'changed' AND w.kind = 'table';

-- Create the triggers that the trees of a channel lack, on the tables of the current role, from the root down: a row trigger no longer
-- fires always only when the tables above have their statement triggers. Without wait, it ends at the first table that is locked.
CREATE FUNCTION pinpoint.arm(ch text, wait boolean) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE t record; d record; name text := 'pinpoint_' || to_hex(hashtextextended(ch COLLATE "C", 0)); row_name text := name || '_rows';
BEGIN
  FOR t IN SELECT * FROM pinpoint.tree WHERE channel = ch AND rows IS NULL AND (own OR NOT relispartition) AND NOT armed AND mine ORDER BY level, relid LOOP
    FOR d IN SELECT p.relid, g.tgname FROM pinpoint.tree p JOIN pinpoint.triggers g ON g.relid = p.relid AND g.argument = ch
              WHERE t.relkind = 'p' AND p.channel = ch AND p.relispartition AND p.level > t.level AND g.function = 'changed' AND g.kind = 'rows' AND NOT g.cloned LOOP
      EXECUTE format('DROP TRIGGER %I ON %s', d.tgname, d.relid::regclass);       -- the copy will have this name
    END LOOP;
    EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION pinpoint.changed(%L, ''rows'')',
                   row_name, t.relid::regclass, ch);
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', t.relid::regclass, row_name);
  END LOOP;
  FOR t IN SELECT * FROM pinpoint.tree WHERE channel = ch AND NOT armed AND mine AND rows_name IS NOT NULL ORDER BY level, relid LOOP
    BEGIN
      IF t.name IS NULL THEN EXECUTE format(
        'CREATE TRIGGER %I AFTER INSERT OR UPDATE OR DELETE %s ON %s FOR EACH STATEMENT EXECUTE FUNCTION pinpoint.changed(%L, ''child'')',
        name, CASE WHEN t.relkind <> 'f' THEN 'OR TRUNCATE' END, t.relid::regclass, ch); END IF;
      EXECUTE format('ALTER TABLE %1$s ENABLE ALWAYS TRIGGER %2$I; ALTER TABLE %1$s ENABLE %3$s TRIGGER %4$I', t.relid::regclass,
                     coalesce(t.name, name), CASE t.mode WHEN 'A' THEN 'ALWAYS' ELSE 'REPLICA' END, t.rows_name);
    EXCEPTION WHEN lock_not_available THEN IF wait THEN RAISE; END IF; EXIT;
    END;
  END LOOP;
END $$;
-- The name of a table that the current role owns and, if to_watch, can watch.
CREATE FUNCTION pinpoint.check_table(relation regclass, to_watch boolean) RETURNS name LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE c pg_class; kind text;
BEGIN
  IF relation IS NULL THEN RAISE 'relation cannot be null' USING ERRCODE = '22004'; END IF;
  SELECT * INTO c FROM pg_class WHERE oid = relation;
  IF NOT FOUND THEN RAISE 'relation with OID % does not exist', relation::oid USING ERRCODE = '42P01'; END IF;
  kind := '{"v": "view", "m": "materialized view", "f": "foreign table", "S": "sequence", "i": "index", "I": "index"}'::jsonb ->> c.relkind::text;
  IF NOT pg_has_role(c.relowner, 'USAGE') THEN RAISE 'must be owner of % %', coalesce(kind, 'table'), c.relname USING ERRCODE = '42501'; END IF;
  IF to_watch AND c.relkind = 'r' AND c.oid < 16384 THEN RAISE 'permission denied: "%" is a system catalog', c.relname USING ERRCODE = '42501'; END IF;
  IF to_watch AND (c.relkind NOT IN ('r', 'p') OR c.relpersistence = 't') THEN RAISE 'cannot watch relation "%"', c.relname USING ERRCODE = '42809',
    DETAIL = format('It is a %s.', CASE c.relpersistence WHEN 't' THEN 'temporary table' ELSE coalesce(kind, 'relation of another kind') END); END IF;
  RETURN c.relname;
END $$;
-- unwatch() and watch() have the privileges of the current role, which must own the table. unwatch() also drops the triggers of the
-- channel on tables that are in none of its trees any more. Those on tables of other roles remain, and tell too much.
CREATE FUNCTION pinpoint.unwatch(relation regclass) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE w record; g record; found_any boolean := false;
BEGIN
  PERFORM pinpoint.check_table(relation, false);
  FOR w IN SELECT x.argument, x.tgname FROM pinpoint.triggers x WHERE x.relid = relation AND x.function = 'changed' AND x.kind = 'table' LOOP
    found_any := true;
    EXECUTE format('DROP TRIGGER %I ON %s', w.tgname, relation);
    FOR g IN SELECT x.relid, x.tgname FROM pinpoint.triggers x JOIN pg_class c ON c.oid = x.relid
              WHERE x.function = 'changed' AND x.argument = w.argument AND x.kind <> 'table' AND NOT x.cloned AND pg_has_role(c.relowner, 'USAGE')
                AND NOT EXISTS (SELECT FROM pinpoint.tree t WHERE t.relid = x.relid AND t.channel = x.argument) LOOP
      EXECUTE format('DROP TRIGGER %I ON %s', g.tgname, g.relid::regclass);
    END LOOP;
    PERFORM pinpoint.arm(w.argument, true);       -- another table with this channel may need a trigger that was dropped
    PERFORM pinpoint.add_notification(w.argument, true), pg_notify(w.argument, '');
  END LOOP;
  RETURN found_any;
END $$;
CREATE FUNCTION pinpoint.watch(relation regclass, channel text DEFAULT NULL) RETURNS name LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE ch text := coalesce($2, pinpoint.check_table(relation, true)); before text;
BEGIN
  PERFORM pinpoint.check_table(relation, true), pinpoint.check_channels(ARRAY[ch]);
  FOR i IN 1 .. 2 LOOP      -- without a lock, and with it
    before := (SELECT min(g.argument) FROM pinpoint.triggers g WHERE g.relid = relation AND g.function = 'changed' AND g.kind = 'table');
    IF before = ch AND NOT EXISTS (SELECT FROM pinpoint.tree t WHERE t.channel = ch AND NOT t.armed AND t.mine) THEN RETURN ch; END IF;
    IF i = 1 THEN EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', relation); END IF;
  END LOOP;
  PERFORM pinpoint.check_table(relation, true);
  IF before <> ch THEN PERFORM pinpoint.unwatch(relation); END IF;
  IF before IS DISTINCT FROM ch THEN EXECUTE format(
    'CREATE TRIGGER pinpoint AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION pinpoint.changed(%L)', relation, ch); END IF;
  PERFORM pinpoint.arm(ch, true);
  PERFORM pinpoint.add_notification(ch, true), pg_notify(ch, '');
  RETURN ch;
END $$;

-- Is there a row of a channel whose transaction a position does not see? own: the transaction that has asked for the position.
CREATE FUNCTION pinpoint.written_since(ch text, old pg_snapshot, own text) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (SELECT FROM pinpoint.written w WHERE w.channel = ch AND w.xid >= pg_snapshot_xmin(old)
                  AND (w.xid::text = own OR NOT pg_visible_in_snapshot(w.xid, old)));
-- The position now, and which channels have changed since a known one. One statement reads all, with one snapshot.
CREATE FUNCTION pinpoint.look(known text, channels text[], OUT changed text[], OUT "position" text, OUT valid boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 SET jit = off SET standard_conforming_strings = on AS $$
DECLARE
  server text := (SELECT concat_ws('-', to_hex((extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint), to_hex(d.oid::bigint),
                                   to_hex('pinpoint.written'::regclass::oid::bigint)) FROM pg_database d WHERE d.datname = current_database());
  parts text[] := regexp_match(known, '^([0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+)-([0-9a-f]+)-(\d+)-(\d+:\d+:[\d,]*)$');
  old pg_snapshot := parts[4]; seen pg_snapshot; identity text; state text; to_arm text[]; c text;
  level text := current_setting('transaction_isolation'); read_only boolean := current_setting('transaction_read_only');
BEGIN
  IF level NOT LIKE 'read %' THEN RAISE 'positions cannot be used in a transaction of isolation level %', upper(level)
    USING ERRCODE = '0A000', HINT = 'Use a READ COMMITTED transaction.'; END IF;
  PERFORM pinpoint.check_channels(channels);
  IF parts IS NULL AND known !~ '^([0-9a-f]+-[0-9a-f]+-[0-9a-f]+-none|[0-9a-f]{16}-[0-9a-f]{16}-[0-9a-f]{16}(-[0-9a-f]{8}-[0-9a-f]{16})?)$' THEN
    RAISE 'invalid input syntax for position: "%"', known USING ERRCODE = '22P02'; END IF;        -- not that of a standby, or of the library
  changed := channels; "position" := server || '-none'; valid := false;
  IF pg_is_in_recovery() THEN RETURN; END IF;         -- rows of UNLOGGED tables cannot be read there
  LOOP
    -- changed: a row trigger is missing; nothing counts the changes of the channel; or a transaction that the position does not see.
    -- valid: the identity is still there, and no row that the position needs was removed. A crash loses the rows of a transaction that
    -- was prepared before: it is older than the identity, and ends after the position.
    WITH t AS MATERIALIZED (SELECT * FROM pinpoint.tree),
    patterns AS MATERIALIZED (SELECT concat_ws(':', g.oid, g.version) AS version, regexp_replace(regexp_replace(regexp_replace(g.argument, '([\\%_])', '\\\1', 'g'), '\{\{|\}\}', '_', 'g'),
                                                    '\{[^}]*\}', '%', 'g') AS pattern FROM pinpoint.triggers g WHERE g.function = 'notify_row')
    SELECT pg_current_snapshot(),
           (SELECT min(w.id) FROM pinpoint.written w WHERE w.channel = '' AND w.source = 'i' AND w.id LIKE server || '-%'),
           to_hex(hashtextextended(concat((SELECT string_agg(t.version, ';' ORDER BY t.relid, t.channel) FROM t),
                                          (SELECT string_agg(p.version, ',' ORDER BY p.version) FROM patterns p)) COLLATE "C", 0)),
           ARRAY(SELECT DISTINCT t.channel FROM t WHERE NOT t.armed AND t.mine AND NOT t.spoiled AND t.channel = ANY (channels)),
           ARRAY(SELECT u.c FROM unnest(channels) WITH ORDINALITY u (c, n)
                  WHERE EXISTS (SELECT FROM t WHERE t.channel = u.c AND NOT t.covered) OR pinpoint.written_since(u.c, old, parts[3])
                     OR NOT (EXISTS (SELECT FROM t WHERE t.channel = u.c) OR EXISTS (SELECT FROM patterns p WHERE u.c LIKE p.pattern AND p.pattern !~ '^%')
                             OR EXISTS (SELECT FROM pinpoint.written w WHERE w.channel = u.c AND w.source = 'n')) ORDER BY u.n),
           EXISTS (SELECT FROM pinpoint.written i WHERE i.channel = '' AND i.source = 'i' AND i.id = parts[1] AND i.id LIKE server || '-%'
                      AND NOT EXISTS (SELECT FROM pg_snapshot_xip(old) x WHERE x < i.xid AND pg_visible_in_snapshot(x, pg_current_snapshot())))
             AND pg_snapshot_xmax(old) <= pg_snapshot_xmax(pg_current_snapshot())
             AND pg_snapshot_xmin(old) >= coalesce((SELECT max(w.id::xid8) FROM pinpoint.written w WHERE w.channel = '' AND w.source = 'f'), '0')
      INTO seen, identity, state, to_arm, changed, valid;
    EXIT WHEN identity IS NOT NULL OR read_only;
    DELETE FROM pinpoint.written d WHERE d.ctid = ANY (ARRAY(SELECT w.ctid FROM pinpoint.written w        -- of a dump: these transactions are
      WHERE w.xid >= pg_snapshot_xmax(pg_current_snapshot()) AND w.xid <> pg_current_xact_id() FOR UPDATE SKIP LOCKED));    -- of another server
    INSERT INTO pinpoint.written (channel, xid, source, id)
    VALUES ('', pg_current_xact_id(), 'i', server || '-' || replace(gen_random_uuid()::text, '-', '')) ON CONFLICT DO NOTHING;
  END LOOP;
  valid := coalesce(valid AND state = parts[2], false);
  IF NOT valid THEN changed := channels; END IF;
  IF identity IS NOT NULL THEN "position" := concat_ws('-', identity, state, coalesce(pg_current_xact_id_if_assigned(), '0'), seen); END IF;
  -- New partitions and children get their triggers, if nobody has to wait for the end of this transaction for long.
  IF read_only OR to_arm = '{}' OR pg_current_xact_id_if_assigned() IS NOT NULL OR now() < clock_timestamp() - interval '1 s'
     OR NOT pg_try_advisory_xact_lock('pinpoint.written'::regclass::oid::bigint) THEN RETURN; END IF;
  PERFORM set_config('lock_timeout', '100ms', true);
  FOREACH c IN ARRAY to_arm LOOP
    -- Until it works, the row triggers fire, or the channel counts as changed. Then it has changed, once.
    BEGIN PERFORM pinpoint.arm(c, false);
      PERFORM pinpoint.add_notification(c, true), pg_notify(c, '') WHERE NOT EXISTS (SELECT FROM pinpoint.tree t WHERE t.channel = c AND NOT t.armed AND t.mine AND NOT t.spoiled);
    EXCEPTION WHEN OTHERS THEN NULL; END;
  END LOOP; END $$;
CREATE FUNCTION pinpoint.changed_since("position" text, VARIADIC channels text[]) RETURNS pinpoint.changes LANGUAGE sql AS $$ SELECT l.changed, l.position FROM pinpoint.look($1, $2) l $$;
CREATE FUNCTION pinpoint.position() RETURNS text LANGUAGE sql AS $$ SELECT l.position FROM pinpoint.look(NULL, '{}') l $$;
-- One step of wait(), which holds a snapshot for 100 ms at most. It looks if a transaction has ended and there is a row, or once a second.
CREATE FUNCTION pinpoint.step(channels text[], until timestamptz, INOUT known text, INOUT seen text, INOUT looked timestamptz, OUT changed text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE now_ text := pg_current_snapshot(); parts text[] := string_to_array(known, '-'); valid boolean;
BEGIN
  changed := '{}';
  IF seen IS NULL OR now_ <> seen AND (clock_timestamp() > looked + interval '1 s' OR EXISTS (
       SELECT FROM unnest(channels) c WHERE pinpoint.written_since(c, parts[7]::pg_snapshot, parts[6]))) THEN
    SELECT l.changed, l.position, l.valid INTO changed, known, valid FROM pinpoint.look(known, channels) l;
    seen := now_; looked := clock_timestamp();
  END IF;
  IF NOT valid OR clock_timestamp() >= until OR changed <> '{}' THEN looked := NULL; END IF;       -- the end
END $$;
CREATE PROCEDURE pinpoint.wait(INOUT changed text[], INOUT "position" text, timeout interval DEFAULT '1 minute') LANGUAGE plpgsql AS $$
DECLARE channels text[] := changed; until timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) timeout;
  seen text; looked timestamptz; nap float8 := 0.005;
BEGIN
  COMMIT;         -- fails in a transaction block
  LOOP
    SELECT s.known, s.seen, s.looked, s.changed INTO "position", seen, looked, changed FROM pinpoint.step(channels, until, "position", seen, looked) s;
    EXIT WHEN looked IS NULL;
    COMMIT;
    PERFORM pg_catalog.pg_sleep(CASE WHEN timeout IS NULL THEN nap ELSE least(nap, pg_catalog.date_part('epoch',
                                until OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp())) END);
    COMMIT;
    nap := least(nap OPERATOR(pg_catalog.*) 1.5::float8, 0.1::float8);
  END LOOP;
END $$;
CREATE FUNCTION pinpoint.listen(VARIADIC channels text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE c text; BEGIN FOREACH c IN ARRAY pinpoint.check_channels(channels) LOOP EXECUTE pg_catalog.format('LISTEN %I', c); END LOOP; END $$;
CREATE FUNCTION pinpoint.unlisten(VARIADIC channels text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE c text; BEGIN FOREACH c IN ARRAY pinpoint.check_channels(channels) LOOP EXECUTE pg_catalog.format('UNLISTEN %I', c); END LOOP; END $$;

-- A query that is surely one statement: without a semicolon outside of literals. Where that is in doubt, this is an error.
CREATE FUNCTION pinpoint.check_query(query text) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE source text := rtrim(query, E'; \n\r\t');
BEGIN
  IF query !~* '^[\s(]*(select|with|values|table|--|/\*)' OR strpos(source, ';') > 0 AND (source ~ '\$\D|--|/\*' OR strpos(regexp_replace(source,
       '[eE]''([^''\\]|\\.|'''')*''|''([^'']|'''')*''|"([^"]|"")*"|[[:alpha:]_][[:alnum:]_]*', '', 'g'), ';') > 0) THEN
    RAISE 'the query must be one SELECT statement' USING ERRCODE = '0A000'; END IF;
  RETURN source;
END $$;
-- The relations that this transaction has locked. It must lock none itself.
CREATE FUNCTION pinpoint.locked() RETURNS oid[] LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(DISTINCT l.relation), '{}') FROM pg_lock_status() l WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() $$;
-- The result of channels_of() for the relations that were locked meanwhile.
CREATE FUNCTION pinpoint.to_watch(before oid[], after oid[], OUT relation regclass, OUT channel name) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE used regclass := (SELECT min(c.oid) FROM pg_class c WHERE c.oid = ANY (before) AND c.relkind IN ('r', 'p', 'm', 'f')
                             AND c.oid >= 16384 AND c.relnamespace <> 'pinpoint'::regnamespace);
BEGIN
  IF used IS NOT NULL THEN RAISE 'cannot tell which tables the query reads' USING ERRCODE = '0A000', DETAIL = format(
    'This transaction has used table %s before.', used), HINT = 'Call the function in a transaction of its own.'; END IF;
  RETURN QUERY WITH RECURSIVE up AS (
    SELECT c.oid AS leaf, c.oid, c.relispartition, 0 AS level FROM pg_class c WHERE c.oid = ANY (after) AND c.oid <> ALL (before) AND c.relkind NOT IN ('v', 'i', 'I')
    UNION SELECT up.leaf, i.inhparent, up.relispartition, up.level + 1 FROM up JOIN pg_inherits i ON i.inhrelid = up.oid)
  SELECT DISTINCT n.oid::regclass, n.argument::name FROM (SELECT DISTINCT ON (up.leaf) up.oid, w.argument
    FROM up LEFT JOIN pinpoint.triggers w ON w.relid = up.oid AND w.function = 'changed' AND w.kind = 'table'
   ORDER BY up.leaf, w.argument IS NULL, CASE WHEN w.argument IS NULL AND up.relispartition THEN -up.level ELSE up.level END) n;
END $$;
-- PREPARE parses and rewrites the query, which locks all relations that it reads, also those that a plan would not have. The locks are
-- released with the subtransaction. EXPLAIN checks the privileges.
CREATE FUNCTION pinpoint.channels_of(query text, OUT relation regclass, OUT channel name) RETURNS SETOF record
LANGUAGE plpgsql STRICT SET standard_conforming_strings = on SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE source text := pinpoint.check_query(query); before oid[]; after oid[]; nulls text; relations regclass[]; channels name[];
BEGIN
  BEGIN
    before := pinpoint.locked();
    EXECUTE pg_catalog.concat('PREPARE "pinpoint.channels_of" AS SELECT * FROM (', source, E'\n) q');
    after := pinpoint.locked();
    SELECT '(' OPERATOR(pg_catalog.||) pg_catalog.string_agg('NULL', ', ') OPERATOR(pg_catalog.||) ')' INTO nulls
      FROM pg_catalog.pg_prepared_statement() p, pg_catalog.unnest(p.parameter_types) WHERE p.name OPERATOR(pg_catalog.=) 'pinpoint.channels_of';
    BEGIN EXECUTE pg_catalog.concat('EXPLAIN EXECUTE "pinpoint.channels_of"', nulls); EXCEPTION WHEN data_exception THEN NULL; END;    -- 1 / 0
    SELECT pg_catalog.array_agg(t.relation), pg_catalog.array_agg(t.channel) INTO relations, channels FROM pinpoint.to_watch(before, after) t;
    RAISE SQLSTATE 'PIN01';
  EXCEPTION WHEN SQLSTATE 'PIN01' THEN DEALLOCATE "pinpoint.channels_of";
  WHEN OTHERS THEN IF after IS NOT NULL THEN DEALLOCATE "pinpoint.channels_of"; END IF; RAISE;
  END;
  RETURN QUERY SELECT * FROM ROWS FROM (pg_catalog.unnest(relations), pg_catalog.unnest(channels)) t;
END $$;

-- Remove what this file has made. Returns the statements that watch the tables with the library: SELECT pinpoint.uninstall() \gexec
CREATE FUNCTION pinpoint.uninstall() RETURNS SETOF text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE kept text[] := ARRAY(SELECT 'CREATE EXTENSION pg_pinpoint' UNION ALL
  SELECT format('SELECT pinpoint.watch(%L, %L)', relation, channel) FROM pinpoint.watched UNION ALL
  SELECT format('%s; ALTER TABLE %s %s TRIGGER %I', pg_get_triggerdef(oid), relid::regclass, CASE tgenabled WHEN 'A' THEN 'ENABLE ALWAYS'
    WHEN 'R' THEN 'ENABLE REPLICA' WHEN 'D' THEN 'DISABLE' ELSE 'ENABLE' END, tgname) FROM pinpoint.triggers WHERE function = 'notify_row' AND NOT cloned);
BEGIN DROP SCHEMA pinpoint CASCADE; RETURN QUERY SELECT unnest(kept); END $$;

GRANT EXECUTE ON ALL ROUTINES IN SCHEMA pinpoint TO PUBLIC;
REVOKE ALL ON FUNCTION pinpoint.clean(text, "char"), pinpoint.add_change(text, "char") FROM PUBLIC;
GRANT USAGE ON SCHEMA pinpoint TO PUBLIC; GRANT SELECT ON pinpoint.triggers, pinpoint.tree, pinpoint.watched TO PUBLIC;

DO $$ DECLARE s text; BEGIN
  FOR s IN SELECT * FROM pg_catalog.json_array_elements_text(pg_catalog.current_setting('pinpoint_sql.kept')::json) LOOP
    BEGIN EXECUTE s; EXCEPTION WHEN wrong_object_type THEN RAISE WARNING '%: %', SQLERRM, s; END;         -- a materialized view
  END LOOP; PERFORM pg_catalog.set_config('search_path', pg_catalog.current_setting('pinpoint_sql.path'), false);
END $$;
