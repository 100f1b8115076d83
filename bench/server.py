"""Throwaway servers: a primary, its standbys, sessions, and what the processes of a server have used."""

import contextlib
import os
import re
import selectors
import socket
import struct
import subprocess
import time

from measurement import DEADLINE, Failure, as_server_user, environment

TICK = os.sysconf("SC_CLK_TCK")


def wait_until(condition, what, pause=0.002):
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise Failure(f"not within {DEADLINE} seconds: {what}")
        time.sleep(pause)


class Session:
    """A connection. A listener is read as bytes, so that the program costs little."""

    def __init__(self, server, database="postgres"):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE)
        self.socket.connect(f"{server.folder}/.s.PGSQL.5432")
        self.buffer = b""
        start = b"user\0postgres\0database\0%s\0\0" % database.encode()
        self.socket.sendall(struct.pack("!ii", len(start) + 8, 196608) + start)
        self.pid = next(struct.unpack("!i", body[:4])[0] for kind, body in self.answer() if kind == b"K")

    def message(self):
        """The next message: its type and its body."""
        while len(self.buffer) < 5 or len(self.buffer) < 1 + struct.unpack("!i", self.buffer[1:5])[0]:
            data = self.socket.recv(65536)
            if not data:
                raise Failure("the server has closed a connection")
            self.buffer += data
        end = 1 + struct.unpack("!i", self.buffer[1:5])[0]
        kind, body = self.buffer[:1], self.buffer[5:end]
        self.buffer = self.buffer[end:]
        return kind, body

    def answer(self):
        """All messages until the server is ready for a query."""
        messages = []
        while not messages or messages[-1][0] != b"Z":
            messages.append(self.message())
            if messages[-1][0] == b"E":
                raise Failure(messages[-1][1].replace(b"\0", b" ").decode())
        return messages

    def query(self, text):
        """Run SQL; return the first column of the last row, as text."""
        text = text.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)
        value = None
        for kind, body in self.answer():
            if kind == b"D":
                length = struct.unpack("!i", body[2:6])[0]
                value = body[6:6 + length].decode() if length >= 0 else None
        return value

    def close(self):
        self.socket.close()


class Receivers:
    """Sessions that listen on some servers, and that are read in one loop. Counts the bytes that have come."""

    def __init__(self, servers, channels):
        self.received = 0
        self.sessions = {server: [Session(server) for _ in channels] for server in servers}
        self.selector = selectors.DefaultSelector()
        for sessions in self.sessions.values():
            for session, channel in zip(sessions, channels):
                session.query(f"LISTEN {channel}")
                session.socket.setblocking(False)
                self.selector.register(session.socket, selectors.EVENT_READ)

    def pids(self, server):
        return {session.pid for session in self.sessions[server]}

    def receive(self):
        """Wait a moment, and read what has come."""
        for key, _ in self.selector.select(0.02):
            data = key.fileobj.recv(262144)
            if not data:
                raise Failure("a listener was disconnected")
            self.received += len(data)

    def read_during(self, load, seconds):
        """Read while a load of pgbench goes on, which takes so long; return the number of its transactions."""
        self.received, end = 0, time.monotonic() + seconds + DEADLINE
        with ended(load):
            while load.poll() is None and time.monotonic() < end:
                self.receive()
            return transactions_of(load)

    def read_until(self, expected):
        """Read until so many bytes have come."""
        end = time.monotonic() + DEADLINE
        while self.received < expected:
            self.receive()
            if time.monotonic() > end:
                raise Failure(f"{self.received} bytes of {expected} were received")
        if self.received > expected:
            raise Failure(f"{self.received} bytes were received, and not {expected}")

    def close(self):
        self.selector.close()
        for sessions in self.sessions.values():
            for session in sessions:
                session.close()
            wait_for_end([session.pid for session in sessions])


@contextlib.contextmanager
def ended(process):
    """The process ends with the context."""
    try:
        yield
    finally:
        process.kill()
        process.wait()


def transactions_of(load):
    """Wait for the end of a load of pgbench; return the number of its transactions."""
    with ended(load):
        output = load.communicate(timeout=DEADLINE)[0]
    found = re.search(r"transactions actually processed: (\d+)", output)
    if load.returncode != 0 or not found:
        raise Failure(f"pgbench:\n{output[-2000:]}")
    return int(found[1])


# What a record says of a server's settings, beside those that the measurement makes.
SHOWN = ("fsync", "full_page_writes", "synchronous_commit", "wal_level", "shared_buffers")


