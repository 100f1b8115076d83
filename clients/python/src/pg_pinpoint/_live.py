"""Live queries: rows now, and again after each change."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Iterable

import psycopg
from psycopg import sql

from ._events import Disconnected, Event, LiveEvent, PinpointError, QueryError, Rows
from ._listener import Connection, cut, describe, discard, ignore, limit, server_of
from ._queue import Events

if TYPE_CHECKING:
    from ._client import Client
    from ._listener import Listener

CHANNELS_OF = "SELECT relation::text, channel::text FROM pinpoint.channels_of($1)"


class Live(Events[LiveEvent]):
    """The events of a live query, as an asynchronous iterator. A slow consumer gets the newest.

    It raises PinpointError if the live query cannot go on, or the client is closed.
    """

    def __init__(self, shared: LiveQuery):
        super().__init__()
        self.shared = shared
        self.latest: LiveEvent | None = None
        self.told: QueryError | None = None  # the last event, if it was an error
        shared.consumers.add(self)
        shared.refresh()  # rows that are at hand may be older than the call

    def put(self, event: LiveEvent) -> None:
        error = event if isinstance(event, QueryError) else None
        if error and error == self.told:
            return
        self.told, self.latest = error, event
        self.ready.set()

    def take(self) -> LiveEvent | None:
        event, self.latest = self.latest, None
        return event

    def close(self) -> None:
        """End the live query for this consumer, without an error. The last one also ends its execution."""
        self.end(StopAsyncIteration())
        self.shared.remove(self)


class LiveQuery:
    """One query that is executed for all its consumers. For the listener, it is a subscriber."""

    def __init__(self, client: Client, listener: Listener, key: Any, query: str, parameters: Any):
        self.client = client
        self.listener = listener
        self.key = key
        self.query = query
        self.parameters = parameters
        self.channels: set[str] = set()
        self.heard: set[str] = set()
        self.consumers: set[Live] = set()
        self.dirty = False
        self.signal = asyncio.Event()  # something has happened
        self.execution: asyncio.Task[Rows] | None = None
        self.connection: Connection | None = None  # of this execution
        listener.subscribers.add(self)
        self.task = client.start(self.run())

    def refresh(self) -> None:
        """Execute the query again."""
        self.dirty = True
        self.signal.set()

    def put(self, event: Event) -> None:
        if isinstance(event, Disconnected):
            self.tell(event)
        self.refresh()

    def put_changed(self, _: Iterable[str]) -> None:
        self.refresh()

    def remove(self, consumer: Live) -> None:
        self.consumers.discard(consumer)
        if not self.consumers:
            self.end(StopAsyncIteration())

    def end(self, error: BaseException) -> None:
        if self not in self.listener.subscribers:
            return
        self.listener.subscribers.discard(self)
        self.listener.changes.set()
        del self.client.live_queries[self.key]
        for consumer in self.consumers:
            consumer.end(error)
        self.interrupt()
        self.task.cancel()

    def interrupt(self) -> None:
        """The connection that listens is lost: what is executing may never end."""
        if self.connection:
            cut(self.connection)
        if self.execution:
            discard(self.execution)

    def tell(self, event: LiveEvent) -> None:
        for consumer in self.consumers:
            consumer.put(event)

    async def run(self) -> None:
        failures = 0
        while True:
            while not (self.dirty and self.listener.connected):
                self.signal.clear()
                await self.signal.wait()
            self.dirty = False  # what changes from now on is in another execution
            started = time.monotonic()
            connected = self.listener.connected
            event: LiveEvent | None = None
            self.execution = self.client.start(self.execute())
            await asyncio.wait({self.execution})
            try:
                event = self.execution.result()
                failures = 0
                pause = started + self.client.min_interval - time.monotonic()
            except (asyncio.CancelledError, Exception) as error:
                self.dirty = True
                failures += 1
                event = QueryError(describe(error), getattr(error, "sqlstate", None))
                pause = min(self.client.max_backoff, self.client.min_backoff * 2 ** min(failures, 30))
            # If the connection was lost meanwhile, Disconnected was told, and the rows may be from another server.
            if event and self.listener.connected is connected:
                self.tell(event)
            await asyncio.sleep(max(0, pause))

    async def execute(self) -> Rows:
        async with self.client.query_slots:
            connection = self.connection = self.client.idle.pop() if self.client.idle else await self.connect()
            healthy = False
            try:
                async with limit(connection, self.client.query_timeout):
                    await self.listen_to_tables(connection)
                    cursor = await psycopg.AsyncRawCursor(connection).execute(self.query, self.parameters, prepare=False)
                    rows = Rows(await cursor.fetchall(), tuple(c.name for c in cursor.description or ()))
                healthy = True
                return rows
            except (psycopg.Error, PinpointError):
                healthy = not connection.closed
                raise
            finally:
                self.connection = None
                if healthy and not connection.is_cut:
                    self.client.idle.append(connection)
                else:
                    connection.pgconn.finish()

    async def connect(self) -> Connection:
        """Connect to the server on which the client listens."""
        if self.listener.position is None:
            raise PinpointError("live queries need the extension pg_pinpoint 1.1 or later in this database", "0A000")
        connection = self.connection = await self.client.connect()
        connection.add_notify_handler(ignore)
        try:
            (position,) = await self.listener.fetch(connection, "SELECT pinpoint.position()")
            if server_of(position) != server_of(self.listener.position):
                raise PinpointError("the connection leads to another server than the one on which the client listens")
            return connection
        except BaseException:
            self.connection = None
            connection.pgconn.finish()
            raise

    async def listen_to_tables(self, connection: Connection) -> None:
        """Listen on the channels of the tables that the query reads, before it is executed."""
        cursor = await psycopg.AsyncRawCursor(connection).execute(CHANNELS_OF, (self.query,), prepare=False)
        tables = await cursor.fetchall()
        for table, channel in tables:
            if channel is None:
                statement = f"SELECT pinpoint.watch({sql.Literal(table).as_string(connection)})"
                raise PinpointError(f'the table "{table}" is not watched: execute {statement}', "55000")
        channels = {channel for _, channel in tables}
        if channels != self.channels:
            self.channels = channels
            self.heard &= channels
            self.listener.changes.set()
        while not self.channels <= self.heard:
            self.signal.clear()
            await self.signal.wait()
