"""A job queue: the workers of a process share one client. Any number of processes can run.

    PINPOINT_DSN=postgresql:///shop python job_queue.py

Needs a table that is watched: CREATE TABLE jobs (id bigserial, payload text); SELECT pinpoint.watch('jobs').
Without pg_pinpoint on the server, a trigger of the table executes NOTIFY jobs instead.
Behind a pooler in transaction mode, each client holds a connection of the pool nearly all the time, in pinpoint.wait().
So make the pool larger than the number of clients, by the number of jobs that run at the same time.
To cancel the workers, use psycopg 3.3 or later: 3.2 does not end all tasks that are cancelled.
"""

import asyncio
import os

import pg_pinpoint
import psycopg

WORKERS = int(os.environ.get("WORKERS", 50))
# libpq waits for an answer without a limit if nobody closes the connection.
LIMITS = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30000}
TAKE = "DELETE FROM jobs WHERE id = (SELECT id FROM jobs ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING payload"


def wake_one(looks):
    if looks.empty():  # one look is enough for any number of events
        looks.put_nowait(None)


async def work(dsn, looks, do):
    while True:
        try:  # Statements are not prepared, because a pooler may change the session.
            async with await psycopg.AsyncConnection.connect(dsn, prepare_threshold=None, **LIMITS) as connection:
                while True:
                    await looks.get()
                    async with connection.transaction():
                        if job := await (await connection.execute(TAKE)).fetchone():
                            wake_one(looks)  # there may be more: they are for the other workers
                            await do(*job)
                    if job:
                        wake_one(looks)
        except (psycopg.OperationalError, psycopg.InternalError):  # the second one by PgBouncer, or a server that is read-only
            wake_one(looks)  # also a worker that waits with a lost connection: otherwise each would cost a second
            await asyncio.sleep(1)
            wake_one(looks)  # the server may still have held the job before


async def run(dsn, do):
    looks = asyncio.Queue()
    async with pg_pinpoint.Client(dsn) as client, client.subscribe("jobs") as events, asyncio.TaskGroup() as workers:
        for _ in range(WORKERS):
            workers.create_task(work(dsn, looks, do))
        while True:  # Without an event, look once a minute: another process may have ended in the middle of a job.
            async for _ in events.events(timeout=60, stop_after=1):
                pass
            wake_one(looks)


async def do(payload):
    print("done:", payload, flush=True)


if __name__ == "__main__":
    asyncio.run(run(os.environ.get("PINPOINT_DSN", ""), do))
