"""A cache that PostgreSQL keeps up to date, and a worker of a job queue.

    python example.py cache | worker

DATABASE_URL names the database, which has ../schema.sql.
"""

import asyncio
import os
import sys

import asyncpg

URL = os.environ["DATABASE_URL"]

# A worker looks again after so many seconds, whatever it was told: a job may have
# been given up by another worker.
LOOK_AGAIN = 60

# In place of a payload: the connection has ended.
LOST = object()


def say(text):
    print(text, flush=True)


async def listen(channel):
    """Connect and LISTEN; return the connection and a queue of payloads."""
    connection = await asyncpg.connect(URL)
    told = asyncio.Queue()
    connection.add_termination_listener(lambda _: told.put_nowait(LOST))
    await connection.add_listener(
        channel, lambda _connection, _pid, _channel, payload: told.put_nowait(payload)
    )
    return connection, told


async def keep_cache():
    """Keep a copy of the settings until there is one with the name "stop"."""
    while True:
        try:
            # First LISTEN, then read: what changes in between is told.
            connection, told = await listen("setting_changed")
            rows = await connection.fetch("SELECT key, value FROM settings")
            cache = dict(rows)
            say(f"loaded {len(cache)}")
            while (key := await told.get()) is not LOST:
                await refresh(connection, cache, key)
                if "stop" in cache:
                    await connection.close()
                    return
        except (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError,
                asyncpg.OperatorInterventionError):
            pass
        # What changed meanwhile nobody will tell: connect, and read all.


async def refresh(connection, cache, key):
    value = await connection.fetchval("SELECT value FROM settings WHERE key = $1", key)
    if value is not None:
        cache[key] = value
        say(f"{key} = {value}")
    else:
        cache.pop(key, None)
        say(f"{key} gone")


async def work():
    """Do jobs until one says "stop"."""
    done = 0
    connection, told = await listen("job_added")
    say("ready")
    while True:
        while payload := await take_job(connection):
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
