"""Hypertables that are watched. Each function is a test, as in situations.py."""

from oracle import compare_caches
from server import wait_until
from situations import expect, listener_of, texts

LIBRARIES = ["pg_pinpoint", "timescaledb"]
SETTINGS = ["timescaledb.telemetry_level = off", "timescaledb.bgw_launcher_poll_time = '1s'"]

# A hypertable with chunks of 1,000 rows, and the columnstore.
HYPERTABLE = """
CREATE TABLE {0} (time bigint NOT NULL, device int, value float);
SELECT create_hypertable('{0}', 'time', chunk_time_interval => 1000);
CREATE FUNCTION now_of_{0}() RETURNS bigint LANGUAGE sql STABLE
  AS 'SELECT coalesce(max(time), 0) FROM public.{0}';
SELECT set_integer_now_func('{0}', 'now_of_{0}');
ALTER TABLE {0} SET (timescaledb.compress, timescaledb.compress_segmentby = 'device',
                     timescaledb.compress_orderby = 'time');
INSERT INTO {0} SELECT i, i % 5, i FROM generate_series(1, 4000) i;
"""
COMPRESS = "SELECT count(compress_chunk(c, if_not_compressed => true)) FROM show_chunks('{0}') c"
COPY = "COPY m FROM PROGRAM 'seq {0} {1} | sed s/$/,{2},1/' WITH (FORMAT csv)"

# A continuous aggregate that shows only what is materialized. Its hypertable is watched.
AGGREGATE = """
CREATE MATERIALIZED VIEW c WITH (timescaledb.continuous, timescaledb.materialized_only = true) AS
  SELECT time_bucket(100, time) AS bucket, device, sum(value) FROM m GROUP BY 1, 2 WITH NO DATA;
ALTER MATERIALIZED VIEW c SET (timescaledb.compress)
"""
WATCH_AGGREGATE = """
SELECT pinpoint.watch(format('%I.%I', materialization_hypertable_schema,
                             materialization_hypertable_name)::regclass, 'c')
FROM timescaledb_information.continuous_aggregates
"""


def connected(server, *tables):
    """A session that has made and watched hypertables, and a listener."""
    control = server.connect("control")
    control.run("SET client_min_messages = warning; CREATE EXTENSION pg_pinpoint;"
                " CREATE EXTENSION timescaledb")
    for table in tables:
        control.run(HYPERTABLE.format(table))
        control.run(f"SELECT pinpoint.watch('{table}')")
    listener = listener_of(server, *tables)
    listener.sync(control)
    return control, listener


def tell(control, listener, table, statements):
    """Each statement notifies the channel of the table, once."""
    for statement in statements:
        control.run(statement)
        expect([table], texts(listener.sync(control)), f"notifications of {statement}")


def first_chunk(control, table="m"):
    return control.value(f"SELECT format('%s', c) FROM show_chunks('{table}') c ORDER BY c LIMIT 1")


def becomes_hypertable(runner):
    """TimescaleDB: a watched table becomes a hypertable, and stays watched"""
    with runner.server(LIBRARIES, SETTINGS) as server:
        control, listener = connected(server)
        for table, migrate in (("empty", "false"), ("filled", "true")):
            control.run(f"CREATE TABLE {table} (time bigint NOT NULL, device int, value float);"
                        f" SELECT pinpoint.watch('{table}')")
            listener.run(f"LISTEN {table}")
            if migrate == "true":
                control.run(f"INSERT INTO {table} SELECT i, 1, 1 FROM generate_series(1, 2500) i")
            control.run(f"SELECT create_hypertable('{table}', 'time', chunk_time_interval => 1000,"
                        f" migrate_data => {migrate})")
            listener.sync(control)
            tell(control, listener, table, (
                f"INSERT INTO {table} VALUES (1, 1, 1), (1001, 1, 1)",
                f"MERGE INTO {table} m USING (VALUES (1), (9000)) s(time) ON m.time = s.time"
                " WHEN MATCHED THEN UPDATE SET value = 7"
                " WHEN NOT MATCHED THEN INSERT VALUES (s.time, 1, 1)"))
            control.run(f"ALTER TABLE {table} SET (timescaledb.compress,"
                        " timescaledb.compress_segmentby = 'device')")
            control.run(COMPRESS.format(table))
            listener.sync(control)
            tell(control, listener, table, (f"DELETE FROM {table} WHERE device = 1",))
            expect(0, control.value(f"SELECT count(*) FROM {table}"), "rows")
            expect("locks", control.value("SELECT source FROM pinpoint.watched"
                                          f" WHERE channel = '{table}'"), "the source")


