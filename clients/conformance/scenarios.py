"""The scenarios. Each function gets the setting and the clients of all languages; its first line is its name."""

import contextlib
import functools
import itertools
import os
import random
import shutil
import socket
import subprocess
import threading
import time

import psycopg

from fake_server import FakeServer
from servers import DEADLINE, HEARTBEAT, SERVER_USER, Failed, PgBouncer, Proxy, Server, wait_until

MANAGED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../managed/pinpoint.sql")

# End the sessions of clients.
KILL = ("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")


class Setting:
    """A primary, a standby and a stock server, started when a scenario first asks for them.

    managed: without the library, with managed/pinpoint.sql.
    """

    def __init__(self, bindir, folder, managed=False):
        self.bindir, self.folder, self.managed = bindir, folder, managed
        self.servers, self.poolers, self.proxies = {}, [], []

    def primary(self):
        if "primary" not in self.servers:
            primary = Server(self.bindir, self.folder, "primary", pinpoint=not self.managed).init("wal_level = replica")
            self.servers["primary"] = primary.start()
            self.install(primary)
        return self.servers["primary"]

    def install(self, server, dbname="postgres"):
        """Make the schema pinpoint in a database, unless it is there."""
        if not self.managed:
            server.sql("CREATE EXTENSION IF NOT EXISTS pg_pinpoint", dbname=dbname)
        elif not server.sql("SELECT FROM pg_namespace WHERE nspname = 'pinpoint'", dbname=dbname):
            server.execute_file(MANAGED, dbname)

    def uninstall(self, server):
        server.sql("SELECT pinpoint.uninstall()" if self.managed else "DROP EXTENSION pg_pinpoint")

    def waiting(self, server):
        """The process IDs of the sessions in pinpoint.wait()."""
        query = "SELECT pid FROM pinpoint.waiting"
        if self.managed:
            query = "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'CALL pinpoint.wait(%'"
        return {pid for pid, in server.sql(query)}

    def wait_unlistened(self, server, pattern):
        """Wait until nobody listens on such channels. Only the library shows that."""
        if not self.managed:
            listened = f"SELECT 1 FROM pinpoint.stat_channels WHERE channel LIKE '{pattern}'"
            wait_until(lambda: not server.sql(listened), "nobody listens any more")

    def standby(self):
        """A new standby of the primary."""
        primary = self.primary()
        standby = Server(self.bindir, self.folder, f"standby{len(self.servers)}", primary.pinpoint).copy_of(primary)
        self.servers[standby.data] = standby
        return standby.start()

    def stock(self):
        if "stock" not in self.servers:
            self.servers["stock"] = Server(self.bindir, self.folder, "stock", pinpoint=False).init().start()
        return self.servers["stock"]

    def proxy(self, server):
        self.proxies.append(Proxy(server.port if server else None))
        return self.proxies[-1]

    def pooler(self, mode, server, **options):
        self.poolers.append(PgBouncer(self.folder, f"pooler{len(self.poolers)}", mode, server.port, **options))
        return self.poolers[-1].start()

    def restore(self):
        """After a scenario: no proxies and poolers, no standbys; the primary runs, without what was created."""
        for pooler in self.poolers:
            pooler.stop()
        for proxy in self.proxies:
            proxy.listener.close()
            proxy.cut()
        self.proxies = []
        for name in [name for name in self.servers if name not in ("primary", "stock")]:
            server = self.servers.pop(name)
            with contextlib.suppress(Failed):
                server.stop("immediate")
            shutil.rmtree(server.data, ignore_errors=True)

    def close(self):
        for server in self.servers.values():
            with contextlib.suppress(Failed):
                server.stop("immediate")


def dsn(*ports, user="postgres", dbname="postgres", **parameters):
    hosts = ",".join(f"127.0.0.1:{getattr(port, 'port', port)}" for port in ports)
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"postgresql://{user}@{hosts}/{dbname}" + (f"?{query}" if query else "")


def notify(server, channel, payload="", dbname="postgres"):
    """Returns the moment before."""
    now = time.monotonic()
    with server.connect(dbname) as connection:
        connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))
    return now


def wait_for_heartbeats(server):
    """Wait until two heartbeats were sent to all who listen now."""
    with server.connect() as connection:
        connection.execute("LISTEN pinpoint_heartbeat")
        if len(list(connection.notifies(timeout=DEADLINE, stop_after=2))) < 2:
            raise Failed("no heartbeats")


def create_watched(server, table):
    """A table with the row 0, which is watched."""
    server.sql(f"DROP TABLE IF EXISTS {table}", f"CREATE TABLE {table} (n int)", f"INSERT INTO {table} VALUES (0)",
               f"SELECT pinpoint.watch('{table}')")


def change(server, table):
    """Change a watched table. Returns the moment before."""
    now = time.monotonic()
    server.sql(f"UPDATE {table} SET n = n + 1")
    return now


def check_alive(server, clients, *channels):
    """Notifications arrive, on each of the channels."""
    for channel in channels:
        since = notify(server, channel, f"alive {time.monotonic()}")
        clients.wait_told(channel, since)


def connected(setting, clients, server, *channels, mode="push"):
    """Start clients that listen on the channels, and wait until they do."""
    clients.start(dsn(server), "subscribe", *channels)
    clients.wait_for("connected", mode=mode)
    for channel in channels:
        clients.wait_told(channel, 0)


def cut_off(proxy, clients):
    """End the connections, and refuse others. Returns the moment before."""
    since = time.monotonic()
    proxy.target = None
    proxy.cut()
    clients.wait_for("disconnected", since)
    return since


def heartbeats_every(seconds):
    """A scenario with another interval of heartbeats. By default a client may only be silent for a moment, so one that
    is slow on a busy machine takes its connection for lost."""
    def decorate(scenario):
        @functools.wraps(scenario)
        def run(setting, clients):
            primary = setting.primary()
            primary.set_heartbeat_interval(seconds)
            try:
                scenario(setting, clients)
            finally:
                primary.set_heartbeat_interval(HEARTBEAT)
        return run
    return decorate


# ---- Connections that are lost ----------------------------------------------------


def server_restart(setting, clients):
    """The server restarts."""
    primary = setting.primary()
    connected(setting, clients, primary, "a", "b")
    check_alive(primary, clients, "a", "b")
    since = time.monotonic()
    primary.stop()
    clients.wait_for("disconnected", since)
    start = time.monotonic()
    primary.start()
    since = notify(primary, "a")
    clients.wait_told("a", since)
    clients.wait_for("connected", start)
    check_alive(primary, clients, "a", "b")
    clients.close()


@heartbeats_every(2)
def session_killed(setting, clients):
    """The session is terminated; only what was notified meanwhile is named."""
    primary = setting.primary()
    connected(setting, clients, primary, "a", "b")
    check_alive(primary, clients, "a", "b")
    wait_for_heartbeats(primary)  # only what changes after a heartbeat is missed
    since = time.monotonic()
    primary.sql(KILL,
                "NOTIFY a")
    clients.wait_told("a", since)
    clients.wait_for("connected", since)
    check_alive(primary, clients, "a", "b")

    def only_a(client):
        if any("b" in event["channels"] for event in client.find("changed", since)):
            raise Failed(f"b was not notified: {client.find('changed', since)}")
    clients.each(only_a)
    clients.close()


