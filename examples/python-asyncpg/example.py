"""A cache that PostgreSQL keeps up to date, and a worker of a job queue.

    python example.py cache | worker

DATABASE_URL names the database, which has ../schema.sql.
"""

import asyncio
import os
import sys

import asyncpg

URL = os.environ["DATABASE_URL"]

# A worker also looks for jobs after so many seconds without a notification, because
# another worker may have given up a job.
LOOK_AGAIN = 60

# Seconds until an attempt to connect or a query is given up, and before the next
# attempt to connect.
TIMEOUT = 10
RECONNECT_AFTER = 0.2

# In milliseconds; 0 is never. Without pg_pinpoint there is no row.
HEARTBEAT_INTERVAL = """
    SELECT setting::int FROM pg_settings
     WHERE name = 'pinpoint.heartbeat_interval'
       AND to_regproc('pinpoint.changed_since') IS NOT NULL"""
CHANGED_SINCE = """
    SELECT changed, position FROM pinpoint.changed_since($1, 'setting_changed')"""

# InternalClientError is of a query between the server's last message and its disconnection,
# SerializationError of a query that conflicts with the replay of a standby.
LOST_CONNECTION = (
    OSError, asyncio.TimeoutError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError,
    asyncpg.InsufficientResourcesError, asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError, asyncpg.SerializationError,
)

# In place of a notification: the connection has ended.
LOST = object()


def say(text):
    print(text, flush=True)


async def listen(*channels):
    """Connect and LISTEN; return the connection and a queue of (channel, payload)."""
    connection = await asyncpg.connect(URL, timeout=TIMEOUT, command_timeout=TIMEOUT)
    told = asyncio.Queue()
    connection.add_termination_listener(lambda _: told.put_nowait(LOST))
    for channel in channels:
        await connection.add_listener(
            channel, lambda _connection, _pid, *notification: told.put_nowait(notification)
        )
    return connection, told


class Cache:
    """A copy of the settings, and the position up to which it is right."""

    def __init__(self):
        self.rows = {}
        self.position = None


async def keep_cache():
    """Keep a copy of the settings until there is one with the name "stop"."""
    cache = Cache()
    while "stop" not in cache.rows:
        try:
            # First LISTEN, then look: what changes in between is told.
            connection, told = await listen("pinpoint_heartbeat", "setting_changed")
            try:
                await follow(connection, told, cache)
            finally:
                connection.terminate()
        except asyncpg.InvalidTextRepresentationError:
            cache.position = None  # a session has notified on the channel of heartbeats
        except LOST_CONNECTION:
            await asyncio.sleep(RECONNECT_AFTER)


async def follow(connection, told, cache):
    """Keep the cache right until there is a "stop", or no heartbeat any more."""
    interval = await connection.fetchval(HEARTBEAT_INTERVAL)
    if interval is not None:
        changed, position = await connection.fetchrow(CHANGED_SINCE, cache.position)
    else:
        changed, position = ["setting_changed"], None  # stock PostgreSQL does not know
    if changed:
        await load(connection, cache)
    else:
        say("nothing missed")
    cache.position = position

    silence = 3 * interval / 1000 if interval else None
    while "stop" not in cache.rows:
        notification = await asyncio.wait_for(told.get(), silence)
        if notification is LOST:
            return
        channel, payload = notification
        if channel == "pinpoint_heartbeat":
            cache.position = payload.split(" ")[0]
        else:
            await refresh(connection, cache.rows, payload)


async def load(connection, cache):
    cache.rows = dict(await connection.fetch("SELECT key, value FROM settings ORDER BY key"))
    say(f"loaded {len(cache.rows)}")
    for key, value in cache.rows.items():
        say(f"{key} = {value}")


async def refresh(connection, rows, key):
    value = await connection.fetchval("SELECT value FROM settings WHERE key = $1", key)
    if value is not None:
        rows[key] = value
        say(f"{key} = {value}")
    else:
        rows.pop(key, None)
        say(f"{key} gone")


async def work():
    """Do jobs until one says "stop"."""
    done = 0
    connection, told = await listen("job_added")
    say("ready")
    while True:
        while (payload := await take_job(connection)) is not None:
            if payload == "stop":
                await connection.close()
                say(f"done {done}")
                return
            done += 1
        try:
            if await asyncio.wait_for(told.get(), LOOK_AGAIN) is LOST:
                sys.exit("the connection was lost")
        except asyncio.TimeoutError:
            pass


async def take_job(connection):
    """Do one job, which nobody else does meanwhile, and return its payload."""
    async with connection.transaction():
        job = await connection.fetchrow(
            "SELECT id, payload FROM jobs WHERE result IS NULL"
            " ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1"
        )
        if not job:
            return None
        await connection.execute(
            "UPDATE jobs SET result = $1, worker = pg_backend_pid() WHERE id = $2",
            job["payload"].upper(),
            job["id"],
        )
        return job["payload"]


if __name__ == "__main__":
    asyncio.run({"cache": keep_cache, "worker": work}[sys.argv[1]]())
