"""What two sessions do and receive, as text."""

import re
from pathlib import Path

import psycopg2

HERE = Path(__file__).resolve().parent
IDLE = psycopg2.extensions.TRANSACTION_STATUS_IDLE

# Output plugins, and the options with which no line has a transaction ID.
PLUGINS = {"test_decoding": "'include-xids', '0', 'skip-empty-xacts', '1'",
           "wal2json": "'include-xids', '0', 'include-transaction', '0', 'format-version', '2'"}


def statements(name):
    text = re.sub(r"^--.*\n", "", (HERE / name).read_text(), flags=re.M)
    # A body of a function has no empty lines.
    for paragraph in re.split(r"\n\n+", text.strip()):
        listener, statement = re.fullmatch(r"(listener: )?(.*)", paragraph, re.S).groups()
        yield "listener" if listener else "sender", statement


def normalized(line):
    """Without the difference that docs/reliability.md names, and without measurements."""
    line = line.replace("pinpoint.notify(", "pg_notify(")
    line = line.replace("on pinpoint.notify pg_notify", "on pg_catalog.pg_notify")
    line = re.sub(r"\b(duration|cost|Query Identifier)[:=] ?[-\d.]+", r"\1", line)
    return line


class Transcript:
    """Two sessions of a server, and the lines of what they do and receive."""

    def __init__(self, server, options=""):
        self.server = server
        self.sessions = {"sender": server.connect("sender", options=options),
                         "listener": server.connect("listener")}
        self.control = server.connect("control")
        for session in self.sessions.values():
            session.run("LISTEN sync")
        self.lines = []
        for plugin in (*PLUGINS, "decoderbufs"):
            self.control.run(f"SELECT pg_create_logical_replication_slot('{plugin}', '{plugin}')")

    def run(self, name):
        for session, statement in statements(name):
            self.step(self.sessions[session], statement)

    def step(self, session, statement):
        self.lines.append(f"{session.name}: {statement}")
        session.connection.notices.clear()
        try:
            for row in session.run(statement):
                self.lines += ["  " + normalized(" | ".join(map(str, row)))]
        except psycopg2.Error as error:
            self.lines.append(f"  {error.pgcode} {str(error).strip()}")
        self.lines += [f"  {notice.strip()}" for notice in session.connection.notices]
        self.receive()

    def receive(self):
        """What each session that is in no transaction has received until now."""
        for session in self.sessions.values():
            if session.connection.info.transaction_status != IDLE:
                continue
            pids = {other.pid: name for name, other in self.sessions.items()}
            self.control.run("SELECT pg_notify('sync', '%s')" % len(self.lines))
            for n in session.wait_for("sync", str(len(self.lines))):
                if n.channel != "sync":
                    self.lines.append(f"  -> {session.name}: {n.channel} {n.payload!r}"
                                      f" from {pids.get(n.pid, 'another session')}")

    def decode(self):
        """What logical decoding makes of all this."""
        for plugin, options in PLUGINS.items():
            rows = self.control.run("SELECT data FROM pg_logical_slot_get_changes("
                                    f"'{plugin}', NULL, NULL, {options})")
            # Whatever a neighbour writes into its own tables is at a time of its own.
            self.lines += [f"{plugin}: {row[0]}" for row in rows
                           if re.search(r'public\.t:|"table":"t"', row[0])]
        # It has binary output, with transaction IDs and times.
        count = self.control.value("SELECT count(*) FROM pg_logical_slot_get_binary_changes("
                                   "'decoderbufs', NULL, NULL)"
                                   " WHERE position('public.t'::bytea IN data) > 0")
        self.lines.append(f"decoderbufs: {count} changes of t")

    def log(self):
        """What the server has logged of the sender."""
        return [normalized(line) for line in self.server.lines_of("sender")]
