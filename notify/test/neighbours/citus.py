"""Tables of Citus, on one server and on two. Each function is a test, as in situations.py."""

import psycopg2

from oracle import compare_caches
from server import Failed
from situations import expect, listener_of, texts

LIBRARIES = ["citus", "pg_pinpoint"]

# Servers connect to each other by their sockets.
SETTINGS = ["citus.local_hostname = '{folder}'", "max_prepared_transactions = 50",
            "max_connections = 100", "citus.enable_statistics_collection = off"]

SHARDS = "SELECT success, result FROM run_command_on_shards('{0}', $$SELECT pinpoint.watch('%s', '{0}')$$)"


def connected(server, *extensions):
    control = server.connect("control")
    control.run("SET client_min_messages = warning")
    for extension in extensions:
        control.run(f"CREATE EXTENSION {extension}")
    control.run(f"SELECT citus_set_coordinator_host('{server.folder}', 5432)")
    control.run(f"SELECT citus_set_node_property('{server.folder}', 5432, 'shouldhaveshards', true)")
    return control


def error_of(session, statement):
    try:
        session.run(statement)
    except psycopg2.Error as error:
        return error
    raise Failed(f"no error: {statement}")


TABLES = {
    "distributed": "SELECT create_distributed_table('distributed', 'id', shard_count => 4)",
    "reference": "SELECT create_reference_table('reference')",
    "managed": "SELECT citus_add_local_table_to_metadata('managed')",
}


def refused(runner):
    """Citus: its tables cannot be watched; the hint watches their shards"""
    with runner.server(LIBRARIES, SETTINGS) as server:
        control = connected(server, "pg_pinpoint", "citus")
        for table, distribute in TABLES.items():
            control.run(f"CREATE TABLE {table} (id int PRIMARY KEY, value int)")
            control.run(distribute)
            error = error_of(control, f"SELECT pinpoint.watch('{table}')")
            expect("0A000", error.pgcode, f"the error of {table}")
            expect(True, "run_command_on_shards" in (error.diag.message_hint or ""), "the hint")
            error = error_of(control, f"SECURITY LABEL FOR pinpoint ON TABLE {table} IS 'x'")
            expect("0A000", error.pgcode, f"the error of a label of {table}")
        listener = listener_of(server, *TABLES)
        for table in TABLES:
            expect({(True, table)}, set(control.run(SHARDS.format(table))), f"shards of {table}")
            listener.sync(control)
            for change in (f"INSERT INTO {table} SELECT i, i FROM generate_series(1, 20) i",
                           f"UPDATE {table} SET value = 0 WHERE id = 1",
                           f"COPY {table} FROM PROGRAM 'seq 21 30 | sed s/$/,1/' WITH (FORMAT csv)",
                           f"DELETE FROM {table} WHERE id < 5", f"TRUNCATE {table}"):
                control.run(change)
                expect({table}, set(texts(listener.sync(control))), f"notifications of {change}")


def distributed_later(runner):
    """Citus: a watched table that is distributed later is told, by its shards"""
    with runner.server(LIBRARIES, SETTINGS) as server:
        control = connected(server, "pg_pinpoint", "citus")
        control.run("CREATE TABLE distributed (id int PRIMARY KEY, value int);"
                    " SELECT pinpoint.watch('distributed')")
        control.run(TABLES["distributed"])
        listener = listener_of(server, "distributed")
        listener.sync(control)
        control.run("INSERT INTO distributed SELECT i, i FROM generate_series(1, 20) i")
        expect({"distributed"}, set(texts(listener.sync(control))), "notifications")
        control.run("SELECT pinpoint.unwatch('distributed')")
        expect([], control.run("SELECT * FROM pinpoint.watched"
                               " WHERE relation = 'distributed'::regclass"), "watched tables")


def columnar(runner):
    """Citus: a columnar table is told, also as a partition, and after it has become columnar"""
    with runner.server(LIBRARIES, SETTINGS) as server:
        control = server.connect("control")
        control.run("CREATE EXTENSION pg_pinpoint; CREATE EXTENSION citus_columnar;"
                    " CREATE TABLE c (id int, value text) USING columnar;"
                    " CREATE TABLE h (id int, value text);"
                    " CREATE TABLE p (id int, value text) PARTITION BY RANGE (id);"
                    " CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10) USING columnar;"
                    " CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);"
                    " SELECT pinpoint.watch(t) FROM unnest('{c, h, p}'::regclass[]) t;"
                    " ALTER TABLE h SET ACCESS METHOD columnar")
        listener = listener_of(server, "c", "h", "p")
        listener.sync(control)
        copy = "COPY {0} FROM PROGRAM 'seq 1 5 | sed s/$/,a/' WITH (FORMAT csv)"
        changes = [(table, statement) for table in "chp" for statement in (
            f"INSERT INTO {table} VALUES (1, 'a')",
            f"INSERT INTO {table} SELECT i, 'b' FROM generate_series(1, 9) i",
            copy.format(table),
            f"TRUNCATE {table}")]
        changes += [("p", statement) for statement in (
            "INSERT INTO p1 VALUES (1, 'a')", copy.format("p1"), "TRUNCATE p1",
            "BEGIN; CREATE TABLE p3 USING columnar AS SELECT 25 AS id, 'a'::text AS value;"
            " ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30); COMMIT",
            "INSERT INTO p VALUES (26, 'a')",
            "ALTER TABLE p DETACH PARTITION p3")]
        for channel, statement in changes:
            control.run(statement)
            expect([channel], texts(listener.sync(control)), f"notifications of {statement}")
        control.run("BEGIN; SAVEPOINT s; INSERT INTO c VALUES (1, 'a'); ROLLBACK TO s; COMMIT")
        expect([], texts(listener.sync(control)), "notifications of what was rolled back")


