"""Writers and listeners, and what they know.

A transaction inserts a row and notifies its number and ID. Within an ordered channel the
numbers are 1, 2, 3 and so on in commit order: a transaction takes its number from a row that
it keeps locked until it has committed. So a listener can tell from the numbers alone what it
has missed, has received twice, or in another order. Transactions of the channel "free" do
not wait for each other. They have IDs only, which increase for each writer.
"""

import select
import threading
import time

import psycopg2

from cluster import HEARTBEAT, Failed, wait_until

BUSY = ("orders", "users", "stock")
QUIET = ("quiet0", "quiet1", "quiet2")  # nothing happens there, or once in a disturbance
ORDERED = BUSY + QUIET
FREE = "free"
CHANNELS = ORDERED + (FREE,)
FLOOD = "flood"  # has no table
SILENCE = 60 * HEARTBEAT  # after so long without a heartbeat a connection is dead

SCHEMA = f"""
CREATE EXTENSION pg_pinpoint;
CREATE TABLE counters (channel text PRIMARY KEY, n bigint NOT NULL);
CREATE TABLE events (id text PRIMARY KEY, channel text NOT NULL, n bigint NOT NULL);
CREATE UNIQUE INDEX ON events (channel, n) WHERE channel <> '{FREE}';
INSERT INTO counters SELECT unnest('{{{",".join(ORDERED)}}}'::text[]), 0;
"""

WRITE_ORDERED = """
WITH number AS (UPDATE counters SET n = n + 1 WHERE channel = %(channel)s RETURNING n),
     row AS (INSERT INTO events SELECT %(id)s, %(channel)s, n FROM number RETURNING n)
SELECT pg_notify(%(channel)s, n || ' ' || %(id)s) FROM row"""

WRITE_FREE = f"""
WITH row AS (INSERT INTO events VALUES (%(id)s, '{FREE}', 0) RETURNING id)
SELECT pg_notify('{FREE}', '0 ' || id) FROM row"""


def write(cursor, channel, name):
    cursor.execute(WRITE_FREE if channel == FREE else WRITE_ORDERED,
                   {"channel": channel, "id": name})


def read(cursor, channels):
    """What is in the table: for each channel its IDs, in order."""
    cursor.execute("SELECT channel, n, id FROM events WHERE channel = ANY(%s)"
                   " ORDER BY channel, n", (list(channels),))
    found = {channel: [] for channel in channels}
    for channel, n, name in cursor.fetchall():
        found[channel].append(name)
        if channel != FREE and n != len(found[channel]):
            raise Failed(f"the table has number {n} of {channel} at place {len(found[channel])}")
    if FREE in found:
        found[FREE] = set(found[FREE])
    return found


class Ledger:
    """What writers and listeners have been told."""

    def __init__(self):
        self.acknowledged = set()  # IDs whose commit has returned
        self.rolled_back = set()
        self.told = set()  # IDs that a listener has received


class Writers:
    """The threads that write, which can be paused."""

    def __init__(self, ledger, addresses, seeded):
        self.ledger = ledger
        self.may_run = threading.Event()
        self.ended = False
        self.threads = [Writer(self, f"w{number}", address, seeded())
                        for number, address in enumerate(addresses)]

    def start(self):
        self.may_run.set()
        for writer in self.threads:
            writer.start()

    def pause(self):
        """Returns when no transaction is running."""
        self.may_run.clear()
        wait_until(lambda: not any(writer.is_busy for writer in self.threads),
                   "writers have ended their transactions")

    def go_on(self):
        self.may_run.set()

    def wait_for_commits(self, n=100):
        """Wait until so many transactions more have been acknowledged."""
        enough = len(self.ledger.acknowledged) + n
        wait_until(lambda: len(self.ledger.acknowledged) >= enough, f"{n} more commits")


class Writer(threading.Thread):
    """A session that commits or rolls back random transactions. It connects again after an error."""

    def __init__(self, writers, name, address, random):
        super().__init__(name=name, daemon=True)
        self.writers = writers
        self.address = address
        self.random = random
        self.count = self.session = 0
        self.is_busy = False
        self.connection = None

    def run(self):
        while not self.writers.ended:
            self.writers.may_run.wait()
            self.is_busy = True
            # After is_busy, so that pause() sees this transaction, or it does not begin.
            if self.writers.may_run.is_set():
                try:
                    self.transaction()
                except (psycopg2.OperationalError, psycopg2.InternalError, psycopg2.InterfaceError):
                    # There is no leader, or it has failed. Whether the transaction was committed
                    # is not known.
                    self.disconnect()
            self.is_busy = False
            time.sleep(0.05 * self.random.random())

    def disconnect(self):
        if self.connection:
            self.connection.close()
            self.connection = None

    def name_of_next(self):
        self.count += 1
        # Each session is another writer: the last transaction of the session before may yet
        # be committed.
        return f"{self.name}-{self.session}.{self.count:07}"

    def transaction(self):
        ledger = self.writers.ledger
        if self.connection is None:
            self.connection = psycopg2.connect(
                **self.address, user="postgres", dbname="postgres", connect_timeout=10)
            self.session += 1
        kind = self.random.random()
        with self.connection.cursor() as cursor:
            if kind < 0.4:
                channels = [FREE]
            elif kind < 0.6:
                # In an order that all writers have, or they would wait for each other.
                channels = sorted(self.random.sample(BUSY, 2)) + [FREE]
            else:
                channels = [self.random.choice(BUSY)]
            names = [self.name_of_next() for _ in channels]
            for channel, name in zip(channels, names):
                write(cursor, channel, name)
            if self.random.random() < 0.03:
                ledger.rolled_back.update(names)
                self.connection.rollback()
            else:
                self.connection.commit()
                ledger.acknowledged.update(names)


