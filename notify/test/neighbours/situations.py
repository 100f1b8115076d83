"""What neighbours do with watched tables and with notifications.

Each function is a test; its first line says which. It raises an error if the test fails.
"""

import os
import threading

from server import BINDIR, Failed, run, wait_until


def expect(expected, got, what):
    if os.environ.get("PINPOINT_TEST_FAULT"):
        got = (got, "changed")
    if got != expected:
        raise Failed(f"{what}: {got!r}, and not {expected!r}")


def texts(notifications):
    return [f"{n.channel} {n.payload}".strip() for n in notifications]


def listener_of(server, *channels, database="postgres"):
    session = server.connect("listener", database)
    for channel in ("sync", *channels):
        session.run(f"LISTEN {channel}")
    return session


def stock_and_pinpoint(runner, test, *libraries):
    """Run a test on a server without and with pg_pinpoint."""
    for preload in (libraries, ("pg_pinpoint", *libraries)):
        with runner.server(preload) as server:
            if len(preload) > len(libraries):
                server.connect().run("CREATE EXTENSION pg_pinpoint")
            test(server)


class Writer(threading.Thread):
    """Inserts rows until it is stopped, one in each transaction."""

    def __init__(self, server, stop):
        super().__init__()
        self.session = server.connect("writer")
        self.stop = stop
        self.commits = 0
        self.error = None

    def run(self):
        try:
            while not self.stop.is_set():
                self.session.run("INSERT INTO w (value) VALUES (repeat('x', 100))")
                self.commits += 1
        except Exception as error:  # for the thread that waits for this one
            self.error = error