class Server:
    """A primary, or a standby of another server."""

    def __init__(self, bindir, folder, settings, upstream=None):
        self.bindir, self.folder, self.settings, self.upstream = bindir, folder, settings, upstream
        self.data = f"{folder}/data"
        as_server_user("mkdir", folder)
        if upstream:
            as_server_user(f"{bindir}/pg_basebackup", "-h", upstream.folder, "-p", "5432", "-U", "postgres",
                           "-D", self.data, "-R", "-c", "fast", "-X", "stream")
        else:
            as_server_user(f"{bindir}/initdb", "-D", self.data, "-U", "postgres", "-A", "trust",
                           "--locale=C", "--encoding=UTF8")
        with open(f"{self.data}/postgresql.conf", "a") as conf:
            for name, value in {**settings, "listen_addresses": "", "port": "5432",
                                "unix_socket_directories": folder}.items():
                conf.write(f"{name} = '{value}'\n")
        self.control = None

    def description(self, pg_config):
        """The server as a target of a report, without its name."""
        query, extensions = self.control.query, {}
        if "shared_preload_libraries" in self.settings:
            extensions["pg_pinpoint"] = query("SELECT default_version FROM pg_available_extensions"
                                              " WHERE name = 'pg_pinpoint'")
        return {"pg_config": os.path.basename(pg_config), "url": None, "preload": list(extensions),
                "server_version": query("SELECT version()"), "extensions": extensions,
                "settings": {**self.settings, **{name: query(f"SHOW {name}") for name in SHOWN}}}

    def start(self):
        try:
            as_server_user(f"{self.bindir}/pg_ctl", "-D", self.data, "-l", f"{self.folder}/log", "-s", "-w", "start")
        except Failure:
            with open(f"{self.folder}/log") as log:
                raise Failure("a server does not start:\n" + log.read()[-2000:]) from None
        with open(f"{self.data}/postmaster.pid") as file:
            self.pid = int(file.readline())
        self.control = Session(self)
        if self.upstream:
            self.catch_up()

    def stop(self, mode="fast"):
        if self.control:
            self.control.close()
            self.control = None
        if os.path.exists(f"{self.data}/postmaster.pid"):
            as_server_user(f"{self.bindir}/pg_ctl", "-D", self.data, "-s", "-w", "-m", mode, "stop")

    def pgbench(self, text, *options):
        """Begin a load, in which each session repeats this script."""
        script = f"{self.folder}/script.sql"
        with open(script, "w") as file:
            file.write(text)
        return subprocess.Popen([f"{self.bindir}/pgbench", "-n", "-f", script, *options,
                                 "-h", self.folder, "-p", "5432", "-U", "postgres", "postgres"],
                                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment())

    def wal_position(self, function):
        """In bytes."""
        return int(self.control.query(f"SELECT coalesce({function}() - '0/0', 0)"))

    def catch_up(self, function="pg_last_wal_replay_lsn"):
        """Wait until everything that the primary has written has been replayed (received) here."""
        primary = self
        while primary.upstream:
            primary = primary.upstream
        end = primary.wal_position("pg_current_wal_flush_lsn")
        wait_until(lambda: self.wal_position(function) >= end, "a standby has caught up")

    def all_processor_seconds(self):
        """The processor time of all processes of the server, those that have ended included."""
        total = 0
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                parent, seconds, of_ended = process_times(entry)
                total += seconds + of_ended if int(entry) == self.pid else seconds if parent == self.pid else 0
        return total

    def processor_seconds(self, listeners):
        """The processor time of the server's processes, by what they do. Sessions that have
        ended are "writers": all others than the listeners', whose process IDs are the argument."""
        found = []

        def all_writers_have_ended():
            found[:] = [self.sum_of_processes(listeners)]
            return found[0] is not None

        wait_until(all_writers_have_ended, "sessions have ended")
        return found[0]

    def sum_of_processes(self, listeners):
        """The same; None while a session ends, because its time may be counted twice, or not at all."""
        used = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                parent, seconds, of_ended = process_times(entry)
                if int(entry) != self.pid and parent != self.pid:
                    continue
                if os.path.exists(f"/proc/{entry}/schedstat"):  # the same in nanoseconds
                    with open(f"/proc/{entry}/schedstat") as file:
                        seconds = int(file.read().split()[0]) / 1e9
                with open(f"/proc/{entry}/cmdline") as file:
                    title = file.read()
            except OSError:
                return None
            process = re.search(r"walsender|startup|walreceiver|waker", title)
            if int(entry) == self.pid:
                used["writers"] = of_ended
                kind = "other"
            elif int(entry) in listeners:
                kind = "listeners"
            elif int(entry) == self.control.pid:
                continue
            elif process:
                kind = process.group()
            elif title == "" or "[local]" in title:
                return None
            else:
                kind = "other"
            used[kind] = used.get(kind, 0) + seconds
        return used

    def counters(self):
        """Signals sent to listeners, and notifications delivered."""
        text = self.control.query("SELECT coalesce(sum(signals), 0) || ' ' || coalesce(sum(delivered), 0)"
                                  " FROM pinpoint.stat_notify")
        return [int(word) for word in text.split()]


def process_times(pid):
    """The parent of a process, its processor time in seconds, and that of its children that have ended."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[1]), sum(map(int, fields[11:13])) / TICK, sum(map(int, fields[13:15])) / TICK


def wait_for_end(pids):
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "sessions have ended")
