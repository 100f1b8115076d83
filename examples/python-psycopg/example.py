"""A cache that PostgreSQL keeps up to date, and a worker of a job queue.

    python example.py cache | worker

DATABASE_URL names the database, which has ../schema.sql.
"""

import os
import sys

import psycopg

URL = os.environ["DATABASE_URL"]

# A worker looks again after so many seconds, whatever it was told: a job may have
# been given up by another worker.
LOOK_AGAIN = 60


def say(text):
    print(text, flush=True)


def keep_cache():
    """Keep a copy of the settings until there is one with the name "stop"."""
    while True:
        try:
            with psycopg.connect(URL, autocommit=True) as connection:
                # First LISTEN, then read: what changes in between is told.
                connection.execute("LISTEN setting_changed")
                cache = dict(connection.execute("SELECT key, value FROM settings"))
                say(f"loaded {len(cache)}")
                while "stop" not in cache:
                    for notification in wait(connection):
                        refresh(connection, cache, notification.payload)
                return
        except psycopg.OperationalError:
            # What changed meanwhile nobody will tell: connect, and read all.
            pass


def wait(connection, timeout=None):
    """Wait for a notification, and return it with others that came along.

    While notifies() is running, the connection can do nothing else.
    """
    return list(connection.notifies(timeout=timeout, stop_after=1))


def refresh(connection, cache, key):
    row = connection.execute(
        "SELECT value FROM settings WHERE key = %s", (key,)
    ).fetchone()
    if row:
        cache[key] = row[0]
        say(f"{key} = {row[0]}")
    else:
        cache.pop(key, None)
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
