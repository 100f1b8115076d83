"""Servers, sessions, and waiting."""

import select
import shutil
import subprocess
import time
from pathlib import Path

import psycopg2

DEADLINE = 150  # seconds

BINDIR = Path("/usr/lib/postgresql/15/bin")

# What every server has, besides the settings of its neighbour.
SETTINGS = """
listen_addresses = ''
fsync = off
autovacuum = off
wal_level = logical
max_connections = 40
max_wal_senders = 10
max_replication_slots = 10
max_worker_processes = 20
max_prepared_transactions = 2
log_line_prefix = '%a|'
log_checkpoints = off
"""


class Failed(Exception):
    """A test has failed; the text says why."""


def run(*command, **options):
    result = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if result.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: {result.stdout}")
    return result.stdout


def wait_until(condition, what, pause=0.05):
    end = time.monotonic() + DEADLINE
    while not (result := condition()):
        if time.monotonic() > end:
            raise Failed(f"not within {DEADLINE} s: {what() if callable(what) else what}")
        time.sleep(pause)
    return result


def make_template(folder):
    """An empty data directory, which each server copies."""
    run(BINDIR / "initdb", "-D", folder, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8",
        "--locale=C.UTF-8")
    # Newer minor releases load only the output plugins that a setting names.
    known = subprocess.run([BINDIR / "postgres", "-D", folder, "-C", "output_plugin_libraries"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if known.returncode == 0:
        with open(folder / "postgresql.conf", "a") as file:
            file.write("output_plugin_libraries ="
                       " 'pgoutput, test_decoding, wal2json, decoderbufs, pglogical_output'\n")


class Server:
    """A server that runs in a context, and its sessions."""

    def __init__(self, folder, template, libraries, settings=()):
        self.folder = Path(folder)
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self.sessions = []
        self.folder.mkdir()
        shutil.copytree(template, self.data)
        with open(self.data / "postgresql.conf", "a") as file:
            file.write(SETTINGS)
            for line in (f"unix_socket_directories = '{self.folder}'",
                         f"shared_preload_libraries = '{', '.join(libraries)}'", *settings):
                file.write(line.replace("{folder}", str(self.folder)) + "\n")

    def __enter__(self):
        try:
            run(BINDIR / "pg_ctl", "-D", self.data, "-l", self.log, "-w", "start")
        except Failed as failure:
            self.stop()
            raise Failed(f"{failure}\n{self.log.read_text()[-3000:]}") from None
        return self

    def __exit__(self, *_):
        for session in self.sessions:
            session.close()
        self.stop()

    def stop(self):
        subprocess.run([BINDIR / "pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop"],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.data, ignore_errors=True)

    def connect(self, name="session", database="postgres", options=""):
        session = Session(self, name, database, options)
        self.sessions.append(session)
        return session

    def dsn(self, database="postgres"):
        return f"host={self.folder} dbname={database} user=postgres"

    def lines_of(self, session):
        """What the log has of a session."""
        wanted, lines = False, []
        # Some extensions log bytes that are no text.
        for line in self.log.read_text(errors="backslashreplace").splitlines():
            if not line.startswith("\t"):
                wanted = line.startswith(f"{session}|")
            if wanted:
                lines.append(line)
        return lines


class Session:
    """A session, and the notifications that it has received and that nobody has taken."""

    def __init__(self, server, name, database, options):
        self.name = name
        self.connection = psycopg2.connect(server.dsn(database), application_name=name,
                                           options=options, connect_timeout=DEADLINE)
        self.connection.autocommit = True
        self.pid = self.connection.info.backend_pid
        self.received = []

    def close(self):
        self.connection.close()

    def run(self, sql):
        """The rows of a statement."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def value(self, sql):
        return self.run(sql)[0][0]

    def poll(self):
        """Read what has arrived; True if there is something that nobody has taken."""
        if select.select([self.connection], [], [], 0)[0]:
            self.connection.poll()
        self.received += self.connection.notifies
        self.connection.notifies.clear()
        return bool(self.received)

    def wait_for(self, channel, payload, what=None):
        """Take all notifications up to this one, which is not among them."""
        def find():
            self.poll()
            for place, n in enumerate(self.received):
                if (n.channel, n.payload) == (channel, payload):
                    return place + 1
            return 0

        place = wait_until(find, what or f"{self.name} receives {channel} {payload!r}", 0.005)
        taken, self.received = self.received[:place - 1], self.received[place:]
        return taken

    def sync(self, sender):
        """Take all notifications that were sent before now; the session listens on "sync"."""
        sender.number = getattr(sender, "number", 0) + 1
        sender.run(f"NOTIFY sync, '{sender.pid}.{sender.number}'")
        taken = self.wait_for("sync", f"{sender.pid}.{sender.number}")
        return [n for n in taken if n.channel != "sync"]