class Listener(threading.Thread):
    """A client as docs/missed.md describes it, with a copy of the table.

    While it is connected, nothing but notifications changes the copy. After each LISTEN it
    reads the channels again that changed_since() names.
    """

    def __init__(self, name, ledger, address, node=None, floods=False):
        super().__init__(name=name, daemon=True)
        self.ledger = ledger
        self.address = address
        self.node = node  # None if it may be any
        self.channels = CHANNELS + ((FLOOD,) if floods else ())
        self.ended = False
        self.lock = threading.Lock()  # of the copy, and of what comes next
        self.copy = {channel: [] for channel in ORDERED}
        self.copy[FREE] = set()
        self.problem = None
        self.position = None
        self.session = 0  # how often it has connected
        self.is_ready = False  # connected, and has read what it had to
        self.read_again = self.left_out = 0  # channels that answers named, and did not name
        self.received = self.received_in_session = 0
        self.reasons = []  # why sessions ended
        self.may_read = threading.Event()
        self.may_read.set()
        self.is_paused = False  # it does not read its socket
        self.may_connect = threading.Event()
        self.may_connect.set()
        self.pid = None

    def run(self):
        while not self.ended and not self.problem:
            self.may_connect.wait()
            connection = None
            try:
                connection = psycopg2.connect(
                    **self.address, user="postgres", dbname="postgres", connect_timeout=10,
                    application_name=self.name, options="-c statement_timeout=60s")
                connection.autocommit = True
                self.begin(connection)
                while not self.ended and self.may_connect.is_set():
                    while not self.may_read.wait(0.2):
                        self.is_paused = True
                    self.is_paused = False
                    self.receive(connection)
                self.reasons.append("closed by the client")
            except psycopg2.ProgrammingError as error:
                self.problem = f"{self.name}: {error}"
            except psycopg2.Error as error:
                self.reasons.append(" ".join(str(error).split()))
            except Failed as failed:
                self.problem = str(failed)
            self.is_ready = False
            if connection:
                connection.close()
            time.sleep(0.1)

    def begin(self, connection):
        """LISTEN, ask what has changed, read it again."""
        with connection.cursor() as cursor:
            for channel in ("pinpoint_heartbeat",) + self.channels:
                cursor.execute(f"LISTEN {channel}")
            cursor.execute("SELECT changed, position FROM pinpoint.changed_since(%s, VARIADIC %s)",
                           (self.position, list(CHANNELS)))
            changed, position = cursor.fetchone()
            found = read(cursor, changed)
        with self.lock:
            self.copy.update(found)
            self.position = position
            if self.session > 0:
                self.read_again += len(changed)
                self.left_out += len(CHANNELS) - len(changed)
            self.session += 1
            self.received_in_session = 0
            self.last = {}  # of this session: number of each channel, ID of each writer
            self.heartbeat_at = time.monotonic()
            self.pid = connection.info.backend_pid
            self.is_ready = True

    def receive(self, connection):
        """Wait a moment for notifications, and process them."""
        if not connection.notifies:
            select.select([connection], [], [], 0.5)
            connection.poll()
        with self.lock:
            while connection.notifies:
                notify = connection.notifies.pop(0)
                if notify.channel == "pinpoint_heartbeat":
                    self.position = notify.payload.split()[0]
                    self.heartbeat_at = time.monotonic()
                elif notify.channel != FLOOD:
                    n, name = notify.payload.split()
                    self.process(notify.channel, int(n), name)
        if time.monotonic() - self.heartbeat_at > SILENCE:
            raise psycopg2.OperationalError("no heartbeat")

    def process(self, channel, n, name):
        """A row was inserted."""
        self.received += 1
        self.received_in_session += 1
        self.ledger.told.add(name)
        copy = self.copy[channel]
        if channel == FREE:
            writer = name.split(".")[0]
            if name <= self.last.get(writer, ""):
                raise self.wrong(channel, f"{name} after {self.last[writer]}")
            self.last[writer] = name
            copy.add(name)
            return
        # The first ones of a session may be what it has read already.
        expected = self.last.get(channel, n - 1) + 1
        if n != expected or n > len(copy) + 1:
            raise self.wrong(channel, f"number {n}, {name}, and not {min(expected, len(copy) + 1)}")
        self.last[channel] = n
        if n == len(copy) + 1:
            copy.append(name)
        elif copy[n - 1] != name:
            raise self.wrong(channel, f"number {n} is {name}, and {copy[n - 1]} in the table")

    def wrong(self, channel, text):
        return Failed(f"{self.name} received on {channel} {text}"
                      f" (session {self.session}, after {self.received_in_session} notifications)")

    def has(self, table):
        """Whether the copy equals the table."""
        with self.lock:
            if self.problem:
                raise Failed(self.problem)
            return self.is_ready and self.copy == table

    def difference(self, table):
        """For people: how the copy differs from the table."""
        with self.lock:
            lines = [f"{self.name}: session {self.session}, {'' if self.is_ready else 'not '}"
                     f"connected, {self.received} notifications;"
                     f" sessions ended: {self.reasons[-3:]}"]
            if self.problem:
                lines.append(f"    {self.problem}")
            for channel in CHANNELS:
                mine, right = set(self.copy[channel]), set(table[channel])
                for what, names in (("missed", right - mine), ("has too much", mine - right)):
                    if names:
                        lines.append(f"    {channel}: {what} {len(names)}:"
                                     f" {' '.join(sorted(names)[:10])}")
            return "\n".join(lines)
