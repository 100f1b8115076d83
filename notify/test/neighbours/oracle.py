"""A client with a cache of watched tables, beside writers: when they rest, the cache is right."""

import random
import threading
import time
from collections import Counter

import psycopg2

from server import Failed
from situations import expect, listener_of

SECONDS = 10
OPTIONS = "-c lock_timeout=60s"


class Caches:
    """What a client knows of tables. It reads a table only when it is notified."""

    def __init__(self, server, tables):
        self.reader = server.connect("reader", options=OPTIONS)
        self.listener = listener_of(server, *tables)
        self.known = {table: self.read(table) for table in tables}

    def read(self, table):
        while True:
            try:
                return self.reader.value("SELECT md5(string_agg(t::text, ',' ORDER BY t::text))"
                                         f" FROM {table} t")
            except psycopg2.errors.DeadlockDetected:
                pass

    def refresh(self, notifications):
        for table in {n.channel for n in notifications}:
            self.known[table] = self.read(table)

    def poll(self):
        if self.listener.poll():
            received, self.listener.received = self.listener.received, []
            self.refresh(received)

    def stale(self, control):
        self.refresh(self.listener.sync(control))
        return [table for table, known in self.known.items() if known != self.read(table)]


class RandomWriter(threading.Thread):
    """Executes some random changes. One can fail, for instance by a deadlock."""

    def __init__(self, session, kinds, source, done):
        super().__init__()
        self.session = session
        self.kinds = kinds
        self.random = source
        self.done = done
        self.last = []

    def run(self):
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.choice(list(self.kinds))
            try:
                for statement in self.kinds[kind](self.random):
                    self.last.append(statement)
                    self.session.run(statement)
                self.done[kind] += 1
            except psycopg2.Error as error:
                self.done[f"{kind}: {error.pgcode}"] += 1
                self.session.run("ROLLBACK")


def compare_caches(server, tables, kinds, writers=3, seed=1):
    """Raise an error if a cache of a table is not right, or if one of the kinds of changes never
    succeeds. kinds: for each, a function that makes statements."""
    control = server.connect("control")
    caches = Caches(server, tables)
    sessions = [server.connect(f"writer {number}", options=OPTIONS) for number in range(writers)]
    source, done, rounds = random.Random(seed), Counter(), 0
    end = time.monotonic() + SECONDS
    # Each kind is executed on its own first.
    alone = [{kind: kinds[kind]} for kind in kinds]
    while alone or time.monotonic() < end:
        chosen = [alone.pop(0)] if alone else [kinds] * writers
        threads = [RandomWriter(session, some, random.Random(source.random()), done)
                   for session, some in zip(sessions, chosen)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            caches.poll()
            time.sleep(0.002)
        rounds += 1
        changes = "; ".join(statement for thread in threads for statement in thread.last)
        expect([], caches.stale(control), f"stale in round {rounds}, after {changes}")
    if never := [kind for kind in kinds if not done[kind]]:
        raise Failed(f"never done: {', '.join(never)}; {dict(done)}")
    print(f"    {rounds} comparisons after {sum(done[kind] for kind in kinds)} changes")
