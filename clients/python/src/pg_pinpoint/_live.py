"""Live queries: rows now, and again after each change."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from ._events import LiveEvent, PinpointError, QueryError, Rows

if TYPE_CHECKING:
    from ._client import Client, Live, Subscription

CHANNELS_OF = "SELECT relation::text, channel::text FROM pinpoint.channels_of($1)"


class OtherServer(Exception):
    """A connection for queries leads to another server than the one that is listened to."""


class LiveQuery:
    """One query that is executed for all its consumers."""

    def __init__(self, client: Client, key: Any, query: str, parameters: Any):
        self.client = client
        self.key = key
        self.query = query
        self.parameters = parameters
        self.consumers: set[Live] = set()
        self.dirty = asyncio.Event()
        self.subscription: Subscription = client.subscribe()
        self.execution: asyncio.Task[Rows] | None = None
        self.task = asyncio.create_task(self.run())

    def add(self, consumer: Live) -> None:
        self.consumers.add(consumer)
        self.dirty.set()  # rows that are at hand may be older than the call

    def remove(self, consumer: Live) -> None:
        self.consumers.discard(consumer)
        if not self.consumers and self.client.live_queries.pop(self.key, None):
            self.subscription.close()
            self.task.cancel()

    def fail(self, error: PinpointError) -> None:
        for consumer in self.consumers:
            consumer.end(error)

    def interrupt(self) -> None:
        """The connection that listens is lost: what is executing may never end."""
        if self.execution:
            self.execution.cancel()

    def tell(self, event: LiveEvent) -> None:
        for consumer in self.consumers:
            consumer.put(event)

    async def run(self) -> None:
        watcher = asyncio.create_task(self.watch())
        failures = 0
        last_error = None
        try:
            while True:
                await self.dirty.wait()
                await self.subscription.listener.ready.wait()
                self.dirty.clear()  # what changes from now on is in another execution
                started = time.monotonic()
                self.execution = asyncio.create_task(self.execute())
                try:
                    await asyncio.wait({self.execution})
                    rows = self.execution.result()
                    self.tell(rows)
                    failures, last_error = 0, None
                    await asyncio.sleep(max(0, started + self.client.min_interval - time.monotonic()))
                except (asyncio.CancelledError, psycopg.Error, OSError, OtherServer, PinpointError, TimeoutError) as error:
                    if isinstance(error, asyncio.CancelledError) and not self.execution.cancelled():
                        raise
                    self.dirty.set()
                    failures += 1
                    if isinstance(error, (psycopg.Error, PinpointError)) and error.sqlstate and str(error) != last_error:
                        last_error = str(error)
                        self.tell(QueryError(last_error, error.sqlstate))
                    await asyncio.sleep(min(self.client.max_backoff, self.client.min_backoff * 2 ** min(failures, 30)))
                finally:
                    self.execution.cancel()
        finally:
            watcher.cancel()

    async def watch(self) -> None:
        async for _ in self.subscription:
            self.dirty.set()

    async def execute(self) -> Rows:
        async with self.client.query_slots:
            generation = self.client.generation
            connection = self.client.idle.pop() if self.client.idle else await self.connect()
            healthy = False
            try:
                async with asyncio.timeout(self.client.query_timeout):
                    await self.listen_to_tables(connection)
                    cursor = await psycopg.AsyncRawCursor(connection).execute(self.query, self.parameters, prepare=False)
                    rows = Rows(await cursor.fetchall(), tuple(c.name for c in cursor.description or ()))
                healthy = True
                return rows
            except psycopg.Error:
                healthy = not connection.closed
                raise
            finally:
                if healthy and generation == self.client.generation:
                    self.client.idle.append(connection)
                else:
                    connection.pgconn.finish()

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        """Connect to the server whose changes are heard."""
        listener = self.subscription.listener
        connection = await self.client.connect()
        try:
            if listener.position is None:
                raise PinpointError("live queries need the extension pg_pinpoint 1.1 or later in this database", "0A000")
            (position,) = await listener.fetch(connection, "SELECT pinpoint.position()")
            if position.split("-")[:2] != listener.position.split("-")[:2]:
                raise OtherServer
            return connection
        except BaseException:
            connection.pgconn.finish()
            raise

    async def listen_to_tables(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Listen on the channels of the tables that the query reads, before it is executed."""
        cursor = await psycopg.AsyncRawCursor(connection).execute(CHANNELS_OF, (self.query,), prepare=False)
        tables = await cursor.fetchall()
        for table, channel in tables:
            if channel is None:
                statement = f"SELECT pinpoint.watch({sql.Literal(table).as_string(connection)})"
                raise PinpointError(f'the table "{table}" is not watched: execute {statement}', "55000")
        channels = {channel for _, channel in tables}
        self.subscription.remove(*self.subscription.channels - channels)
        self.subscription.add(*channels - self.subscription.channels)
        while not channels <= self.subscription.heard:
            self.subscription.told.clear()
            await self.subscription.told.wait()
