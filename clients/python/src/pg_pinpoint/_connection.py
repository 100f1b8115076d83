"""Connections, which can be cut at any time, and the pool of those for live queries."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Collection
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from ._errors import ConnectionLost
from ._options import Options


class Connection(psycopg.AsyncConnection[Any]):
    is_cut = False

    async def cancel_safe(self, *, timeout: float = 30.0) -> None:
        """Psycopg calls it for each task that is canceled, and then waits for the server, which may be silent."""
        self.cut()

    async def cancel_statement(self, seconds: float) -> None:
        await super().cancel_safe(timeout=seconds)

    def cut(self) -> None:
        """Close it, so that pending calls fail."""
        self.is_cut = True
        with contextlib.suppress(psycopg.Error, OSError), socket.fromfd(
                self.pgconn.socket, socket.AF_INET, socket.SOCK_STREAM) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)

    @contextlib.asynccontextmanager
    async def limit(self, seconds: float | None) -> AsyncIterator[None]:
        """Time for the server to answer. Not with a cancellation, for which psycopg waits for the server."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, self.cut) if seconds is not None else None
        try:
            yield
        except psycopg.Error:
            if timer and timer.when() <= loop.time():
                raise ConnectionLost("the server does not answer") from None
            raise
        finally:
            if timer:
                timer.cancel()

    async def fetch(self, seconds: float, query: Any, parameters: Any = None) -> Any:
        """Execute a query at READ COMMITTED, which the functions need, and return its row."""
        async with self.limit(seconds):
            await self.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            row = await (await self.execute(query, parameters, prepare=False)).fetchone()
            await self.execute("COMMIT")
        return row


class Connections:
    """All connections of a client."""

    def __init__(self, options: Options):
        self.options = options
        self.idle: list[Connection] = []  # for live queries
        self.slots = asyncio.Semaphore(options.query_connections)

    async def connect(self) -> Connection:
        return await Connection.connect(**self.options.connect, autocommit=True)

    def give_back(self, connection: Connection) -> None:
        """The end of an execution, which may have failed."""
        if not connection.is_cut and connection.info.transaction_status is TransactionStatus.IDLE:
            self.idle.append(connection)
        else:
            connection.pgconn.finish()

    def drop_idle(self) -> None:
        for connection in self.idle:
            connection.pgconn.finish()
        self.idle.clear()


def server_of(position: str | None) -> list[str] | None:
    """The part of a position that tells the server."""
    return position.split("-")[:2] if position else None


def discard(task: asyncio.Future[Any]) -> None:
    """Cancel a task whose result is not used, also if it is an error."""
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    task.cancel()


async def cancel_all(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks until they have ended: asyncio.wait_for(), which psycopg 3.2 uses, swallows some cancellations before
    Python 3.12."""
    while tasks:
        for task in tasks:
            task.cancel()
        done, tasks = await asyncio.wait(tasks, timeout=0.1)
        for task in done:
            _ = task.cancelled() or task.exception()  # otherwise it would be reported


def ignore(_: object) -> None:
    """Discard a notification: a pooler also delivers those of its other clients, and they would be collected."""
