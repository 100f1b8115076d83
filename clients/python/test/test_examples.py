"""The program of the README and the recipes, with a server in PINPOINT_DSN whose sessions are terminated meanwhile."""

import asyncio
import contextlib
import importlib.util
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import pg_pinpoint
from conftest import DEADLINE

PACKAGE = Path(__file__).resolve().parents[1]
RECIPES = PACKAGE.parents[1] / "examples" / "python-recipes"
VARIABLES = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE", "password": "PGPASSWORD"}


def end_sessions(server):
    server.execute("SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE datname = current_database()"
                   " AND backend_type = 'client backend' AND pid <> pg_backend_pid()")


def environment(dsn):
    given = conninfo_to_dict(dsn)
    return {**os.environ, "PINPOINT_DSN": dsn, "PYTHONPATH": str(PACKAGE / "src"), "PYTHONUNBUFFERED": "1",
            **{VARIABLES[name]: str(value) for name, value in given.items() if name in VARIABLES}}


@contextlib.contextmanager
def program(dsn, *arguments, **variables):
    process = subprocess.Popen([sys.executable, *arguments], env={**environment(dsn), **variables}, text=True,
                               stdout=subprocess.PIPE)
    deadline = threading.Timer(DEADLINE, process.kill)  # then its output ends
    deadline.start()
    try:
        yield process
    finally:
        deadline.cancel()
        process.kill()
        process.communicate()


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE} seconds"
        time.sleep(0.01)


def test_program_of_the_readme(dsn, server):
    text = re.search(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.S)[1]
    with program(dsn, "-c", text) as process:
        assert process.stdout.readline() == "connected: push\n"
        assert process.stdout.readline() == "read your tables: orders\n"
        server.execute("NOTIFY orders, 'hello'")
        assert process.stdout.readline() == "read your tables: orders hello\n"
        end_sessions(server)
        assert "connected: push\n" in process.stdout


def test_server_sent_events(dsn, server):
    server.execute("DROP TABLE IF EXISTS orders")
    server.execute("CREATE TABLE orders (id int, total int)")
    server.execute("SELECT pinpoint.watch('orders')")
    query = "SELECT count(*) FROM pinpoint.stat_channels WHERE channel LIKE '%orders%'"

    def until(lines, wanted):
        while next(lines).strip() != wanted:  # the program ends at the deadline
            pass
    with program(dsn, str(RECIPES / "server_sent_events.py"), PORT="0") as process:
        port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\n", process.stdout.readline())[1])
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with browser.makefile() as lines:
                until(lines, "data: []")
                server.execute("INSERT INTO orders VALUES (1, 10)")
                until(lines, "data: [[1, 10]]")
                end_sessions(server)
                until(lines, "event: stale")
                server.execute("INSERT INTO orders VALUES (2, 20)")
                until(lines, "data: [[1, 10], [2, 20]]")
        wait_until(lambda: server.execute(query).fetchone() == (0,))  # the query ends with the request


def recipe(name):
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pooler(server):
    """A PgBouncer in transaction mode before the server. Its pool has place for a client and 50 workers."""
    command = shutil.which("pgbouncer", path="/usr/sbin:" + os.environ["PATH"])
    if not command:
        pytest.skip("there is no PgBouncer")
    own = {}
    if os.getuid() == 0:  # which it refuses; the owner of a private TMPDIR can reach the folder
        user = pwd.getpwuid(os.stat(tempfile.gettempdir()).st_uid)
        user = user if user.pw_uid else pwd.getpwnam("nobody")
        own = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    target = server.info
    password = f"password='{target.password}'" if target.password else ""
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/pgbouncer.ini", "w") as config:
        config.write(f"[databases]\n* = host={target.host} port={target.port} user={target.user} {password}\n"
                     f"[pgbouncer]\nunix_socket_dir = {folder}\nauth_type = any\npool_mode = transaction\n"
                     "default_pool_size = 55\n")
        config.flush()
        os.chmod(folder, 0o777)
        os.chmod(config.name, 0o644)
        process = subprocess.Popen([command, "-q", config.name], stderr=subprocess.DEVNULL, **own)
        try:
            wait_until(lambda: process.poll() is not None or os.path.exists(f"{folder}/.s.PGSQL.6432"))
            assert process.poll() is None, "PgBouncer does not start"
            yield f"host={folder} port=6432 user=u dbname={target.dbname}"
        finally:
            process.kill()
            process.wait()


@pytest.mark.skipif(psycopg.__version__ < "3.3", reason="psycopg 3.2 does not end all tasks that are cancelled")
@pytest.mark.parametrize("through", ["dsn", "pooler"])
def test_job_queue(server, run, request, through):
    dsn = request.getfixturevalue(through)
    server.execute("DROP TABLE IF EXISTS jobs")
    server.execute("CREATE TABLE jobs (id bigserial, payload text)")
    server.execute("SELECT pinpoint.watch('jobs')")
    done, running = set(), 0

    async def work():
        all_run = asyncio.Event()

        async def do(payload):
            nonlocal running
            running += 1
            if running == 50:
                all_run.set()
            await all_run.wait()
            await asyncio.sleep(0.05)
            running -= 1
            done.add(payload)

        queue = asyncio.create_task(recipe("job_queue").run(dsn, do))

        async def until_done(number):
            while len(done) < number:
                assert not queue.done(), queue.result()
                await asyncio.sleep(0.01)
        for first in 0, 200, 400:
            await asyncio.to_thread(server.execute, "INSERT INTO jobs (payload)"
                                    f" SELECT n::text FROM generate_series({first}, {first + 199}) n")
            if first == 200:
                await until_done(first + 1)
                await asyncio.to_thread(end_sessions, server)  # the jobs that are running are done again
            await until_done(first + 200)
        # All 50 workers wait with connections that are lost. One after the other would take 10 to 50 seconds.
        await asyncio.to_thread(end_sessions, server)
        ended = time.monotonic()
        await asyncio.to_thread(server.execute, "INSERT INTO jobs (payload) VALUES ('600')")
        await until_done(601)
        assert time.monotonic() - ended < 8
        queue.cancel()
        await asyncio.wait({queue})
    run(work())
    assert done == {str(number) for number in range(601)}
    assert server.execute("SELECT count(*) FROM jobs").fetchone() == (0,)


def test_cache(dsn, server, run):
    module = recipe("cache")
    server.execute("DROP TABLE IF EXISTS prices")
    server.execute("CREATE TABLE prices AS SELECT 0 AS price")
    server.execute("SELECT pinpoint.watch('prices')")
    reads = 0

    async def work():
        async def read(_):
            nonlocal reads
            reads += 1
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                return (await (await connection.execute("SELECT price FROM prices")).fetchone())[0]

        async def until(condition):
            while not await condition():
                await asyncio.sleep(0.01)

        async def cached():
            before = reads
            await cache.get("prices")
            return reads == before
        async with pg_pinpoint.Client(dsn, min_backoff=0.01) as client:
            cache = module.Cache(client, read)
            following = asyncio.create_task(cache.follow())
            for price in range(1, 20):
                await until(cached)
                server.execute(f"UPDATE prices SET price = {price}")
                if price % 5 == 0:
                    await asyncio.to_thread(end_sessions, server)

                async def is_new():
                    return await cache.get("prices") == price
                await until(is_new)
                await until(cached)
                assert await cache.get("prices") == price
        try:
            await following
        except pg_pinpoint.PinpointError:
            assert not cache.connected
    run(work())