def changes(runner):
    """TimescaleDB: each kind of change of a hypertable is told, in rows and in batches"""
    with runner.server(LIBRARIES, SETTINGS) as server:
        control, listener = connected(server, "m")
        for compressed in (False, True):
            if compressed:
                control.run(COMPRESS.format("m"))
                listener.sync(control)
            chunk = first_chunk(control)
            tell(control, listener, "m", (
                "INSERT INTO m VALUES (1, 1, 1)",
                "INSERT INTO m VALUES (9001, 1, 1)",
                "UPDATE m SET value = 2 WHERE device = 1 AND time < 10",
                COPY.format(1, 100, 6),
                "DELETE FROM m WHERE time = 20",
                "DELETE FROM m WHERE device = 1",
                f"DELETE FROM {chunk} WHERE device = 2",
                f"DELETE FROM ONLY {chunk} WHERE time < 50",
                "DELETE FROM m",
                "INSERT INTO m SELECT i, i % 5, i FROM generate_series(1, 4000) i"))
            control.run("BEGIN; DELETE FROM m WHERE device = 3; PREPARE TRANSACTION 'p'")
            expect([], texts(listener.sync(control)), "notifications of PREPARE TRANSACTION")
            tell(control, listener, "m", ("COMMIT PREPARED 'p'",))
        control.run(COMPRESS.format("m"))
        listener.sync(control)
        for direct in ("copy", "insert"):
            setting = f"timescaledb.enable_direct_compress_{direct}"
            if control.run(f"SELECT 1 FROM pg_settings WHERE name = '{setting}'"):
                tell(control, listener, "m", (
                    f"BEGIN; SET LOCAL {setting} = on; " + (
                        COPY.format(1, 3000, 7) if direct == "copy" else
                        "INSERT INTO m SELECT i, 8, i FROM generate_series(1, 3000) i")
                    + "; COMMIT",))
        tell(control, listener, "m", (
            f"DROP TABLE {first_chunk(control)}",
            "SELECT drop_chunks('m', older_than => 2500)",
            "TRUNCATE m"))
        expect(0, control.value("SELECT count(*) FROM m"), "rows")


def chunks(runner):
    """TimescaleDB: chunks that are detached, attached and dropped by hand are told"""
    with runner.server(LIBRARIES, SETTINGS) as server:
        control, listener = connected(server, "m")
        chunk = first_chunk(control)
        if not control.run("SELECT 1 FROM pg_proc WHERE proname = 'attach_chunk'"):
            return  # an older version
        tell(control, listener, "m", (
            f"CALL detach_chunk('{chunk}')",
            f"CALL attach_chunk('m', '{chunk}', '{{\"time\": [0, 1000]}}')"))


def aggregate(runner):
    """TimescaleDB: a continuous aggregate is watched through its hypertable"""
    with runner.server(LIBRARIES, SETTINGS) as server:
        control, listener = connected(server, "m")
        control.run(AGGREGATE)
        control.run(WATCH_AGGREGATE)
        listener.run("UNLISTEN m; LISTEN c")
        for statement in ("INSERT INTO m VALUES (2, 2, 2)", "UPDATE m SET value = 3 WHERE time = 2",
                          "DELETE FROM m WHERE device = 4"):
            control.run(statement)
            expect([], texts(listener.sync(control)), "notifications before the refresh")
            control.run("CALL refresh_continuous_aggregate('c', NULL, NULL)")
            expect({"c"}, set(texts(listener.sync(control))), f"notifications of {statement}")


def run_job(control, add):
    """Wait until a background worker has executed a new job. TimescaleDB 2.28 fails there on later
    minor releases of PostgreSQL 15 ("cannot drop portal"), with or without pg_pinpoint: then this
    session executes it."""
    job = control.value(add)
    runs, failures = wait_until(
        lambda: control.run("SELECT total_runs, total_failures FROM"
                            f" timescaledb_information.job_stats WHERE job_id = {job}"
                            " AND total_successes + total_failures > 0"), f"job {job} runs")[0]
    if failures == runs:
        control.run(f"CALL run_job({job})")


def jobs(runner):
    """TimescaleDB: what jobs change is told: retention, and the refresh of an aggregate"""
    with runner.server(LIBRARIES, SETTINGS) as server:
        control, listener = connected(server, "m")
        control.run(AGGREGATE)
        control.run(WATCH_AGGREGATE)
        listener.run("LISTEN c")
        run_job(control, "SELECT add_compression_policy('m', compress_after => 1500)")
        expect(True, control.value("SELECT bool_or(is_compressed) FROM timescaledb_information.chunks"
                                   " WHERE hypertable_name = 'm'"), "compressed chunks")
        listener.sync(control)
        run_job(control, "SELECT add_continuous_aggregate_policy('c', NULL, 100, '1 hour')")
        expect({"c"}, set(texts(listener.sync(control))) - {"m"}, "notifications of the refresh")
        run_job(control, "SELECT add_retention_policy('m', drop_after => 2500)")
        expect(["m"], texts(listener.sync(control)), "notifications of dropped chunks")
        expect(0, control.value("SELECT count(*) FROM m WHERE time < 1000"), "rows")


