"""What the tests have in common. PINPOINT_DSN: a server with pg_pinpoint; without it, its tests are skipped."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

FAKE_SERVER = Path(__file__).resolve().parents[2] / "conformance" / "fake_server.py"
MANAGED = FAKE_SERVER.parents[2] / "managed" / "pinpoint.sql"
DEADLINE = 60  # seconds, for what takes a moment on a machine that is not busy


@pytest.fixture
def dsn():
    if "PINPOINT_DSN" not in os.environ:
        pytest.skip("PINPOINT_DSN is not set")
    return os.environ["PINPOINT_DSN"]


@pytest.fixture
def server(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def fake_server():
    """Starts the fake server with a script, and returns its connection string."""
    programs = []

    def start(script):
        programs.append(subprocess.Popen([sys.executable, FAKE_SERVER, script], text=True, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE))
        return f"host=127.0.0.1 port={programs[-1].stdout.readline().strip()} user=u dbname=d sslmode=disable"
    yield start
    for program in programs:
        program.communicate()


@pytest.fixture
def run():
    """Run a coroutine with a deadline."""
    return lambda work: asyncio.run(asyncio.wait_for(work, DEADLINE))


async def event_of(consumer, kind):
    """The next event of this class."""
    async for event in consumer:
        if isinstance(event, kind):
            return event