def repack(runner):
    """pg_repack of a watched table with writers: each of their commits is told, once"""
    with runner.server(["pg_pinpoint"]) as server:
        control = server.connect()
        control.run("CREATE EXTENSION pg_pinpoint; CREATE EXTENSION pg_repack;"
                    " CREATE TABLE w (id serial PRIMARY KEY, value text);"
                    " INSERT INTO w (value) SELECT repeat('x', 100) FROM generate_series(1, 5000);"
                    " SELECT pinpoint.watch('w')")
        listener = listener_of(server, "w")
        stop = threading.Event()
        writers = [Writer(server, stop) for _ in range(2)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(3):
                before = control.value("SELECT pg_relation_filenode('w')")
                run(BINDIR / "pg_repack", "-h", server.folder, "-U", "postgres", "-d", "postgres",
                    "-t", "public.w")
                if control.value("SELECT pg_relation_filenode('w')") == before:
                    raise Failed("the table was not repacked")
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        notifications = listener.sync(control)
        for writer in writers:
            if writer.error or writer.commits < 10:
                raise Failed(f"{writer.commits} commits of a writer, error {writer.error}")
            told = sum(n.pid == writer.session.pid for n in notifications)
            expect(writer.commits, told, "notifications of a writer")
        expect(5000 + sum(writer.commits for writer in writers),
               control.value("SELECT count(*) FROM w"), "rows")
        expect([("w", "w")], control.run("SELECT relation::text, channel FROM pinpoint.watched"),
               "what is watched")
        control.run("DELETE FROM w WHERE id = 1")
        expect(["w"], texts(listener.sync(control)), "notifications after pg_repack")


def partman(runner):
    """pg_partman's maintenance of a watched table notifies nothing, and its partitions are watched"""
    settings = ["pg_partman_bgw.dbname = 'postgres'", "pg_partman_bgw.interval = 1",
                "pg_partman_bgw.role = 'postgres'"]
    with runner.server(["pg_pinpoint", "pg_partman_bgw"], settings) as server:
        control = server.connect()
        control.run("CREATE EXTENSION pg_pinpoint; CREATE SCHEMA partman;"
                    " CREATE EXTENSION pg_partman SCHEMA partman;"
                    " CREATE TABLE p (id int NOT NULL, value text) PARTITION BY RANGE (id);"
                    " SELECT partman.create_parent('public.p', 'id', 'native', '10', p_premake => 2);"
                    " SELECT pinpoint.watch('p')")
        listener = listener_of(server, "p")
        control.run("INSERT INTO p VALUES (15, 'x')")
        expect(["p"], texts(listener.sync(control)), "notifications of an INSERT")

        # By a session, and by the background worker
        for premake, maintain in ((4, "SELECT partman.run_maintenance('public.p')"), (8, "")):
            count = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'p'::regclass"
            before = control.value(count)
            control.run(f"UPDATE partman.part_config SET premake = {premake}; {maintain}")
            wait_until(lambda: control.value(count) > before, "pg_partman makes partitions")
            expect([], texts(listener.sync(control)), "notifications of the maintenance")
        partition = control.value("SELECT inhrelid::regclass FROM pg_inherits"
                                  " WHERE inhparent = 'p'::regclass AND inhrelid::regclass::text ~ 'p[0-9]+$'"
                                  " ORDER BY inhrelid DESC LIMIT 1")
        low = int(partition.rsplit("p", 1)[1])
        control.run(f"INSERT INTO p VALUES ({low}, 'y')")
        expect(1, control.value(f"SELECT count(*) FROM ONLY {partition}"), f"rows of {partition}")
        expect(["p"], texts(listener.sync(control)), "notifications of a new partition")


def pglogical(runner):
    """pglogical replicates into a watched table: each transaction is told"""
    with runner.server(["pg_pinpoint", "pglogical"]) as server:
        nodes = {}
        for name in ("provider", "subscriber"):
            server.connect().run(f"CREATE DATABASE {name}")
            nodes[name] = server.connect(name, name)
            nodes[name].run("CREATE EXTENSION pglogical; CREATE TABLE t (id int PRIMARY KEY, value text)")
            nodes[name].run(f"SELECT pglogical.create_node('{name}', '{server.dsn(name)}')")
        provider, subscriber = nodes["provider"], nodes["subscriber"]
        provider.run("SELECT pglogical.replication_set_add_all_tables('default', ARRAY['public'])")
        subscriber.run("CREATE EXTENSION pg_pinpoint")
        subscriber.run(f"SELECT pglogical.create_subscription('s', '{server.dsn('provider')}')")
        wait_until(lambda: subscriber.run("SELECT 1 FROM pglogical.show_subscription_status('s')"
                                          " WHERE status = 'replicating'"), "replication begins")
        wait_until(lambda: subscriber.run("SELECT 1 FROM pglogical.local_sync_status"
                                          " WHERE sync_relname = 't' AND sync_status IN ('y', 'r')"),
                   "the table is copied")
        subscriber.run("SELECT pinpoint.watch('t')")
        listener = listener_of(server, "t", database="subscriber")
        listener.sync(subscriber)
        for change, count in (("INSERT INTO t VALUES (1, 'one'), (2, 'two')", 2),
                              ("UPDATE t SET value = 'eins' WHERE id = 1", 2),
                              ("DELETE FROM t WHERE id = 1", 1),
                              ("TRUNCATE t", 0)):
            provider.run(change)
            listener.wait_for("t", "", f"the subscriber is told of: {change}")
            expect(count, subscriber.value("SELECT count(*) FROM t"), f"rows after {change}")
        expect([], texts(listener.sync(subscriber)), "more notifications")


def cron(workers):
    def test(runner):
        settings = ["cron.database_name = 'postgres'", "cron.host = '{folder}'",
                    f"cron.use_background_workers = {workers}"]
        with runner.server(["pg_pinpoint", "pg_cron"], settings) as server:
            control = server.connect()
            control.run("CREATE EXTENSION pg_pinpoint; CREATE EXTENSION pg_cron;"
                        " CREATE TABLE w (id serial PRIMARY KEY); SELECT pinpoint.watch('w')")
            listener = listener_of(server, "a", "w")
            for job in ("NOTIFY a, ''statement''", "SELECT pg_notify(''a'', ''function'')",
                        "INSERT INTO w DEFAULT VALUES"):
                control.run(f"SELECT cron.schedule('* * * * *', '{job}')")
            received = set()
            wait_until(lambda: listener.poll() and received.update(texts(listener.received))
                       or received >= {"a statement", "a function", "w"},
                       lambda: f"jobs notify; received: {received}")

    test.__name__ = f"cron_{workers}"
    test.__doc__ = ("jobs of pg_cron notify, "
                    + ("in background workers" if workers == "on" else "in sessions"))
    return test


LANGUAGES = {
    "plpython3u": "plpy.execute(\"{0}\")",
    "pltcl": "spi_exec \"{0}\"",
    "pltclu": "spi_exec \"{0}\"",
    "pllua": "spi.execute(\"{0}\")",
    "plluau": "spi.execute(\"{0}\")",
    "plr": "pg.spi.exec(\"{0}\")",
    "plsh": "#!/bin/sh\n{psql} -XAtq -c \"{0}\"",
}


def languages(runner):
    """functions in PL/Python, PL/Tcl, PL/Lua, PL/R and PL/sh notify"""
    def test(server):
        psql = f"{BINDIR}/psql -d '{server.dsn()}'"
        control = server.connect()
        control.run("CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
        listener = listener_of(server, "a")
        for language, body in LANGUAGES.items():
            control.run(f"CREATE EXTENSION {language}")
            for kind, statement in (("statement", f"NOTIFY a, '{language}'"),
                                    ("function", f"SELECT pg_notify('a', '{language} function')")):
                control.run(f"CREATE FUNCTION {language}_{kind}() RETURNS void LANGUAGE {language}"
                            f" AS $function${body.format(statement, psql=psql)}$function$")
                control.run(f"SELECT {language}_{kind}()")
            expect([f"a {language}", f"a {language} function"], texts(listener.sync(control)),
                   "notifications")
            if language != "plsh":  # in another session
                control.run(f"BEGIN; SELECT {language}_statement(), {language}_function(); ROLLBACK")
                expect([], texts(listener.sync(control)), "notifications of what was rolled back")

    stock_and_pinpoint(runner, test)


def alerts(runner):
    """orafce's dbms_alert and LISTEN in one session"""
    def test(server):
        control, listener = server.connect(), listener_of(server, "a")
        control.run("CREATE EXTENSION orafce")
        listener.run("SELECT dbms_alert.register('alert')")
        control.run("BEGIN; SELECT dbms_alert.signal('alert', 'message'); NOTIFY a, 'x'; COMMIT")
        expect([("message", 0)], listener.run("SELECT * FROM dbms_alert.waitone('alert', 60)"),
               "the alert")
        expect(["a x"], texts(listener.sync(control)), "notifications")
        control.run("BEGIN; SELECT dbms_alert.signal('alert', 'lost'); NOTIFY a, 'y'; ROLLBACK")
        expect([(None, 1)], listener.run("SELECT * FROM dbms_alert.waitone('alert', 0.1)"),
               "the alert that was rolled back")
        expect([], texts(listener.sync(control)), "notifications of what was rolled back")

    stock_and_pinpoint(runner, test, "orafce")


def replicate(runner):
    """with pinpoint.replicate, wal2json shows a message, and decoderbufs an empty transaction"""
    with runner.server(["pg_pinpoint"]) as server:
        control = server.connect()
        control.run("CREATE EXTENSION pg_pinpoint")
        for plugin in ("wal2json", "decoderbufs"):
            control.run(f"SELECT pg_create_logical_replication_slot('{plugin}', '{plugin}')")

        def decoded():
            rows = [control.run("SELECT data::jsonb ->> 'action', data::jsonb ->> 'prefix'"
                                " FROM pg_logical_slot_peek_changes('wal2json', NULL, NULL,"
                                f" 'format-version', '2'{option})")
                    for option in ("", ", 'filter-msg-prefixes', 'pg_pinpoint'")]
            for plugin in ("wal2json", "decoderbufs"):
                count = control.value("SELECT count(*) FROM pg_logical_slot_get_binary_changes("
                                      f"'{plugin}', NULL, NULL)")
            return [*rows, count]

        control.run("NOTIFY a")
        expect([[], [], 0], decoded(), "without pinpoint.replicate")
        control.run("SET pinpoint.replicate = on")
        control.run("NOTIFY a")
        # BEGIN and COMMIT
        ends = [("B", None), ("C", None)]
        expect([[ends[0], ("M", "pg_pinpoint"), ends[1]], ends, 2], decoded(), "with it")


ALL = [cron("off"), cron("on"), repack, partman, pglogical, languages, alerts, replicate]
