"""Servers, a proxy and a pooler for the scenarios. All listen on the loopback interface only."""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time

import psycopg

DEADLINE = 60  # seconds, for what takes a moment on a machine that is not busy
HEARTBEAT = 0.5  # seconds
SERVER_USER = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}


class Failed(Exception):
    """A scenario has failed; the text says why."""


def wait_until(condition, what, seconds=DEADLINE):
    end = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} seconds: {what}")
        time.sleep(0.02)
    return result


def free_port():
    """Below the range from which connections get their ports."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def new_folder():
    """A temporary folder of the user of the servers."""
    with tempfile.TemporaryDirectory(prefix="pinpoint.", dir="/tmp", ignore_cleanup_errors=True) as folder:
        if SERVER_USER:
            shutil.chown(folder, "postgres", "postgres")
        yield folder


def environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C.UTF-8", "PGCTLTIMEOUT": str(DEADLINE)}


class Server:
    def __init__(self, bindir, folder, name, pinpoint=True):
        self.bindir = bindir
        self.folder = folder
        self.data = f"{folder}/{name}"
        self.pinpoint = pinpoint
        self.port = free_port()

    def run(self, program, *arguments):
        with open(f"{self.data}.commands.log", "a+") as log:
            code = subprocess.call([f"{self.bindir}/{program}", *arguments], stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log, cwd=self.folder, env=environment(), **SERVER_USER)
            log.seek(0)
            if code != 0:
                raise Failed(f"{program}: {log.read()[-2000:]}")

    def init(self, *settings):
        self.run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-N",
                 "--locale=C.UTF-8", "--encoding=UTF8")
        self.configure("listen_addresses = '127.0.0.1'", "unix_socket_directories = ''", "fsync = off",
                       "max_connections = 200", *settings)
        if self.pinpoint:
            self.configure("shared_preload_libraries = 'pg_pinpoint'", "pinpoint.replicate = on",
                           f"pinpoint.heartbeat_interval = {int(HEARTBEAT * 1000)}")
        return self

    def configure(self, *lines):
        with open(f"{self.data}/postgresql.conf", "a") as file:
            print(*lines, sep="\n", file=file)

    def copy_of(self, primary):
        self.run("pg_basebackup", "-D", self.data, "-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres",
                 "-c", "fast", "-N", "-R")
        return self

    def start(self):
        self.run("pg_ctl", "-D", self.data, "-l", f"{self.data}.log", "-o", f"-p {self.port}", "-s", "-w", "start")
        return self

    def stop(self, mode="fast"):
        if os.path.exists(f"{self.data}/postmaster.pid"):
            self.run("pg_ctl", "-D", self.data, "-s", "-w", "-m", mode, "stop")

    def close(self):
        self.stop("immediate")

    def promote(self):
        self.run("pg_ctl", "-D", self.data, "-s", "-w", "promote")

    def reload(self):
        self.run("pg_ctl", "-D", self.data, "-s", "reload")

    def connect(self, dbname="postgres"):
        return psycopg.connect(host="127.0.0.1", port=self.port, user="postgres", dbname=dbname, autocommit=True,
                               connect_timeout=DEADLINE, client_encoding="UTF8")

    def execute_file(self, path, dbname):
        copy = shutil.copy(path, self.folder)
        os.chmod(copy, 0o644)
        self.run("psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port),
                 "-U", "postgres", "-f", copy, dbname)

    def set_heartbeat_interval(self, seconds):
        if not self.pinpoint:
            return
        interval = str(int(seconds * 1000))
        self.sql(f"ALTER SYSTEM SET pinpoint.heartbeat_interval = {interval}", "SELECT pg_reload_conf()")
        wait_until(lambda: self.sql("SELECT setting FROM pg_settings WHERE name = 'pinpoint.heartbeat_interval'")
                   == [(interval,)], "the heartbeat interval")

    def sql(self, *statements, dbname="postgres"):
        """Execute statements, each in its own transaction. Returns the rows of the last one."""
        with self.connect(dbname) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


class Proxy:
    """Forwards connections to a port. It can refuse, cut and fall silent."""

    def __init__(self, target):
        self.target = target  # a port; None refuses connections
        self.commits = True  # or, after a call of changed_since(), COMMIT ends the connection
        self.pairs = []
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                if self.target is None:
                    raise OSError
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                # A reset, as for a port on which nobody listens.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.close()
                continue
            pair = Pair(self, client, server)
            with self.lock:
                self.pairs.append(pair)

    def cut(self):
        """End all connections."""
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            pair.close()

    def existing(self, ports):
        """The connections that exist now. ports: only those that come from these ports, as the server sees them."""
        with self.lock:
            return [pair for pair in self.pairs
                    if ports is None or pair.server.fileno() != -1 and pair.server.getsockname()[1] in ports]

    def fall_silent(self, *directions, ports=None):
        """Forward nothing any more for existing connections: "up" (to the server), "down"."""
        for pair in self.existing(ports):
            pair.silent.update(directions)

    def cut_in_message(self, ports=None):
        """End each existing connection in the middle of its next message to the client."""
        for pair in self.existing(ports):
            pair.cut_next = True


class Pair:
    def __init__(self, proxy, client, server):
        self.proxy, self.client, self.server = proxy, client, server
        self.asked = False  # the client has called changed_since()
        self.silent = set()
        self.cut_next = False
        for direction, source, sink in ("up", client, server), ("down", server, client):
            threading.Thread(target=self.forward, args=(direction, source, sink), daemon=True).start()

    def forward(self, direction, source, sink):
        try:
            while data := source.recv(65536):
                while direction in self.silent:
                    time.sleep(0.1)
                    if sink.fileno() == -1:
                        return
                if direction == "up":
                    self.asked |= b"FROM pinpoint.changed_since(" in data
                    if self.asked and b"commit" in data.lower() and not self.proxy.commits:
                        break
                if direction == "down" and self.cut_next:
                    sink.sendall(data[:3])
                    break
                sink.sendall(data)
        except OSError:
            pass
        if not self.silent:
            self.close()

    def close(self):
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class PgBouncer:
    def __init__(self, folder, name, mode, target, pool_size=20):
        self.config = f"{folder}/{name}.ini"
        self.pool_size = pool_size
        self.port = free_port()
        self.process = None
        with open(self.config, "w") as file:
            print(f"[databases]\n* = host=127.0.0.1 port={target} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
                  f"listen_port = {self.port}\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = {pool_size}\n"
                  "max_client_conn = 1000\nunix_socket_dir =\nserver_login_retry = 0.2\n"
                  f"logfile = {folder}/{name}.log", file=file)

    def start(self):
        program = shutil.which("pgbouncer", path="/usr/sbin:" + os.environ["PATH"])
        self.process = subprocess.Popen([program, "-q", self.config], stdin=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, env=environment(), **SERVER_USER)

        def answers():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return True
        try:
            wait_until(answers, "PgBouncer starts")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
