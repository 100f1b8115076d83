"""A worker of a job queue, over the Python package.

    python worker.py

Any number of workers can run. Through a pooler in transaction mode, each of them holds one of its
connections while it waits, and needs another one for its jobs: make the pool larger than the number
of workers. DATABASE_URL names the database, which has ../schema.sql.
"""

import contextlib
import os
import queue
import threading
import time

import pg_pinpoint
import psycopg
from pg_pinpoint import Changed, Notification

URL = os.environ["DATABASE_URL"]

# A worker also looks for jobs after so many seconds without a notification, because another
# worker may have ended in the middle of a job.
LOOK_AGAIN = 60

# After so many seconds, if its own connection has failed.
RETRY = 1

# libpq waits for an answer without limit, if nobody closes the connection.
LIMITS = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30000}


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
            "UPDATE jobs SET result = %s, worker = pg_backend_pid() WHERE id = %s", (job[1].upper(), job[0]))
        return job[1]


def work():
    """Do jobs until one says "stop". Returns how many were done."""
    done = 0
    look = queue.Queue(maxsize=1)
    final = []  # the error that has ended the client

    def look_soon():
        with contextlib.suppress(queue.Full):  # one look is enough for any number of notifications
            look.put_nowait(None)

    def listen(events):
        try:
            for event in events:
                if isinstance(event, (Changed, Notification)):
                    look_soon()
        except pg_pinpoint.PinpointError as error:
            final.append(error)
            look_soon()

    with pg_pinpoint.blocking.Client(URL) as client, client.subscribe("job_added") as events:
        threading.Thread(target=listen, args=(events,), daemon=True).start()
        while True:
            try:
                look.get(timeout=LOOK_AGAIN)
            except queue.Empty:
                pass
            if final:
                raise final[0]
            try:
                # The statements of a session are not prepared, because a pooler may change the session.
                with psycopg.connect(URL, autocommit=True, prepare_threshold=None, **LIMITS) as connection:
                    while (payload := take_job(connection)) is not None:
                        if payload == "stop":
                            return done
                        done += 1
            except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
                # The client may still be connected: then it gives no Changed.
                time.sleep(RETRY)
                look_soon()


if __name__ == "__main__":
    print(f"done {work()}", flush=True)