def worker_without(runner):
    """Citus: pg_notify() in a query that a server without pg_pinpoint executes"""
    with runner.server(LIBRARIES, SETTINGS) as server, runner.server(["citus"], SETTINGS) as other:
        control = connected(server, "pg_pinpoint", "citus")
        worker = other.connect("worker")
        worker.run("CREATE EXTENSION citus")
        control.run(f"SELECT citus_add_node('{other.folder}', 5432)")
        control.run("CREATE TABLE distributed (id int PRIMARY KEY, value int)")
        control.run(TABLES["distributed"])
        control.run("INSERT INTO distributed SELECT i, i FROM generate_series(1, 8) i")
        listener = listener_of(other, "a")
        expect(True, control.value("SELECT count(*) > 0 FROM citus_shards s"
                                   f" WHERE nodename = '{other.folder}'"), "shards on the worker")
        for enabled in ("on", "off"):
            control.run(f"SET pinpoint.enabled = {enabled}")
            for each in range(1, 9):
                control.run(f"SELECT pg_notify('a', 'x' || id) FROM distributed WHERE id = {each}")
            control.run("SELECT pg_notify('a', 'all ' || id) FROM distributed")
            expect(set(control.run("SELECT text || id FROM distributed,"
                                   " (VALUES ('a x'), ('a all ')) v(text)"
                                   " WHERE get_shard_id_for_distribution_column('distributed', id)"
                                   " IN (SELECT shardid FROM citus_shards"
                                   f" WHERE nodename = '{other.folder}')")),
                   {(text,) for text in texts(listener.sync(worker))}, "notifications of the worker")


def prepared(runner):
    """Citus: NOTIFY, a change of a distributed table and PREPARE TRANSACTION: the same error"""
    errors = []
    for libraries in (["citus"], LIBRARIES):
        with runner.server(libraries, SETTINGS) as server:
            control = connected(server, *reversed([*libraries]))
            control.run("CREATE TABLE distributed (id int PRIMARY KEY, value int)")
            control.run(TABLES["distributed"])
            for first in ("NOTIFY a", "SELECT pg_notify('a', '')"):
                control.run(f"BEGIN; {first}; INSERT INTO distributed VALUES (1, 1)")
                error = error_of(control, "PREPARE TRANSACTION 'p'")
                errors.append((error.pgcode, str(error)))
                control.run("ROLLBACK")
    expect(errors[:2], errors[2:], "errors")


def citus_caches(runner):
    """Citus: a cache of a columnar table, and one of a table with watched shards, is never stale"""
    with runner.server(LIBRARIES, SETTINGS) as server:
        control = connected(server, "pg_pinpoint", "citus", "citus_columnar")
        control.run("CREATE TABLE distributed (id int, value int)")
        control.run(TABLES["distributed"])
        control.run("CREATE TABLE c (id int, value int) PARTITION BY RANGE (id);"
                    " CREATE TABLE c1 PARTITION OF c FOR VALUES FROM (0) TO (500) USING columnar;"
                    " CREATE TABLE c2 PARTITION OF c FOR VALUES FROM (500) TO (2000);"
                    " SELECT pinpoint.watch('c')")
        control.run(SHARDS.format("distributed"))

        def table(random):
            return random.choice(("distributed", "c"))

        def rows(random):
            start = random.randint(1, 900)
            return f"SELECT i, i FROM generate_series({start}, {start + 50}) i"

        compare_caches(server, ("distributed", "c"), {
            "insert": lambda r: [f"INSERT INTO {table(r)} VALUES ({r.randint(1, 900)}, 1)"],
            "insert rows": lambda r: [f"INSERT INTO {table(r)} {rows(r)}"],
            "copy": lambda r: [f"COPY {table(r)} FROM PROGRAM 'seq {r.randint(1, 500)} 510"
                               " | sed s/$/,1/' WITH (FORMAT csv)"],
            "update": lambda r: ["UPDATE distributed SET value = value + 1"
                                 f" WHERE id < {r.randint(1, 900)}"],
            "update one": lambda r: [f"INSERT INTO distributed VALUES ({(n := r.randint(1, 900))}, 0);"
                                     f" UPDATE distributed SET value = 5 WHERE id = {n}"],
            "delete": lambda r: [f"DELETE FROM distributed WHERE id % 7 = {r.randint(0, 6)}"],
            "delete from heap": lambda r: [f"DELETE FROM c2 WHERE id % 7 = {r.randint(0, 6)}"],
            "truncate": lambda r: [f"TRUNCATE {table(r)}"],
            "rolled back": lambda r: [f"BEGIN; INSERT INTO {table(r)} {rows(r)}; ROLLBACK"],
            "both": lambda r: [f"BEGIN; INSERT INTO distributed {rows(r)};"
                               f" INSERT INTO c {rows(r)}; COMMIT"],
            "partition": lambda r: [f"INSERT INTO c1 VALUES ({r.randint(0, 499)}, 2)"],
        })


ALL = [refused, distributed_later, columnar, worker_without, prepared, citus_caches]