@heartbeats_every(2)
def session_killed_of_watched(setting, clients):
    """The session is terminated; of two watched tables, only the one that has changed is named."""
    primary = setting.primary()
    for table in "changing", "kept":
        create_watched(primary, table)
    connected(setting, clients, primary, "changing", "kept")
    for _ in range(3):
        since = time.monotonic()
        primary.sql(KILL)
        change(primary, "changing")
        clients.wait_told("changing", since)
        clients.wait_for("connected", since)

        def not_kept(client):
            if any("kept" in event["channels"] for event in client.find("changed", since)):
                raise Failed(f"the table kept has not changed: {client.find('changed', since)}")
        clients.each(not_kept)
        clients.wait_told("changing", change(primary, "changing"))
    clients.close()


def changes_during_reconnects(setting, clients):
    """Each of 600 channels is notified once, while sessions are terminated all the time."""
    primary = setting.primary()
    channels = [f"once{n}" for n in range(600)]
    clients.start(dsn(primary), "subscribe", *channels)
    for channel in channels[0], channels[-1]:
        clients.wait_told(channel, 0)
    notified = {}
    with primary.connect() as connection:
        for number, channel in enumerate(channels):
            if number % 20 == 0:
                connection.execute(KILL)
            notified[channel] = time.monotonic()
            connection.execute(f"NOTIFY {channel}")
            time.sleep(0.01)  # so that they are spread over the reconnects

    def none_missed(client):
        for channel in channels:
            client.wait_told(channel, notified[channel])
    clients.each(none_missed)
    clients.close()


@heartbeats_every(2)
def connection_refused(setting, clients):
    """Connections are refused for 20 seconds."""
    primary = setting.primary()
    proxy = setting.proxy(primary)
    clients.start(dsn(proxy), "subscribe", "a", options={"max_backoff": 1})
    clients.wait_told("a", 0)
    since = cut_off(proxy, clients)
    notify(primary, "a")
    wait_until(lambda: time.monotonic() > since + 20, "20 seconds are over")
    end = time.monotonic()

    def backs_off(client):
        waits = [event["retry_in"] for when, event in list(client.events)
                 if since <= when <= end and event["event"] == "disconnected"]
        longest = [min(1, 0.1 * 2**number) for number in range(len(waits))]
        if not all(limit / 2 - 0.001 <= wait <= limit + 0.001 for wait, limit in zip(waits, longest)):
            raise Failed(f"not the double time after each attempt: {waits}")
        if len({round(wait, 4) for wait in waits[-8:]}) < 4:
            raise Failed(f"no jitter: {waits[-8:]}")
        if len(waits) < 10 or sum(waits[:-2]) > end - since + 1:
            raise Failed(f"{len(waits)} attempts in {end - since} seconds, and {sum(waits)} seconds between them")
    clients.each(backs_off)
    since = time.monotonic()
    proxy.target = primary.port
    clients.wait_for("connected", since)
    clients.wait_told("a", since)
    check_alive(primary, clients, "a")
    clients.close()


def proxy_falls_silent(setting, clients):
    """A proxy falls silent: both directions, to the client only, to the server only."""
    primary = setting.primary()
    proxy = setting.proxy(primary)
    connected(setting, clients, proxy, "a")
    for directions in ("up", "down"), ("down",), ("up",):
        since = time.monotonic()
        proxy.fall_silent(*directions)
        notify(primary, "a")
        if "down" in directions:
            clients.wait_for("disconnected", since)
        clients.wait_told("a", since)
        if directions == ("up",):
            proxy.cut()
            clients.wait_for("connected", since)
        check_alive(primary, clients, "a")
    clients.close()


def noticed(setting, clients, server, meanwhile=contextlib.nullcontext()):
    """A proxy falls silent, the clients notice it, and miss nothing. meanwhile: what goes on until then."""
    proxy = setting.proxy(server)
    connected(setting, clients, proxy, "a")
    since = time.monotonic()
    proxy.fall_silent("up", "down")
    notify(server, "a")
    with meanwhile:
        clients.wait_for("disconnected", since)
        clients.wait_told("a", since)
    check_alive(server, clients, "a")
    clients.close()


@contextlib.contextmanager
def changing_channels(clients, seconds, commands):
    """Channels are added or removed all the time. commands: a function of the number of the time; seconds: between two
    times."""
    ended = threading.Event()

    def change():
        for number in itertools.count():
            if ended.wait(seconds):
                return
            for command in commands(number):
                clients.command(command)
    changer = threading.Thread(target=change)
    changer.start()
    try:
        yield
    finally:
        ended.set()
        changer.join()


def silent_while_channels_change(setting, clients):
    """A proxy falls silent while channels are removed all the time."""
    noticed(setting, clients, setting.primary(), changing_channels(clients, 0.1, lambda number: ["-never_added"]))


def proxy_silent_on_stock(setting, clients):
    """A proxy falls silent before a server without pg_pinpoint."""
    noticed(setting, clients, setting.stock())


def cut_in_message(setting, clients):
    """The connection ends in the middle of a message."""
    primary = setting.primary()
    proxy = setting.proxy(primary)
    connected(setting, clients, proxy, "a")
    since = time.monotonic()
    proxy.cut_in_message()
    notify(primary, "a", "x" * 5000)
    clients.wait_told("a", since)
    clients.wait_for("disconnected", since)
    check_alive(primary, clients, "a")
    clients.close()


def cut_before_commit(setting, clients):
    """The connection ends between the answer of changed_since() and the end of its transaction."""
    primary = setting.primary()
    proxy = setting.proxy(primary)
    connected(setting, clients, proxy, "a")
    proxy.commits = False
    proxy.cut()
    since = notify(primary, "a")
    for _ in range(2):  # the second one was connected after the notification
        clients.wait_for("disconnected", time.monotonic())
    proxy.commits = True
    clients.wait_told("a", since)
    check_alive(primary, clients, "a")
    clients.close()


def silent_at_start(setting, clients):
    """The server does not answer while the client connects."""
    primary = setting.primary()
    silent = setting.proxy(primary)
    connected(setting, clients, silent, "a")
    since = time.monotonic()
    silent.target = setting.proxy(None).listener.getsockname()[1]  # accepts, but is reset
    silent.cut()
    clients.wait_for("disconnected", since)
    silent.target = primary.port
    clients.wait_for("connected", since)
    check_alive(primary, clients, "a")
    clients.close()


# ---- Odd answers ----------------------------------------------------------------------


def oddly_answered(setting, clients, script, attempts):
    """The server gives odd answers, to the first connection and to a later one, and is then the real one again.

    The client makes so many attempts meanwhile. Only if the driver cannot do the authentication that is asked for,
    there may be a final error instead, and only before the client was connected.
    """
    primary = setting.primary()
    for first in True, False:
        fake = FakeServer(script)
        proxy = setting.proxy(fake if first else primary)
        try:
            clients.start(dsn(proxy, sslmode="disable"), "subscribe", "a", options={"max_backoff": 0.1})
            if not first:
                clients.wait_for("connected")
            since = time.monotonic()
            proxy.target = fake.port
            proxy.cut()

            def told(client):
                if client.wait(
                        lambda: client.find("error", since) or len(client.find("disconnected", since)) >= attempts,
                        lambda: "odd answers are not told", DEADLINE) is True:
                    return
                if not first or script != "authentication_methods":
                    raise Failed(f"a final error: {client.find('error', since)}")
            clients.each(told)
            clients.each(reasons_given)
            since = notify(primary, "a")  # otherwise a client that was connected before has missed nothing
            proxy.target = primary.port
            proxy.cut()

            def goes_on(client):
                if not client.find("error"):
                    client.wait_for("connected", since)
                    client.wait_told("a", since)
                    client.close()
                else:
                    client.process.wait(DEADLINE)
            clients.each(goes_on)
        finally:
            fake.close()


