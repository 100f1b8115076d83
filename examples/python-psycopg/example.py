"""A cache that PostgreSQL keeps up to date, and a worker of a job queue.

    python example.py cache | worker

DATABASE_URL names the database, which has ../schema.sql.
"""

import contextlib
import os
import socket
import sys
import threading
import time

import psycopg

URL = os.environ["DATABASE_URL"]

# A worker looks again after so many seconds, whatever it was told: a job may have
# been given up by another worker.
LOOK_AGAIN = 60

# Seconds until an attempt to connect or a query is given up.
TIMEOUT = 10

# Seconds before another attempt to connect.
RECONNECT_AFTER = 0.2

# In milliseconds; 0 is never. Without pg_pinpoint there is no row.
HEARTBEAT_INTERVAL = """
    SELECT setting::int FROM pg_settings
     WHERE name = 'pinpoint.heartbeat_interval'
       AND to_regproc('pinpoint.changed_since') IS NOT NULL"""
CHANGED_SINCE = """
    SELECT changed, position FROM pinpoint.changed_since(%s, 'setting_changed')"""


def say(text):
    print(text, flush=True)


class Cache:
    """A copy of the settings, and the position up to which it is right."""

    def __init__(self):
        self.rows = {}
        self.position = None


def keep_cache():
    """Keep a copy of the settings until there is one with the name "stop"."""
    cache = Cache()
    while "stop" not in cache.rows:
        try:
            with psycopg.connect(URL, autocommit=True, connect_timeout=TIMEOUT) as connection:
                follow(connection, cache)
        except psycopg.OperationalError:
            time.sleep(RECONNECT_AFTER)


def follow(connection, cache):
    """Keep the cache right until there is a "stop", or no heartbeat any more."""
    with time_limit(connection):
        interval = catch_up(connection, cache)
    silence = 3 * interval / 1000 if interval else None
    while "stop" not in cache.rows:
        notifications = wait(connection, silence)
        if not notifications:
            return
        for notification in notifications:
            if notification.channel == "pinpoint_heartbeat":
                cache.position = notification.payload.split()[0]
            else:
                with time_limit(connection):
                    refresh(connection, cache.rows, notification.payload)


@contextlib.contextmanager
def time_limit(connection):
    """Shut the connection down if it does not answer: psycopg itself waits for ever."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        timer = threading.Timer(TIMEOUT, same.shutdown, [socket.SHUT_RDWR])
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def catch_up(connection, cache):
    """LISTEN, and read again what was missed. Return the time between heartbeats."""
    # First LISTEN, then look: what changes in between is told.
    connection.execute("LISTEN setting_changed")
    connection.execute("LISTEN pinpoint_heartbeat")
    interval = connection.execute(HEARTBEAT_INTERVAL).fetchone()
    if interval:
        changed, position = connection.execute(CHANGED_SINCE, (cache.position,)).fetchone()
    else:
        changed, position = ["setting_changed"], None  # stock PostgreSQL does not know
    if changed:
        load(connection, cache)
    else:
        say("nothing missed")
    cache.position = position
    return interval and interval[0]


def load(connection, cache):
    cache.rows = dict(connection.execute("SELECT key, value FROM settings ORDER BY key"))
    say(f"loaded {len(cache.rows)}")
    for key, value in cache.rows.items():
        say(f"{key} = {value}")


def wait(connection, timeout=None):
    """Wait for a notification, and return it with others that came along.

    While notifies() is running, the connection can do nothing else.
    """
    return list(connection.notifies(timeout=timeout, stop_after=1))


def refresh(connection, rows, key):
    row = connection.execute(
        "SELECT value FROM settings WHERE key = %s", (key,)
    ).fetchone()
    if row:
        rows[key] = row[0]
        say(f"{key} = {row[0]}")
    else:
        rows.pop(key, None)
        say(f"{key} gone")


def work():
    """Do jobs until one says "stop"."""
    done = 0
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute("LISTEN job_added")
        say("ready")
        while True:
            while payload := take_job(connection):
                if payload == "stop":
                    say(f"done {done}")
                    return
                done += 1
            wait(connection, LOOK_AGAIN)


def take_job(connection):
    """Do one job, which nobody else does meanwhile, and return its payload."""
    with connection.transaction():
        job = connection.execute(
            "SELECT id, payload FROM jobs WHERE result IS NULL"
            " ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1"
        ).fetchone()
        if not job:
            return None
        connection.execute(
            "UPDATE jobs SET result = %s, worker = pg_backend_pid() WHERE id = %s",
            (job[1].upper(), job[0]),
        )
        return job[1]


if __name__ == "__main__":
    {"cache": keep_cache, "worker": work}[sys.argv[1]]()