def kinds_of_changes(control):
    """What writers do, by its name: functions that make statements. Those that this version of
    TimescaleDB does not have are missing."""
    def chunk(random):
        number = random.randint(0, 5)
        return f"(SELECT c FROM show_chunks('m') c ORDER BY c OFFSET {number} LIMIT 1)"

    def rows(random):
        start = random.randint(1, 5500)
        return f"SELECT i, {random.randint(0, 6)}, i FROM generate_series({start}, {start + 300}) i"

    def copy(random):
        start = random.randint(1, 5500)
        return COPY.format(start, start + 300, random.randint(0, 6))

    kinds = {
        "insert": lambda r: [f"INSERT INTO m {rows(r)}"],
        "update": lambda r: [f"UPDATE m SET value = value + 1 WHERE time = {r.randint(1, 6000)}"
                             f" OR device = {r.randint(0, 6)} AND time % 50 = 1"],
        "copy": lambda r: [copy(r)],
        "delete batches": lambda r: [f"DELETE FROM m WHERE device = {r.randint(0, 6)}"],
        "delete rows": lambda r: [f"DELETE FROM m WHERE time % 7 = {r.randint(0, 6)}"],
        "delete all": lambda r: ["DELETE FROM m"],
        "delete in chunk": lambda r: [
            f"DO $$ BEGIN EXECUTE 'DELETE FROM ' || coalesce({chunk(r)}::text, 'm')"
            f" || ' WHERE device = {r.randint(0, 6)}'; END $$"],
        "truncate": lambda r: ["TRUNCATE m"],
        "merge": lambda r: [f"MERGE INTO m USING (VALUES ({r.randint(1, 6000)})) s(time)"
                            " ON m.time = s.time WHEN NOT MATCHED THEN"
                            " INSERT VALUES (s.time, 9, 9)"],
        "compress": lambda r: [
            f"SELECT compress_chunk(c, if_not_compressed => true) FROM {chunk(r)} c"],
        "compress all": lambda r: [COMPRESS.format("m")],
        "decompress": lambda r: [
            f"SELECT decompress_chunk(c, if_compressed => true) FROM {chunk(r)} c"],
        "drop chunks": lambda r: [f"SELECT drop_chunks('m', older_than => {r.randint(1, 3000)})"],
        "savepoint": lambda r: [f"BEGIN; INSERT INTO m {rows(r)}; SAVEPOINT s;"
                                " DELETE FROM m; ROLLBACK TO s;"
                                f" DELETE FROM m WHERE device = {r.randint(0, 6)}; COMMIT"],
        "rolled back": lambda r: ["BEGIN; DELETE FROM m; ROLLBACK"],
        "prepared": lambda r: ["BEGIN; DELETE FROM m WHERE device = 1;"
                               f" PREPARE TRANSACTION '{(gid := r.random())}'",
                               f"COMMIT PREPARED '{gid}'"],
        "update chunk rows": lambda r: [f"UPDATE m SET device = {r.randint(0, 6)} WHERE time < 200"],
        "refresh": lambda r: ["CALL refresh_continuous_aggregate('c', NULL, NULL)"],
        "compress aggregate": lambda r: [COMPRESS.format("c")],
        "drop from aggregate": lambda r: [f"SELECT drop_chunks('c', older_than => {r.randint(1, 3000)})"],
    }
    for direct, statement in (("copy", copy), ("insert", lambda r: f"INSERT INTO m {rows(r)}")):
        setting = f"timescaledb.enable_direct_compress_{direct}"
        if control.run(f"SELECT 1 FROM pg_settings WHERE name = '{setting}'"):
            kinds[f"direct {direct}"] = lambda r, setting=setting, statement=statement: [
                f"BEGIN; SET LOCAL {setting} = on; {statement(r)}; COMMIT"]
    return kinds


def hypertable_caches(runner):
    """TimescaleDB: a cache of a hypertable, and one of a continuous aggregate, is never stale"""
    with runner.server(LIBRARIES, SETTINGS) as server:
        control, _ = connected(server, "m")
        control.run(AGGREGATE)
        control.run(WATCH_AGGREGATE)
        compare_caches(server, ("m", "c"), kinds_of_changes(control))


ALL = [becomes_hypertable, changes, chunks, aggregate, jobs, hypertable_caches]