def reasons_given(client):
    if any(not event["reason"].strip() for event in client.find("disconnected")):
        raise Failed("a disconnected without a reason")


def errors_without_codes(setting, clients):
    """The server gives errors without a code, as proxies do."""
    oddly_answered(setting, clients, "no_code", 3)


def short_codes(setting, clients):
    """The server gives errors with codes that are too short."""
    oddly_answered(setting, clients, "short_code", 5)


def message_cut_anywhere(setting, clients):
    """The connection ends after any byte of the answers."""
    oddly_answered(setting, clients, "cut", 60)


def unknown_messages(setting, clients):
    """The server sends messages that the client does not know."""
    oddly_answered(setting, clients, "unknown_messages", 4)


def authentication_methods(setting, clients):
    """The server asks for authentication that the client cannot do."""
    oddly_answered(setting, clients, "authentication_methods", 5)


def slow_server(setting, clients):
    """The server sends one byte after the other, and takes longer than the client waits."""
    oddly_answered(setting, clients, "slow", 2)


# ---- Errors of the server ------------------------------------------------------------


def refused(clients, address):
    """The programs cannot connect there, and end with an error."""
    clients.start(address, "subscribe", "a")
    clients.wait_for("error")
    clients.each(lambda client: client.process.wait(DEADLINE))


def wrong_password(setting, clients):
    """The password is wrong or missing: at once, and when the client connects again."""
    primary = setting.primary()
    primary.sql("DROP ROLE IF EXISTS guarded", "CREATE ROLE guarded LOGIN PASSWORD 'right,1'")
    with open(f"{primary.data}/pg_hba.conf") as file:
        hba = file.read()
    try:
        with open(f"{primary.data}/pg_hba.conf", "w") as file:
            file.write("host all guarded 127.0.0.1/32 scram-sha-256\n" + hba)
        primary.reload()
        address = f"postgresql://guarded:wrong@127.0.0.1:{primary.port}/postgres"
        refused(clients, address)
        refused(clients, address.replace(":wrong", ""))
        clients.start(address.replace("wrong", "right,1"), "subscribe", "a")  # the comma is not one of a list of hosts
        clients.wait_for("connected")
        primary.sql("ALTER ROLE guarded PASSWORD 'other'")
        since = time.monotonic()
        primary.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guarded'", "NOTIFY a")

        def reported(client):
            wait_until(lambda: any("password" in event["reason"] for event in client.find("disconnected", since)),
                       "the reason is told")
        clients.each(reported)
        primary.sql("ALTER ROLE guarded PASSWORD 'right,1'")
        clients.wait_for("connected", since)
        clients.wait_told("a", since)
        clients.close()
    finally:
        with open(f"{primary.data}/pg_hba.conf", "w") as file:
            file.write(hba)
        primary.reload()


def missing_database(setting, clients):
    """The database does not exist, or the role must not connect to it, or must not log in."""
    primary = setting.primary()
    primary.sql("DROP DATABASE IF EXISTS closed", "CREATE DATABASE closed",
                "REVOKE CONNECT ON DATABASE closed FROM public",
                "DROP ROLE IF EXISTS outsider, sleeper", "CREATE ROLE outsider LOGIN", "CREATE ROLE sleeper NOLOGIN")
    for parameters in {"dbname": "nowhere"}, {"dbname": "closed", "user": "outsider"}, {"user": "sleeper"}:
        refused(clients, dsn(primary, **parameters))


def extension_dropped(setting, clients):
    """The extension is dropped and created while the client runs."""
    primary = setting.primary()
    connected(setting, clients, primary, "a")
    for step in setting.uninstall, setting.install:
        step(primary)
        check_alive(primary, clients, "a")
        since = time.monotonic()
        primary.sql(KILL, "NOTIFY a")
        clients.wait_told("a", since)
        clients.wait_for("connected", since)
        check_alive(primary, clients, "a")
    clients.close()


@heartbeats_every(60)  # no true one replaces the false one
def false_heartbeat(setting, clients):
    """A role sends a heartbeat without a position; then the session is terminated."""
    primary = setting.primary()
    connected(setting, clients, primary, "a")
    primary.sql("DROP TABLE IF EXISTS heartbeats",
                "CREATE TABLE heartbeats (t text CHECK (pg_notify('pinpoint_heartbeat', t) IS NOT NULL))",
                "INSERT INTO heartbeats VALUES ('none')")
    check_alive(primary, clients, "a")  # it has arrived
    since = time.monotonic()
    primary.sql(KILL, "NOTIFY a")
    clients.wait_told("a", since)
    clients.wait_for("connected", since)
    check_alive(primary, clients, "a")
    clients.close()


def settings_of_roles(setting, clients):
    """The role has a statement_timeout, and is serializable by default."""
    primary = setting.primary()
    primary.sql("DROP ROLE IF EXISTS strict", "CREATE ROLE strict LOGIN",
                "ALTER ROLE strict SET default_transaction_isolation = 'serializable'")
    limits = [name for name, in primary.sql("SELECT name FROM pg_settings WHERE name IN"
                                            " ('statement_timeout', 'transaction_timeout') ORDER BY name")]
    primary.sql(f"ALTER ROLE strict SET {limits[-1]} = '300ms'")  # the second one since PostgreSQL 17
    # pinpoint.wait() needs READ COMMITTED, and cannot be called in a transaction block.
    clients.start(dsn(primary, user="strict"), "subscribe", "a", options={"mode": "wait"})
    clients.wait_for("error", sqlstate="0A000")
    for mode in "push", "wait":
        if mode == "wait":
            primary.sql("ALTER ROLE strict RESET default_transaction_isolation")
        clients.start(dsn(primary, user="strict"), "subscribe", "a", options={"mode": mode})
        clients.wait_for("connected", mode=mode)
        clients.wait_told("a", 0)
        since = time.monotonic()
        primary.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'strict'", "NOTIFY a")
        clients.wait_told("a", since)
        check_alive(primary, clients, "a")
        clients.command("+b")
        clients.wait_told("b", since)
        check_alive(primary, clients, "a", "b")
        if mode == "wait":
            # A session that waited for fewer channels may be about to end.
            sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'strict'"
            wait_until(lambda: primary.sql(sessions)[0][0] == len(clients.clients), "each client has one session")
            calls = {}

            def keep_their_sessions():
                for pid, start in primary.sql("SELECT pid, query_start FROM pg_stat_activity"
                                              " WHERE usename = 'strict' AND query LIKE 'CALL%'"):
                    calls.setdefault(pid, set()).add(start)
                if len(calls) > len(clients.clients):
                    raise Failed("a call takes longer than the role may")
                return len(calls) == len(clients.clients) and all(len(starts) > 3 for starts in calls.values())
            wait_until(keep_their_sessions, "each client has waited four times in one session")
        clients.close()


# ---- Other servers ---------------------------------------------------------------------


