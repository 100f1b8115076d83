"""A worker of a job queue behind a pooler in transaction mode, such as PgBouncer.

    python pooled_worker.py

LISTEN does not work there: each transaction may run in another session. So the
worker asks once a second whether somebody has notified, which reads no table, and
looks for jobs only then.

DATABASE_URL names the database at the pooler. It has ../schema.sql and the extension
pg_pinpoint.
"""

import time

import psycopg

from example import LOOK_AGAIN, URL, say, take_job

POLL_EVERY = 1  # seconds

CHANGED_SINCE = "SELECT changed, position FROM pinpoint.changed_since(%s, 'job_added')"


def work():
    """Do jobs until one says "stop"."""
    position, looked, done = None, 0, 0
    while True:
        try:
            # The statements of a session are prepared, and the session may change.
            with psycopg.connect(URL, autocommit=True, prepare_threshold=None) as connection:
                while True:
                    if time.monotonic() - looked > LOOK_AGAIN:
                        position = None  # a job may have been given up by another worker
                    # First the position, then the table, in another statement.
                    changed, now = connection.execute(CHANGED_SINCE, (position,)).fetchone()
                    if changed:
                        looked = time.monotonic()
                        while payload := take_job(connection):
                            if payload == "stop":
                                say(f"done {done}")
                                return
                            done += 1
                    # Only now: the work up to there is done.
                    position = now
                    time.sleep(POLL_EVERY)
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
            # The connection was lost, or leads to a standby that is not promoted yet.
            time.sleep(POLL_EVERY)


if __name__ == "__main__":
    work()
