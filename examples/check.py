"""Run one of the examples against a server, and see that it does what it should.

    check.py HOST PORT COMMAND...

The command, with "cache" or "worker" after it, is the example; the server has a
database "postgres" and lets the user "postgres" in. What is printed is the same
whatever the server, or the example, so that outcomes can be compared.
"""

import argparse
import collections
import contextlib
import os
import queue
import subprocess
import sys
import threading
import time

SCHEMA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schema.sql")
DEADLINE = 60
WORKERS = 3
JOBS = 200


class Failed(Exception):
    """The example does not do what it should; the text says what."""


def psql(*arguments):
    """Run psql and return the lines that it prints. The server is in the environment."""
    result = subprocess.run(
        ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", *arguments],
        stdout=subprocess.PIPE, text=True, check=True,
    )
    return result.stdout.splitlines()


def sql(text):
    """Run SQL, each statement its own transaction; return the lines of rows."""
    return psql("-c", text)


class Example:
    """A run of the example, and the lines that it prints. As a context, it ends with it."""

    def __init__(self, command, mode):
        self.process = subprocess.Popen([*command, mode], stdout=subprocess.PIPE, text=True, bufsize=1)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def line(self):
        """The next line; None at the end of the output."""
        try:
            return self.lines.get(timeout=DEADLINE)
        except queue.Empty:
            raise Failed(f"no line within {DEADLINE} seconds") from None

    def expect(self, *expected):
        for line in expected:
            got = self.line()
            print(got)
            if got != line:
                raise Failed(f'"{line}" expected')

    def end(self):
        if self.line() is not None:
            raise Failed("more output")
        if self.process.wait(DEADLINE) != 0:
            raise Failed(f"exit code {self.process.returncode}")


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"not so within {DEADLINE} seconds")
        time.sleep(0.02)


def check_cache(command):
    sql("INSERT INTO settings VALUES ('a', '1'), ('b', '2')")
    with Example(command, "cache") as cache:
        cache.expect("loaded 2", "a = 1", "b = 2")
        sql("UPDATE settings SET value = '3' WHERE key = 'a'")
        cache.expect("a = 3")
        sql("INSERT INTO settings VALUES ('c', '4')")
        cache.expect("c = 4")
        sql("DELETE FROM settings WHERE key = 'b'")
        cache.expect("b gone")

        # what is rolled back is not told; one transaction is, in its order
        sql("BEGIN; UPDATE settings SET value = 'never'; ROLLBACK")
        sql("BEGIN; UPDATE settings SET value = '5' WHERE key = 'c';"
            " UPDATE settings SET value = '6' WHERE key = 'a'; COMMIT")
        cache.expect("c = 5", "a = 6")

        # The connection is lost: connect, LISTEN, and read again.  Where there is one for
        # LISTEN only, that is the one.
        sql("WITH sessions AS (SELECT pid, query ~* '^listen' AS listens FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend')"
            " SELECT pg_terminate_backend(pid) FROM sessions"
            " WHERE listens = (SELECT bool_or(listens) FROM sessions)")
        cache.expect("loaded 2", "a = 6", "c = 5")
        sql("UPDATE settings SET value = '7' WHERE key = 'a'")
        cache.expect("a = 7")
        sql("INSERT INTO settings VALUES ('stop', 'now')")
        cache.expect("stop = now")
        cache.end()


def no_job_is_left():
    return sql("SELECT count(*) FROM jobs WHERE result IS NULL") == ["0"]


def check_workers(command):
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Example(command, "worker")) for _ in range(WORKERS)]
        for worker in workers:
            worker.expect("ready")

        # one job, and all are idle again before the next comes
        for number in range(5):
            sql(f"INSERT INTO jobs (payload) VALUES ('single {number}')")
            wait_until(no_job_is_left)

        # many at once, a few in each transaction
        for number in range(0, JOBS, 10):
            sql("INSERT INTO jobs (payload)"
                f" SELECT 'job ' || n FROM generate_series({number}, {number + 9}) n")
        wait_until(no_job_is_left)
        sql(f"INSERT INTO jobs (payload) SELECT 'stop' FROM generate_series(1, {WORKERS})")

        done = 0
        for worker in workers:
            word, count = (worker.line() or "nothing 0").split()
            if word != "done":
                raise Failed("a worker did not end as it should")
            done += int(count)
            worker.end()
    rows = sql("SELECT payload, result = upper(payload) FROM jobs ORDER BY id")
    results = collections.Counter(row.rsplit("|", 1)[1] for row in rows)
    print(f"{done} jobs done, results: {dict(results)}")
    if done != JOBS + 5 or results != {"t": JOBS + 5 + WORKERS}:
        raise Failed("not every job was done once")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("host", metavar="HOST", help="of the server")
    parser.add_argument("port", metavar="PORT", help="of the server")
    parser.add_argument("command", metavar="COMMAND", nargs="+", help="the example, and its arguments")
    options = parser.parse_args()
    os.environ.update(
        DATABASE_URL=f"postgresql://postgres@{options.host}:{options.port}/postgres?sslmode=disable",
        PGHOST=options.host, PGPORT=options.port, PGUSER="postgres", PGDATABASE="postgres")
    psql("-f", SCHEMA)
    try:
        check_cache(options.command)
        check_workers(options.command)
    except Failed as failed:
        print(f"failed: {failed}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