def promotion(setting, clients):
    """The standby that the client listens on is promoted."""
    primary, standby = setting.primary(), setting.standby()
    connected(setting, clients, standby, "a")
    check_alive(primary, clients, "a")
    standby.promote()
    check_alive(standby, clients, "a")
    clients.close()


@contextlib.contextmanager
def unanswered_port():
    """A port that answers nothing, as that of a host which is switched off: its queue of connections is full."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        with contextlib.suppress(TimeoutError):
            while True:
                waiting = stack.enter_context(socket.socket())
                waiting.settimeout(0.2)
                waiting.connect(full.getsockname())
        yield full.getsockname()[1]


def failover(setting, clients):
    """The server fails, and the client goes on with another host of its list; two hosts do not answer."""
    primary, standby = setting.primary(), setting.standby()
    with unanswered_port() as first, unanswered_port() as second:
        clients.start(dsn(first, second, primary), "subscribe", "a", options={"timeout": 2})
        clients.wait_for("connected")
        clients.close()
    clients.start(dsn(primary, standby), "subscribe", "a")
    clients.wait_for("connected")
    check_alive(primary, clients, "a")
    since = time.monotonic()
    primary.stop("immediate")
    try:
        standby.promote()
        clients.wait_told("a", since)  # another server does not know the position
        check_alive(standby, clients, "a")
        clients.close()
    finally:
        primary.start()


def stock_server(setting, clients):
    """A server without pg_pinpoint: after each connection, all channels have changed."""
    stock = setting.stock()
    connected(setting, clients, stock, "a", "b")
    check_alive(stock, clients, "a", "b")
    since = time.monotonic()
    stock.sql(KILL)
    clients.wait_for("connected", since)
    clients.wait_told("a", since)
    clients.wait_told("b", since)
    check_alive(stock, clients, "a", "b")
    clients.close()


# ---- Poolers -----------------------------------------------------------------------------


@heartbeats_every(2)
def session_pooling(setting, clients):
    """PgBouncer in session mode, which restarts."""
    primary = setting.primary()
    pooler = setting.pooler("session", primary)
    connected(setting, clients, pooler, "a")
    check_alive(primary, clients, "a")
    since = time.monotonic()
    pooler.stop()
    clients.wait_for("disconnected", since)
    notify(primary, "a")
    pooler.start()
    clients.wait_for("connected", since, mode="push")
    clients.wait_told("a", since)
    check_alive(primary, clients, "a")
    clients.close()


def silent_in_session_pool(setting, clients):
    """A proxy before a pool in session mode falls silent before the first heartbeat: LISTEN is used again."""
    primary = setting.primary()
    # A silent connection keeps its server connection for ever, and those that come back meanwhile fall silent, too.
    proxy = setting.proxy(setting.pooler("session", primary, pool_size=60))

    times = []

    def silent(client):
        client.wait_for("connected", mode="push")
        times.append(time.monotonic())
        proxy.fall_silent("up", "down")
    clients.start(dsn(proxy), "subscribe", "a", options={"probe_timeout": 5})
    clients.each(silent)
    clients.wait_for("connected", max(times, default=0), mode="push")
    check_alive(primary, clients, "a")
    clients.close()


@contextlib.contextmanager
def noise(server, pooler):
    """All sessions of the pool listen on a channel that is notified all the time."""
    with contextlib.ExitStack() as stack:
        address = f"host=127.0.0.1 port={pooler.port} user=postgres dbname=postgres"
        sessions = [stack.enter_context(psycopg.connect(address)) for _ in range(pooler.pool_size)]
        for session in sessions:
            session.execute("LISTEN noise")
        for session in sessions:
            session.commit()
    end = threading.Event()

    def notify_often():
        with server.connect() as connection:
            while not end.wait(0.002):
                connection.execute("NOTIFY noise")
    thread = threading.Thread(target=notify_often)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def transaction_pooling(setting, clients):
    """PgBouncer in transaction mode, which restarts; other clients listen; then before a standby without heartbeats."""
    primary = setting.primary()
    pooler = setting.pooler("transaction", primary)
    with noise(primary, pooler):
        # A client does not find out again how to hear when it listens on more channels.
        clients.start(dsn(pooler), "subscribe", "a", options={"probe_timeout": 12, "timeout": 30})
        clients.wait_for("connected")

    def finds_out(client):
        if client.find("connected")[0]["mode"] != "wait":
            raise Failed("the pooler is not found out before the first connection works")
    clients.each(finds_out)
    clients.wait_told("a", 0)
    check_alive(primary, clients, "a")
    clients.command("+b")
    clients.wait_told("b", 0, seconds=10)  # less than probe_timeout
    check_alive(primary, clients, "a", "b")
    since = time.monotonic()
    pooler.stop()
    clients.wait_for("disconnected", since)
    notify(primary, "a")
    pooler.start()
    clients.wait_told("a", since)
    check_alive(primary, clients, "a", "b")
    clients.close()

    # A standby cannot send a notification, and without heartbeats nothing shows that LISTEN does not work.
    standby = setting.standby()
    standby.set_heartbeat_interval(0)
    clients.start(dsn(setting.pooler("transaction", standby)), "subscribe", "a", options={"probe_timeout": 2})
    clients.wait_for("connected", mode="wait", standby=True)
    clients.wait_told("a", 0)
    check_alive(primary, clients, "a")
    clients.close()


def transaction_pooling_on_stock(setting, clients):
    """A server without pg_pinpoint behind PgBouncer in transaction mode: an error."""
    pooler = setting.pooler("transaction", setting.stock())
    clients.start(dsn(pooler), "subscribe", "a", options={"probe_timeout": 2})
    clients.wait_for("error")

    def names_the_pooler(client):
        if "pooler" not in client.find("error")[-1]["message"]:
            raise Failed(f"the message does not help: {client.find('error')[-1]}")
    clients.each(names_the_pooler)


# ---- Many, large, strange ------------------------------------------------------------------


def many_channels(setting, clients):
    """10,000 channels."""
    primary = setting.primary()
    names = [f"c{n}" for n in range(10000)]
    clients.start(dsn(primary), "subscribe", *names)
    clients.wait_for("connected")
    check_alive(primary, clients, "c0", "c9999")
    since = time.monotonic()
    primary.sql(KILL,
                "NOTIFY c5000")
    clients.wait_told("c5000", since)
    check_alive(primary, clients, "c0", "c9999")
    clients.close()


def slow_consumer(setting, clients):
    """100,000 notifications of 1 kB, and a consumer that does not read."""
    primary = setting.primary()
    clients.start(dsn(primary), "subscribe", "a", options={"buffer": 1 << 20})
    clients.wait_told("a", 0)
    clients.each(lambda client: client.goes_on.clear())
    with primary.connect() as connection:
        for block in range(100):
            connection.execute("SELECT pg_notify('a', %s || n || repeat('x', 1000))"
                               " FROM generate_series(1, 1000) AS n", (f"{block} ",))

    def bounded(client):
        wait_until(lambda: primary.sql("SELECT pg_notification_queue_usage()")[0][0] == 0, "the queue is empty")
        with open(f"/proc/{client.process.pid}/status") as file:
            kilobytes = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
        # A virtual machine has its own idea of memory.
        limit = 400_000 if client.language == "java" else 150_000
        if kilobytes > limit:
            raise Failed(f"{kilobytes} kB of memory")
        client.goes_on.set()
    clients.each(bounded)
    # What was printed before is still being read.
    notify(primary, "a", "last")
    clients.each(lambda client: wait_until(
        lambda: client.find("notification", payload="last") or len(client.find("changed")) > 1, "the last one is told"))
    check_alive(primary, clients, "a")

    def dropped(client):
        # The first "changed" is that of each channel.
        if len(client.find("changed")) < 2 or len(client.find("notification")) >= 100_000:
            raise Failed(f"{len(client.find('notification'))} notifications, {len(client.find('changed'))} changed")
    clients.each(dropped)
    clients.close()


@heartbeats_every(2)
def added_under_load(setting, clients):
    """Channels are added and removed while notifications arrive; each of 2,000 is told."""
    primary = setting.primary()
    for mode in "push", "wait":
        clients.start(dsn(primary), "subscribe", "a", options={"mode": mode, "timeout": 30})
        clients.wait_told("a", 0)
        since = time.monotonic()
        with primary.connect() as connection:
            for number in range(2000):
                connection.execute("SELECT pg_notify('a', %s)", (str(number),))
                if number % 20 == 0:
                    clients.command(f"+n{number}")
                    clients.command(f"-n{number - 100}")
        last = notify(primary, "a", "last")
        if mode == "push":  # a client that is behind is still told of those before it
            clients.wait_for("notification", last, payload="last")
        else:
            clients.wait_told("a", last)

        def all_told(client):
            if mode == "push" and [int(event["payload"]) for event in client.find("notification", since)
                                   if event["payload"] != "last"] != list(range(2000)):
                raise Failed("notifications are missing, or in another order")
        clients.each(all_told)
        clients.wait_told("n1980", since)
        clients.close()


@heartbeats_every(2)
def large_payload(setting, clients):
    """A payload of 16 MB."""
    primary = setting.primary()
    connected(setting, clients, primary, "a")
    for _ in range(10):
        since = time.monotonic()
        primary.sql("SET pinpoint.max_payload_size = '16MB'",
                    "SELECT pg_notify('a', repeat('x', 16 * 1024 * 1024 - 1))")
        clients.wait_told("a", since)
        # A client to which no heartbeat has come meanwhile has lost the connection, and only "changed" tells it.
        if all(client.find("notification") for client in clients.clients.values()):
            break

    def whole(client):
        payload = client.wait_for("notification", seconds=0, channel="a")["payload"]
        if payload != "x" * (16 * 1024 * 1024 - 1):
            raise Failed(f"{len(payload)} bytes")
    clients.each(whole)
    clients.close()


@heartbeats_every(2)
def strange_names(setting, clients):
    """Names with quotes, capitals, spaces and letters of several bytes; too long ones are refused."""
    primary = setting.primary()
    names = ['say "hello"', "it's", "Capitals", "två ord", "日本語", "a;b--c", "\\n", "x" * 63]
    connected(setting, clients, primary, *names)
    for name in names:
        since = notify(primary, name, name)
        clients.wait_for("notification", since, channel=name, payload=name)
    clients.close()
    for name in "x" * 64, "語" * 22, "":
        clients.start(dsn(primary), "subscribe", name)
        clients.wait_for("error")


@heartbeats_every(2)
def encodings(setting, clients):
    """Databases with LATIN1 and SQL_ASCII, and a role with another client_encoding."""
    primary = setting.primary()
    databases = "latin1", "sql_ascii"
    primary.sql("DROP ROLE IF EXISTS western", "CREATE ROLE western LOGIN",
                "ALTER ROLE western SET client_encoding = 'LATIN1'",
                *(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for name in databases),
                *(f"CREATE DATABASE {name} ENCODING '{name}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
                  for name in databases))
    for dbname, user in *((name, "postgres") for name in databases), ("postgres", "western"):
        setting.install(primary, dbname)
        primary.sql("DROP TABLE IF EXISTS städer", "CREATE TABLE städer (namn text)",
                    "INSERT INTO städer VALUES ('Malmö')", "GRANT SELECT ON städer TO public",
                    "SELECT pinpoint.watch('städer')", dbname=dbname)
        address = dsn(primary, user=user, dbname=dbname)
        clients.start(address, "subscribe", "två")
        clients.wait_told("två", 0)
        since = notify(primary, "två", "på svenska", dbname)
        clients.wait_for("notification", since, channel="två", payload="på svenska")
        since = time.monotonic()
        primary.sql(KILL, "NOTIFY två", dbname=dbname)
        clients.wait_told("två", since)
        clients.wait_for("connected", since)
        clients.close()
        clients.start(address, "live", "SELECT namn FROM städer")
        clients.wait_rows([["Malmö"]])
        primary.sql("UPDATE städer SET namn = 'Växjö'", dbname=dbname)
        clients.wait_rows([["Växjö"]])
        clients.close()
    primary.sql(*(f"DROP DATABASE {name} WITH (FORCE)" for name in databases))


def added_and_removed(setting, clients):
    """Channels are added and removed, also while the client connects again."""
    primary = setting.primary()
    proxy = setting.proxy(primary)
    connected(setting, clients, proxy, "a")
    clients.command("+b")
    clients.wait_told("b", 0)
    check_alive(primary, clients, "a", "b")
    clients.command("-a")
    setting.wait_unlistened(primary, "a")
    since = cut_off(proxy, clients)
    clients.command("+c")
    clients.command("-b")
    clients.command("+a")
    proxy.target = primary.port
    clients.wait_for("connected", since)
    clients.wait_told("a", since)
    clients.wait_told("c", since)
    check_alive(primary, clients, "a", "c")
    since = notify(primary, "b")
    check_alive(primary, clients, "a")

    def not_b(client):
        if client.find("notification", since, channel="b"):
            raise Failed("b was removed")
    clients.each(not_b)
    clients.close()


def channels_change_while_waiting(setting, clients):
    """Channels come and go while the client waits: the others are heard; those of the call need no new connection."""
    primary = setting.primary()
    for table in "waited", "removed":
        create_watched(primary, table)
    clients.start(dsn(primary), "subscribe", "waited", "removed", options={"mode": "wait", "check_interval": 60})
    clients.wait_told("removed", 0)
    sessions = functools.partial(setting.waiting, primary)
    before = wait_until(lambda: len(sessions()) == len(clients.clients) and sessions(), "all clients wait")
    since = time.monotonic()
    clients.command("-removed")
    clients.command("+removed")
    clients.wait_told("removed", since)
    wait_until(lambda: len(sessions()) == len(clients.clients), "all clients wait again")
    if sessions() != before:
        raise Failed(f"{len(sessions() - before)} clients have made a new connection")
    with changing_channels(clients, 0.005, lambda number: [f"-n{number - 1}", f"+n{number}"]):
        for _ in range(10):
            clients.wait_told("waited", change(primary, "waited"))
    clients.close()


def closed_during_reconnect(setting, clients):
    """The client is closed while it connects again, and while the server does not answer."""
    primary = setting.primary()
    proxy = setting.proxy(primary)
    connected(setting, clients, proxy, "a")
    cut_off(proxy, clients)
    clients.close()
    # In the middle of a connect: the proxy accepts, and forwards to a server that does not answer. So does the other
    # host.
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as deaf:
        proxy.target = primary.port
        clients.start(dsn(proxy, deaf.getsockname()[1]), "subscribe", "a", options={"timeout": 300})
        clients.wait_told("a", 0)
        since = time.monotonic()
        proxy.target = deaf.getsockname()[1]
        proxy.cut()
        clients.wait_for("disconnected", since)
        working = [result for result in clients.results.values() if result is None]
        wait_until(lambda: len(proxy.pairs) >= len(working), "all clients connect")
        clients.close()
    proxy.target = primary.port
    for mode in "push", "wait":
        clients.start(dsn(proxy), "subscribe", "a", options={"timeout": 300, "mode": mode})
        clients.wait_told("a", 0)
        proxy.fall_silent("up", "down")
        clients.close()


@heartbeats_every(2)
def client_closed(setting, clients):
    """The client is closed while its events are read: they end with an error."""
    primary = setting.primary()
    primary.sql("DROP TABLE IF EXISTS ended", "CREATE TABLE ended (n int)", "SELECT pinpoint.watch('ended')")

    def close(client):
        client.command("!")
        error = client.wait_for("error")
        if "closed" not in error["message"]:
            raise Failed(f"the error is {error['message']}")
        client.process.wait(DEADLINE)

    for notifications in 0, 20000:
        clients.start(dsn(primary), "subscribe", "a")
        clients.wait_told("a", 0)
        if notifications:  # in the middle of them
            primary.sql(f"SELECT pg_notify('a', i::text) FROM generate_series(1, {notifications}) AS i")
            clients.wait_for("notification")
        clients.each(close)
    clients.start(dsn(primary), "live", "SELECT n FROM ended")
    clients.wait_for("rows")
    clients.each(close)


@heartbeats_every(2)
def tls(setting, clients):
    """TLS, with a certificate that is verified."""
    primary = setting.primary()
    key, certificate = f"{setting.folder}/server.key", f"{setting.folder}/server.crt"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                   check=True, capture_output=True)
    if SERVER_USER:
        shutil.chown(key, "postgres", "postgres")
    os.chmod(certificate, 0o644)
    os.chmod(key, 0o600)
    primary.sql(f"ALTER SYSTEM SET ssl_cert_file = '{certificate}'", f"ALTER SYSTEM SET ssl_key_file = '{key}'",
                "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")
    try:
        wait_until(lambda: primary.sql("SHOW ssl")[0][0] == "on", "the server has TLS")
        verified = f"sslmode=verify-full&sslrootcert={certificate}"
        clients.start(f"postgresql://postgres@localhost:{primary.port}/postgres?{verified}", "subscribe", "a")
        clients.wait_for("connected")
        encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl"
        if primary.sql(encrypted)[0][0] < len(clients.clients):
            raise Failed("not all connections have TLS")
        check_alive(primary, clients, "a")
        clients.close()
    finally:
        primary.sql("ALTER SYSTEM RESET ssl", "SELECT pg_reload_conf()")
        wait_until(lambda: primary.sql("SHOW ssl")[0][0] == "off", "the server has no TLS")


# ---- Live queries ----------------------------------------------------------------------------


def live_query(setting, clients):
    """A live query over a view, a partitioned table and row security; burst, restart, table altered and dropped."""
    primary = setting.primary()
    primary.sql(
        "DROP SCHEMA IF EXISTS shop CASCADE", "CREATE SCHEMA shop", "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN", "GRANT USAGE ON SCHEMA shop TO reader",
        "CREATE TABLE shop.orders (id int, owner name, total int) PARTITION BY RANGE (id)",
        "CREATE TABLE shop.orders_1 PARTITION OF shop.orders FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE shop.orders_2 PARTITION OF shop.orders FOR VALUES FROM (100) TO (200)",
        "CREATE TABLE shop.rates (rate int)", "INSERT INTO shop.rates VALUES (1)",
        "ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY own ON shop.orders USING (owner = current_user)",
        "CREATE VIEW shop.sums WITH (security_barrier)"
        " AS SELECT id, total * rate AS total FROM shop.orders, shop.rates",
        "ALTER VIEW shop.sums OWNER TO reader", "GRANT SELECT ON ALL TABLES IN SCHEMA shop TO reader",
        "SELECT pinpoint.watch('shop.orders', 'orders')")
    proxy = setting.proxy(primary)
    clients.start(dsn(proxy, user="reader"), "live", "SELECT id, total FROM shop.sums ORDER BY id")
    # One of the tables is not watched.
    clients.wait_for("error", sqlstate="55000")

    def statement(client):
        if "pinpoint.watch('shop.rates')" not in client.find("error")[-1]["message"]:
            raise Failed(f"the statement to run is not named: {client.find('error')[-1]}")
    clients.each(statement)
    primary.sql("SELECT pinpoint.watch('shop.rates', 'rates')")
    clients.wait_rows([])
    primary.sql("INSERT INTO shop.orders VALUES (1, 'reader', 10), (101, 'reader', 20), (2, 'postgres', 30)")
    clients.wait_rows([[1, 10], [101, 20]])
    primary.sql("UPDATE shop.rates SET rate = 2")
    clients.wait_rows([[1, 20], [101, 40]])
    primary.sql("TRUNCATE shop.orders_2")
    clients.wait_rows([[1, 20]])

    # A burst is folded.
    since = time.monotonic()
    with primary.connect() as connection:
        for total in range(200):
            connection.execute("UPDATE shop.orders SET total = %s", (total,))
    took = time.monotonic() - since
    clients.wait_rows([[1, 398]])

    def folded(client):
        if len(client.find("rows", since)) > took / 0.05 + 3:
            raise Failed(f"{len(client.find('rows', since))} executions in {took} seconds")
    clients.each(folded)

    # What changes while the connection is lost.
    cut_off(proxy, clients)
    primary.sql("UPDATE shop.orders SET total = 7")
    proxy.target = primary.port
    clients.wait_rows([[1, 14]])
    since = time.monotonic()
    primary.stop()
    clients.wait_for("disconnected", since)
    primary.start()
    primary.sql("UPDATE shop.orders SET total = 8")
    clients.wait_rows([[1, 16]])

    # The view has another column; then the table is dropped, and is there again.
    primary.sql("CREATE OR REPLACE VIEW shop.sums"
                " AS SELECT id, total * rate AS total, 'new' AS state FROM shop.orders, shop.rates",
                "ALTER TABLE shop.rates ADD note text", "UPDATE shop.rates SET rate = 3")
    clients.wait_rows([[1, 24]])
    since = time.monotonic()
    primary.sql("BEGIN; DROP TABLE shop.rates CASCADE; UPDATE shop.orders SET total = 1; COMMIT")
    clients.wait_for("error", since)
    primary.sql("CREATE VIEW shop.sums AS SELECT id, total FROM shop.orders", "ALTER VIEW shop.sums OWNER TO reader")
    clients.wait_rows([[1, 1]])
    primary.sql("UPDATE shop.orders SET total = 2")
    clients.wait_rows([[1, 2]])
    clients.close()


@heartbeats_every(2)
def live_query_outage(setting, clients):
    """A live query during outages: disconnected, no rows until it is connected again, and the same error again."""
    primary = setting.primary()
    create_watched(primary, "outage")
    proxy = setting.proxy(None)
    clients.start(dsn(proxy), "live", "SELECT n FROM outage, pg_sleep(0.1)")
    clients.wait_for("disconnected")
    proxy.target = primary.port
    clients.wait_rows([[0]])

    for n in range(1, 11):
        # Only the sessions that listen are terminated, at different moments of an execution.
        since = time.monotonic()
        primary.sql(f"UPDATE outage SET n = {n}")
        time.sleep(n * 0.015)
        proxy.target = None
        primary.sql(KILL + " AND query NOT LIKE '%pg_sleep%'")
        clients.wait_for("disconnected", since)
        clients.wait_for("disconnected", time.monotonic())  # each attempt is told
        primary.sql(f"UPDATE outage SET n = -{n}")
        proxy.target = primary.port
        clients.wait_rows([[-n]])

        def no_old_rows(client):
            told = [event.get("rows", event["event"]) for when, event in list(client.events) if when >= since]
            if [[n]] in told[told.index("disconnected"):]:
                raise Failed(f"rows from before the outage after its beginning: {told}")
        clients.each(no_old_rows)

    primary.sql("SELECT pinpoint.unwatch('outage')")
    for _ in range(2):
        cut_off(proxy, clients)
        since = time.monotonic()
        proxy.target = primary.port
        clients.wait_for("error", since)
        time.sleep(1)

        def told_once(client):
            if len(client.find("error", since)) != 1:
                raise Failed(f"the same error is told again: {client.find('error', since)}")
        clients.each(told_once)
    primary.sql("SELECT pinpoint.watch('outage')")
    clients.wait_rows([[-10]])
    clients.close()


def slow_live_query(setting, clients):
    """A live query that takes half a second, and changes while it is executed."""
    primary = setting.primary()
    create_watched(primary, "slow")
    clients.start(dsn(primary), "live", "SELECT n FROM slow, pg_sleep(0.5)")
    clients.wait_rows([[0]])
    for n in range(1, 9):
        # At different moments of the execution.
        [(before,)] = primary.sql("SELECT clock_timestamp()::text")
        primary.sql(f"UPDATE slow SET n = {n}")
        # It may have ended when a slow server answers.
        begun = ("SELECT count(*) FROM pg_stat_activity"
                 f" WHERE query = 'SELECT n FROM slow, pg_sleep(0.5)' AND query_start > '{before}'")
        wait_until(lambda: primary.sql(begun)[0][0] > 0, "the query is executed")
        primary.sql(f"UPDATE slow SET n = -{n}")
        clients.wait_rows([[-n]])
    clients.close()


def live_through_proxy(setting, clients, table, **options):
    """A live query of a new table, through a proxy. Returns the server and the proxy."""
    primary = setting.primary()
    create_watched(primary, table)
    proxy = setting.proxy(primary)
    clients.start(dsn(proxy), "live", f"SELECT n FROM {table}", options=options)
    clients.wait_rows([[0]])
    return primary, proxy


@heartbeats_every(2)
def live_query_silent(setting, clients):
    """The connections for live queries fall silent, and the one that listens does not."""
    primary, proxy = live_through_proxy(setting, clients, "quiet", timeout=1, query_timeout=9)
    since = time.monotonic()
    ports = primary.sql("SELECT client_port FROM pg_stat_activity WHERE query LIKE '%FROM quiet'")
    proxy.fall_silent("up", "down", ports={port for port, in ports})
    primary.sql("UPDATE quiet SET n = 1")
    clients.wait_rows([[1]])

    def still_connected(client):
        if client.find("disconnected", since):
            raise Failed("the client has lost the connection that listens")
    clients.each(still_connected)
    clients.close()


def live_query_executed_once(setting, clients):
    """The first rows, those after a change, and those after a reconnection need one execution each."""
    primary, proxy = live_through_proxy(setting, clients, "counted")
    time.sleep(0.3)  # several times min_interval, after which another execution would follow
    change(primary, "counted")
    clients.wait_rows([[1]])
    time.sleep(0.3)
    cut_off(proxy, clients)
    change(primary, "counted")
    proxy.target = primary.port
    clients.wait_rows([[2]])
    time.sleep(0.3)

    def executed_once(client):
        if [event["rows"] for event in client.find("rows")] != [[[0]], [[1]], [[2]]]:
            raise Failed("the query was executed more often")
    clients.each(executed_once)
    clients.close()


def live_query_session_ended(setting, clients):
    """The idle connection of a live query ends, at once or when it is used: without an error, there is a new one."""
    primary, proxy = live_through_proxy(setting, clients, "ended")
    idle = "FROM pg_stat_activity WHERE query LIKE '%FROM ended' AND pid <> pg_backend_pid()"
    names = primary.sql(f"SELECT DISTINCT application_name {idle}")
    if names != [("pg-pinpoint",)]:
        raise Failed(f"the sessions of the client have the names {names}")
    primary.sql(f"SELECT pg_terminate_backend(pid) {idle}")
    wait_until(lambda: primary.sql(f"SELECT count(*) {idle}")[0][0] == 0, "the sessions have ended")
    change(primary, "ended")
    clients.wait_rows([[1]])
    proxy.cut_in_message({port for port, in primary.sql(f"SELECT client_port {idle}")})
    change(primary, "ended")
    clients.wait_rows([[2]])

    def no_error(client):
        if [event["event"] for _, event in list(client.events)] != ["rows", "rows", "rows"]:
            raise Failed(f"not only rows: {list(client.events)}")
    clients.each(no_error)
    clients.close()


def live_query_altered(setting, clients):
    """A watched table is altered, while the connection is busy. If no notification tells it, the client has to ask."""
    primary = setting.primary()
    create_watched(primary, "altered")
    create_watched(primary, "busy")
    clients.start(dsn(primary), "live", "SELECT n FROM altered")
    clients.wait_rows([[0]])
    clients.command(">SELECT n FROM busy")
    with counting(primary, "busy"):
        primary.sql("ALTER TABLE altered ALTER n TYPE int USING 1")
        clients.wait_rows([[1]])
    clients.close()


def subscription_altered(setting, clients):
    """The same for a subscription, which is not told of a channel that is only notified."""
    primary = setting.primary()
    create_watched(primary, "altered")
    create_watched(primary, "busy")
    clients.start(dsn(primary), "subscribe", "altered", "busy", "notified")
    for channel in ("altered", "busy", "notified"):
        clients.wait_told(channel, 0)
    with counting(primary, "busy"):
        since = time.monotonic()
        primary.sql("ALTER TABLE altered ALTER n TYPE int USING 1")
        clients.wait_told("altered", since)

    def not_told(client):
        if any("notified" in event["channels"] for event in client.find("changed", since)):
            raise Failed("a channel that was not notified has changed")
    clients.each(not_told)
    clients.close()


def shared_live_queries(setting, clients):
    """Consumers of live queries come and go, while the session is terminated."""
    primary = setting.primary()
    create_watched(primary, "shared")
    clients.start(dsn(primary), "live", "SELECT n FROM shared")
    clients.wait_rows([[0]])
    for n in range(1, 4):
        since = time.monotonic()
        clients.command("+")
        primary.sql(KILL)
        clients.wait_for("came_and_went", since)
        # Other parameters are another query, also if they print the same.
        clients.wait_for("parameters", since, rows=[[["1"]], [["2"]]])
        primary.sql(f"UPDATE shared SET n = {n}")
        clients.wait_rows([[n]])
    clients.close()
    if not any(clients.results.values()):
        setting.wait_unlistened(primary, "%shared%")


@heartbeats_every(2)
def live_queries_closed(setting, clients):
    """Live queries that take long are closed, and another one is executed instead of them."""
    primary = setting.primary()
    create_watched(primary, "held")
    clients.start(dsn(primary), "live", "SELECT n FROM held", options={"query_timeout": 600})
    clients.wait_rows([[0]])
    for number in range(3):  # one more than there are connections for live queries
        clients.command(f">SELECT n FROM held, pg_sleep(600) -- {number}")
    running = ("SELECT count(*) FROM pg_stat_activity"
               " WHERE query LIKE 'SELECT n FROM held, pg_sleep%' AND state = 'active'")
    wait_until(lambda: primary.sql(running)[0][0] == 2 * len(clients.clients),
               "all connections for live queries are in use")
    primary.sql("UPDATE held SET n = 1")
    clients.command("<")
    clients.wait_rows([[1]])
    clients.close()
    wait_until(lambda: primary.sql(running)[0][0] == 0, "the server no longer executes what nobody waits for")


def live_query_too_long(setting, clients):
    """A live query that takes too long: an error."""
    primary = setting.primary()
    create_watched(primary, "other")
    clients.start(dsn(primary), "live", "SELECT n FROM other, pg_sleep(10)", options={"query_timeout": 0.5})
    clients.wait_for("error")
    clients.close()


def live_query_elsewhere(setting, clients):
    """A live query whose connections lead to another server: an error."""
    primary = setting.primary()
    create_watched(primary, "other")
    standby = setting.standby()
    # The first host of the list is another server, which is there again.
    first = setting.proxy(None)
    clients.start(dsn(first, standby), "live", "SELECT n FROM other")
    clients.wait_rows([[0]])
    since = time.monotonic()
    first.target = primary.port

    def elsewhere(client):
        # A session may be terminated between the statements that it executes for a live query, or before them.
        for _ in range(DEADLINE):
            standby.sql(KILL + " AND query LIKE '%FROM other'")
            primary.sql("UPDATE other SET n = 1")
            with contextlib.suppress(Failed):
                return client.wait_for("error", since, seconds=1)
        client.wait_for("error", since, seconds=0)
    clients.each(elsewhere)
    first.target = None
    clients.wait_rows([[1]])
    clients.close()


def live_query_through_pooler(setting, clients):
    """A live query through PgBouncer in transaction mode."""
    primary = setting.primary()
    create_watched(primary, "pooled")
    pooler = setting.pooler("transaction", primary)
    clients.start(dsn(pooler), "live", "SELECT n FROM pooled", options={"probe_timeout": 2})
    for n in range(20):
        primary.sql(f"UPDATE pooled SET n = {n}")
    clients.wait_rows([[19]])
    since = time.monotonic()
    pooler.stop()
    clients.wait_for("disconnected", since)
    primary.sql("UPDATE pooled SET n = 20")
    pooler.start()
    clients.wait_rows([[20]])
    clients.close()


@contextlib.contextmanager
def counting(server, table):
    """A session counts in the table, and connects again when its connection is lost. Gives a list with the moment
    before its last change: 0 if there was none yet."""
    ended, last = threading.Event(), [0.0]

    def count():
        while not ended.is_set():
            with contextlib.suppress(psycopg.OperationalError), server.connect() as connection:
                while not ended.wait(0.003):
                    before = time.monotonic()
                    connection.execute(f"UPDATE {table} SET n = n + 1")
                    last[0] = before
    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield last
    finally:
        ended.set()
        thread.join()


def disturb(setting, clients, table, check, *arguments):
    """Run clients, and disturb them at random moments. Whenever the writer rests, check(moment before its last change)
    must not fail."""
    primary = setting.primary()
    seed = int(os.environ.get("PINPOINT_TEST_SEED", random.randrange(1_000_000)))
    chance = random.Random(seed)
    print(f"disturbances: seed {seed}", flush=True)
    create_watched(primary, table)
    proxy = setting.proxy(primary)
    # A connection can fall silent in the middle of a message: the driver for Java then waits for so long.
    clients.start(dsn(proxy), *arguments, options={"query_timeout": 10})
    check(0)

    def restart():
        primary.stop("immediate")
        primary.start()

    def refuse():
        proxy.target = None
        proxy.cut()
    disturbances = [lambda: primary.sql(KILL), restart, refuse, proxy.cut, proxy.cut_in_message,
                    lambda: proxy.fall_silent("up", "down")]
    for _ in range(12):
        # What the clients have missed because of the first one must survive the second one.
        first, second = chance.choices(disturbances, k=2)
        with counting(primary, table) as last:
            time.sleep(chance.uniform(0, 0.3))
            first()
            time.sleep(chance.uniform(0, 0.1))
        second()
        proxy.target = primary.port
        check(last[0])
    clients.close()


def live_query_disturbed(setting, clients):
    """A live query during random disturbances: whenever the writer rests, the rows are those of the table."""
    def check(_):
        clients.wait_rows([list(row) for row in setting.primary().sql("SELECT n FROM disturbed")])
    disturb(setting, clients, "disturbed", check, "live", "SELECT n FROM disturbed")


def subscription_disturbed(setting, clients):
    """A subscription during random disturbances: whenever the writer rests, its last change has been told."""
    def check(moment):
        clients.wait_told("disturbed", moment)
    disturb(setting, clients, "disturbed", check, "subscribe", "disturbed")


def live_query_on_stock(setting, clients):
    """A live query on a server without pg_pinpoint: an error."""
    clients.start(dsn(setting.stock()), "live", "SELECT 1")
    clients.wait_for("error", sqlstate="0A000")


ALL = [server_restart, session_killed, session_killed_of_watched, changes_during_reconnects, connection_refused,
       proxy_falls_silent, silent_while_channels_change, proxy_silent_on_stock, cut_in_message, cut_before_commit,
       silent_at_start, errors_without_codes, short_codes, message_cut_anywhere, unknown_messages,
       authentication_methods, slow_server, wrong_password, missing_database, extension_dropped, false_heartbeat,
       settings_of_roles, promotion, failover, stock_server, session_pooling, silent_in_session_pool,
       transaction_pooling, transaction_pooling_on_stock, many_channels, slow_consumer, added_under_load,
       large_payload, strange_names, encodings, added_and_removed, channels_change_while_waiting,
       closed_during_reconnect, client_closed, tls, live_query, live_query_outage, slow_live_query,
       live_query_too_long, live_query_elsewhere, live_query_silent, live_query_executed_once,
       live_query_session_ended, live_query_altered, subscription_altered, shared_live_queries, live_queries_closed,
       live_query_through_pooler, live_query_disturbed, subscription_disturbed, live_query_on_stock]

# Those that cannot apply without the library, and why.
HEARTBEATS = "it needs heartbeats"
STOCK = "its server has no schema pinpoint"
STANDBY = "LISTEN does not work on a standby"
NOT_MANAGED = {
    session_killed: "NOTIFY is not counted, so each channel has changed",
    proxy_silent_on_stock: STOCK, stock_server: STOCK, transaction_pooling_on_stock: STOCK, live_query_on_stock: STOCK,
    false_heartbeat: HEARTBEATS, silent_in_session_pool: HEARTBEATS,
    promotion: STANDBY, live_query_elsewhere: STANDBY,
    large_payload: "the limit of payloads is that of PostgreSQL"}
