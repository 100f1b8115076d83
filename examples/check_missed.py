"""See that clients do what they should, and miss nothing while they and the server are disturbed.

    check_missed.py BINDIR DIR stock|pinpoint NAME=COMMAND...

Each COMMAND, with "cache" or "worker" after it, is an example. First check.py runs each of them.
Then all caches run at once, against a primary server in DIR and through a proxy, which can
stop forwarding and is told of a failover. With pinpoint there is also a standby, which is promoted.

After each disturbance the cache of each example has to equal the table. For that,
examples print each row that they put into their cache. The last lines are
"passed NAME" or "failed NAME: reason".
"""

import argparse
import contextlib
import itertools
import os
import random
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SCHEMA = os.path.join(HERE, "schema.sql")
DEADLINE = 120  # seconds; a machine may be slow
TOTAL_DEADLINE = 900  # seconds, for everything
HEARTBEAT = 0.5

TOO_MANY = b"SFATAL\0VFATAL\0C53300\0Msorry, too many clients already\0\0"

# Servers refuse to run as root.
SERVER_USER = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}


class Failed(Exception):
    """Something does not work; the text says what."""


def wait_until(condition, what):
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"not within {DEADLINE} seconds: {what}")
        time.sleep(0.02)


def free_port():
    """Below the range of which connections get their ports: one of them could otherwise have
    the port of a server while that is down."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def say(text):
    print(text, flush=True)


# ---- Servers ------------------------------------------------------------------


class Server:
    """A server in the folder of the options: with pg_pinpoint, or a stock one."""

    def __init__(self, name, options):
        self.options = options
        self.data = os.path.join(options.dir, name)
        self.port = None

    def run(self, program, *arguments):
        with open(f"{self.data}.commands.log", "a+") as log:
            code = subprocess.call(
                [os.path.join(self.options.bindir, program), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.options.dir,
                env={**os.environ, "LC_ALL": "C", "PGCTLTIMEOUT": str(DEADLINE)}, **SERVER_USER,
            )
            log.seek(0)
            if code != 0:
                raise Failed(f"{program} {' '.join(arguments)}: {log.read()[-2000:]}")

    def init(self, heartbeat=HEARTBEAT):
        self.run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-N",
                 "--locale=C", "--encoding=UTF8")
        with open(os.path.join(self.data, "postgresql.conf"), "a") as configuration:
            print("listen_addresses = '127.0.0.1'", "unix_socket_directories = ''",
                  "fsync = off", sep="\n", file=configuration)
            if self.options.target == "pinpoint":
                print("shared_preload_libraries = 'pg_pinpoint, pg_pinpoint_decoding'", "pinpoint.replicate = on",
                      f"pinpoint.heartbeat_interval = {int(heartbeat * 1000)}",
                      sep="\n", file=configuration)

    def copy_of(self, primary):
        self.run("pg_basebackup", "-D", self.data, "-h", "127.0.0.1",
                 "-p", str(primary.port), "-U", "postgres", "-c", "fast", "-N", "-R")

    def start(self):
        # A port that is free now may be taken the moment after, so try.
        for attempt in range(5):
            self.port = self.port or free_port()
            try:
                return self.run("pg_ctl", "-D", self.data, "-l", f"{self.data}.log",
                                "-o", f"-p {self.port}", "-s", "-w", "start")
            except Failed:
                self.port = None
                if attempt == 4:
                    raise

    def stop(self):
        if os.path.exists(os.path.join(self.data, "postmaster.pid")):
            self.run("pg_ctl", "-D", self.data, "-s", "-w", "-m", "fast", "stop")

    def promote(self):
        self.run("pg_ctl", "-D", self.data, "-s", "-w", "promote")

    def psql(self, *options):
        """The command for psql."""
        return [os.path.join(self.options.bindir, "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1",
                "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", "postgres", *options]

    def sql(self, text):
        """Run SQL, each statement its own transaction; return the lines of rows."""
        return subprocess.run(self.psql("-c", text), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              text=True, check=True, timeout=DEADLINE).stdout.splitlines()


@contextlib.contextmanager
def locked(server, table):
    """Lock a table meanwhile.

    A session whose connection was cut silently in the middle of a query keeps its lock, as the
    server learns of the cut much later. It is terminated.
    """
    with subprocess.Popen(server.psql(), stdin=subprocess.PIPE, text=True) as session:
        try:
            print(f"BEGIN; LOCK TABLE {table};", file=session.stdin, flush=True)
            wait_until(lambda: server.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_locks"
                f" WHERE relation = '{table}'::regclass AND granted"
                " AND mode <> 'AccessExclusiveLock'") == [] and server.sql(
                f"SELECT count(*) FROM pg_locks WHERE relation = '{table}'::regclass"
                " AND mode = 'AccessExclusiveLock' AND granted") == ["1"], "a lock")
            yield
        except BaseException:
            session.kill()  # it may wait for the lock
            raise


def waiting(server, table):
    """How many sessions wait for a lock on the table."""
    return int(server.sql("SELECT count(*) FROM pg_locks"
                          f" WHERE relation = '{table}'::regclass AND NOT granted")[0])


class Proxy:
    """The address that clients know. It forwards to a port; None is for an outage."""

    def __init__(self):
        self.target = None
        self.cut_off = set()
        self.pairs = set()
        self.slow = False
        self.refusals = itertools.count()
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            target = self.target
            try:
                server = target and socket.create_connection(("127.0.0.1", target))
            except OSError:
                server = None
            if not server:
                self.refuse(client)
                continue
            pair = (client, server)
            with self.lock:
                self.pairs.add(pair)
            for source, sink in (pair, pair[::-1]):
                threading.Thread(
                    target=self.forward, args=(pair, source, sink), daemon=True
                ).start()

    def refuse(self, client):
        """Close the connection, or answer as a server that has too many of them, in turn."""
        with client, contextlib.suppress(OSError):
            if next(self.refusals) % 2:
                client.settimeout(DEADLINE)
                client.recv(1024)
                client.sendall(b"E" + struct.pack("!i", 4 + len(TOO_MANY)) + TOO_MANY)

    def forward(self, pair, source, sink):
        try:
            while data := source.recv(65536):
                if self.slow and b"LISTEN\0" in data:  # the tag of the completed command
                    time.sleep(2 * HEARTBEAT)
                    with contextlib.suppress(BlockingIOError):
                        data += source.recv(65536, socket.MSG_DONTWAIT)
                if pair in self.cut_off:
                    return  # and leave both open
                sink.sendall(data)
        except OSError:
            pass
        if pair in self.cut_off:
            return
        with self.lock:
            self.pairs.discard(pair)
        for end in pair:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    @contextlib.contextmanager
    def slow_network(self):
        """Meanwhile the answer to a LISTEN takes longer than a heartbeat, which comes with it."""
        self.slow = True
        yield
        self.slow = False

    def cut_silently(self):
        """From now on nothing comes through the connections that there are."""
        with self.lock:
            self.cut_off |= self.pairs
            self.pairs.clear()


# ---- Clients ------------------------------------------------------------------


class Client:
    """A program, the lines that it has printed, and the reason why it failed."""

    def __init__(self, name, command, environment):
        self.name = name
        self.failure = None
        self.lines = []
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            bufsize=1, env={**os.environ, **environment})
        threading.Thread(target=self.read, daemon=True).start()

    def wait_until(self, condition, what):
        """Wait for a condition, unless the client has failed already."""
        if self.failure:
            return
        try:
            wait_until(lambda: condition() or self.process.poll() is not None, what)
            if not condition():
                self.failure = f"exit code {self.process.poll()}, and not: {what}"
        except Failed as failed:
            self.failure = str(failed)


class Cache(Client):
    """An example, and what is in its cache according to what it prints."""

    def __init__(self, name, command, address):
        self.rows = {}
        self.to_load = 0
        self.loads = 0
        self.unchanged = 0
        super().__init__(name, [*command, "cache"], {
            "DATABASE_URL": f"postgresql://postgres@{address}/postgres?sslmode=disable"})

    def read(self):
        for line in self.process.stdout:
            line = line.rstrip("\n")
            self.lines.append(line)
            key, is_row, value = line.partition(" = ")
            if is_row:
                self.rows[key] = value
                self.to_load -= 1
            elif line.startswith("loaded "):
                self.loads += 1
                self.to_load = int(line.split()[1])
                self.rows.clear()
            elif line.endswith(" gone"):
                self.rows.pop(line[:-len(" gone")], None)
            elif line == "nothing missed":
                self.unchanged += 1

    def is_right(self, table):
        return self.to_load <= 0 and self.rows == table


# ---- Without disturbances -------------------------------------------------------


def check_undisturbed(name, command, options):
    """Run check.py with an example. Without heartbeats, so that it does not depend on the moment what
    a cache reads again. Returns whether it succeeds."""
    server = Server(f"undisturbed-{name}", options)
    server.init(heartbeat=0)
    server.start()
    published = "SELECT coalesce(sum(transactions), 0) FROM pinpoint.stat_notify"
    try:
        if options.target == "pinpoint":
            server.sql("CREATE EXTENSION pg_pinpoint")
            before = server.sql(published)
        check = [sys.executable, os.path.join(HERE, "check.py"), "127.0.0.1", str(server.port)]
        code = subprocess.call([*check, *command])
        if options.target == "pinpoint" and server.sql(published) == before:
            say("failed: not through pg_pinpoint")
            code = 1
    finally:
        server.stop()
    say(f"{'failed' if code else 'passed'} {name}, {options.target}, undisturbed")
    return code == 0


# ---- The test -------------------------------------------------------------------


class Test:
    """The servers, the proxy and the caches; run() disturbs them."""

    def __init__(self, options):
        self.proxy = Proxy()
        self.primary = Server("missed-primary", options)
        self.standby = None
        self.primary.init()
        self.primary.start()
        self.proxy.target = self.primary.port
        with open(SCHEMA) as schema:
            self.primary.sql(schema.read())
        # pg_pinpoint does not see this call, so it does not refuse it.
        self.primary.sql("CREATE TABLE heartbeats"
                         " (h text CHECK (pg_notify('pinpoint_heartbeat', h) IS NOT NULL))")
        if options.target == "pinpoint":
            self.primary.sql("CREATE EXTENSION pg_pinpoint")
            self.standby = Server("missed-standby", options)
            self.standby.copy_of(self.primary)
            self.standby.start()
        self.server = self.primary
        self.changes = 0
        self.caches = [
            Cache(name, command, f"127.0.0.1:{self.proxy.port}") for name, command in options.examples.items()
        ]

    def change(self):
        """Change one row of the table, which will not be changed again."""
        self.changes += 1
        self.server.sql(f"INSERT INTO settings VALUES ('change {self.changes}', 'made')")

    def terminate_all(self):
        self.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")

    def check(self, after):
        """That all caches equal the table."""
        table = dict(
            line.split("|") for line in self.server.sql("SELECT key, value FROM settings")
        )
        started = time.monotonic()
        for cache in self.caches:
            cache.wait_until(lambda: cache.is_right(table), f"the cache is right after {after}")
        say(f"after {after}: {time.monotonic() - started:.1f} s")

    def disturb(self, what, disturbance):
        """Changes before, during and right after a disturbance, then check."""
        self.change()
        self.proxy.target = None
        disturbance()
        self.change()
        self.proxy.target = self.server.port
        self.change()
        self.check(what)

    def nothing_missed(self, what, disturbance):
        """The same without a change: nothing is read again.

        The first time a cache may read again what came after its last heartbeat.
        """
        for once_more in (False, True):
            before = {cache: (cache.unchanged, cache.loads) for cache in self.caches}
            disturbance()
            for cache in self.caches:
                unchanged, loads = before[cache]
                cache.wait_until(
                    lambda: cache.unchanged + cache.loads > unchanged + loads,
                    f"it looks again after {what}")
                if once_more and cache.loads > loads and not cache.failure:
                    cache.failure = f"it read everything again after {what}, without a change"
        self.check(f"{what} without a change")

    def false_heartbeat(self):
        """Any role can send one. With the next change it has arrived."""
        # One that has just lost its connection, as heartbeats were late, may come back.
        self.proxy.target = self.server.port
        self.server.sql("INSERT INTO heartbeats VALUES (''), ('none')")
        self.change()
        self.check("a false heartbeat")
        self.proxy.target = None
        self.terminate_all()

    def restart(self):
        self.server.stop()
        self.server.start()

    def cut_queries(self):
        """Cut silently while each cache waits for the answer of a query."""
        with locked(self.server, "settings"):
            # One that has just lost its connection, as heartbeats were late, may come back.
            self.proxy.target = self.server.port
            self.server.sql("NOTIFY setting_changed, 'change 1'")
            running = sum(cache.process.poll() is None for cache in self.caches)
            wait_until(lambda: waiting(self.server, "settings") >= running, "queries")
            self.proxy.target = None
            self.proxy.cut_silently()

    def fail_over(self):
        """Clients find the standby first, and then it is promoted."""
        self.primary.stop()
        # It has received everything, and may not have replayed it yet.
        wait_until(
            lambda: self.standby.sql("SELECT count(*) FROM settings"
                                     f" WHERE key = 'change {self.changes}'") == ["1"],
            "the standby has the last change")
        self.server = self.standby
        self.proxy.target = self.standby.port
        self.check("the switch to the standby")
        self.standby.promote()

    def run(self):
        self.change()
        self.check("the start")
        self.disturb("pg_terminate_backend", self.terminate_all)
        self.disturb("pg_terminate_backend after a false heartbeat", self.false_heartbeat)
        if self.standby:
            self.nothing_missed("pg_terminate_backend", self.terminate_all)
            with self.proxy.slow_network():
                self.disturb("slow answers to LISTEN", self.terminate_all)
            self.disturb("a silent cut", self.proxy.cut_silently)
            self.disturb("a silent cut of queries", self.cut_queries)
            self.nothing_missed("a silent cut", self.proxy.cut_silently)
        self.disturb("a restart", self.restart)
        if self.standby:
            wait_until(
                lambda: self.primary.sql("SELECT count(*) FROM pg_stat_replication"
                                         " WHERE state = 'streaming'") == ["1"],
                "the standby is streaming again")
            self.disturb("a promotion", self.fail_over)
        self.end()

    def end(self):
        self.server.sql("INSERT INTO settings VALUES ('stop', 'now')")
        for client in self.caches:
            client.wait_until(lambda: client.process.poll() == 0, "the end")


def give_up(*_):
    raise Failed(f"not within {TOTAL_DEADLINE} seconds: the whole test")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bindir", metavar="BINDIR", help="programs of PostgreSQL")
    parser.add_argument("dir", metavar="DIR", help="a folder for the servers")
    parser.add_argument("target", choices=["stock", "pinpoint"], help="what the servers are")
    parser.add_argument("examples", metavar="NAME=COMMAND", nargs="+", help="an example")
    options = parser.parse_args()
    options.examples = {
        name: shlex.split(command) for name, _, command in (example.partition("=") for example in options.examples)
    }
    return options


def main():
    options = parse_arguments()
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(TOTAL_DEADLINE)
    right = [check_undisturbed(*example, options) for example in options.examples.items()]
    test = Test(options)
    try:
        test.run()
        for client in test.caches:
            if client.failure:
                say(f"failed {client.name}, {options.target}: {client.failure}")
                say("    " + "\n    ".join(client.lines[-20:]))
            else:
                say(f"passed {client.name}, {options.target}")
    finally:
        for client in test.caches:
            client.process.kill()
        for server in (test.primary, test.standby):
            if server:
                server.stop()
    return int(not all(right) or any(client.failure for client in test.caches))


if __name__ == "__main__":
    sys.exit(main())
