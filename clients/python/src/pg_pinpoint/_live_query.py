"""Live queries: rows now, and again after each change."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import time
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import BaseRowFactory

from ._backoff import backoff
from ._connection import Connection, discard, ignore, server_of
from ._consumer import Consumer
from ._errors import OTHER_SERVER, PinpointError, describe, sqlstate_of
from ._events import Disconnected, Event, LiveEvent, QueryError, Row, Rows
from ._listener import OWN_SESSION, Listener
from ._queue import Newest, logger

CHANNELS_OF = "SELECT relation::text, channel::text FROM pinpoint.channels_of($1)"
POSITION = f"SELECT pinpoint.position(), {OWN_SESSION}"


class Live(Consumer[LiveEvent[Row]]):
    """The events of a live query, as an asynchronous iterator. A slow consumer gets the newest.

    It raises PinpointError if the live query cannot go on, or the client is closed.
    """

    def __init__(self, owner: object, listener: Listener, query: str, parameters: Sequence[Any] | None,
                 row_factory: BaseRowFactory[Row]):
        if not isinstance(parameters, (list, tuple, type(None))):
            raise TypeError(f"the parameters have to be a list or a tuple, but are of type {type(parameters).__name__}")
        listener.ensure()
        values = None if parameters is None else list(parameters)
        try:
            key: Any = (query, row_factory, identity(values))
        except TypeError:
            key = object()  # not shared
        shared = listener.live.get(key) or LiveQuery(listener, key, query, values, row_factory)
        queue = Newest(listener.stats)
        super().__init__(owner, listener, queue, partial(shared.remove, queue))
        shared.consumers.add(queue)
        current = listener.current()
        if failure := current if isinstance(current, Disconnected) else shared.failure:
            queue.put(failure)
        shared.refresh()  # rows that are at hand may be older than the call


class LiveQuery:
    """One query that is executed for all its consumers. For the listener, it is a subscriber."""

    def __init__(self, listener: Listener, key: Any, query: str, parameters: list[Any] | None,
                 row_factory: BaseRowFactory[Any]):
        self.listener = listener
        self.options = listener.options
        self.key = key
        self.query: Any = query  # psycopg wants a literal
        self.parameters = parameters
        self.row_factory = row_factory
        self.consumers: set[Newest] = set()
        self.failure: QueryError | None = None  # the last event, if it was one
        self.dirty = False
        self.signal = asyncio.Event()  # something has happened
        self.execution: asyncio.Task[Rows[Any]] | None = None
        listener.live[key] = self
        listener.index.join(self)
        self.task = listener.start(self.run(), self.end)

    def refresh(self) -> None:
        """Execute the query again."""
        self.dirty = True
        self.signal.set()

    def put(self, event: Event) -> None:
        if isinstance(event, Disconnected):
            self.interrupt()
            self.tell(event)
        self.refresh()

    def put_changed(self, _: Iterable[str]) -> None:
        self.refresh()

    def remove(self, consumer: Newest) -> None:
        self.consumers.discard(consumer)
        if not self.consumers:
            self.end(StopAsyncIteration())

    def end(self, error: BaseException) -> None:
        if self.listener.live.get(self.key) is not self:
            return
        del self.listener.live[self.key]
        self.listener.index.leave(self)
        for consumer in self.consumers:
            consumer.end(error)
        self.interrupt()
        self.task.cancel()

    def interrupt(self) -> None:
        """End what is executing, with its connection, as the server may be silent."""
        if self.execution:
            discard(self.execution)

    def tell(self, event: LiveEvent[Any]) -> None:
        self.failure = event if isinstance(event, QueryError) else None
        for consumer in self.consumers:
            consumer.put(event)

    async def run(self) -> None:
        failures = 0
        while True:
            while not (self.dirty and self.listener.connected):
                self.signal.clear()
                await self.signal.wait()
            started = time.monotonic()
            connected = self.listener.connected
            event: LiveEvent[Any]
            self.execution = self.listener.start(self.execute())
            await asyncio.wait({self.execution})
            try:
                event = self.execution.result()
                failures = 0
                pause = started + self.options.min_interval - time.monotonic()
            except (asyncio.CancelledError, Exception) as error:
                self.dirty = True
                failures += 1
                event = QueryError(describe(error), sqlstate_of(error))
                pause = backoff(failures, self.options.min_backoff, self.options.max_backoff)
                if failures == 1 and not isinstance(error, asyncio.CancelledError):
                    # The message may have values of parameters. Other exceptions are those of a row factory, or faults.
                    logger.warning("a live query has failed, SQLSTATE %s; the next attempt is in %.2f s: %s", event.sqlstate,
                                   pause, self.query, exc_info=not isinstance(error, (psycopg.Error, PinpointError)))
            # If the connection was lost meanwhile, Disconnected was told, and the rows may be from another server.
            if self.listener.connected is connected:
                self.tell(event)
            await asyncio.sleep(max(0, pause))

    async def execute(self) -> Rows[Any]:
        """Execute the query after its channels are listened on. It occupies no connection until they are."""
        while True:
            if self.listener.cannot_live:
                raise PinpointError(*self.listener.cannot_live)
            async with self.listener.connections.slots:
                if rows := await self.attempt():
                    return rows
            while self in self.listener.index.untold:
                self.signal.clear()
                await self.signal.wait()

    async def attempt(self) -> Rows[Any] | None:
        """Returns None if the channels of its tables are not all listened on yet."""
        idle = self.listener.connections.idle
        if idle:
            connection = idle.pop()
            try:
                return await self.attempt_on(connection)
            except psycopg.Error:
                if connection.is_cut or not connection.closed:
                    raise
            # It has ended while it was idle, or by the query itself, which another one will show.
        return await self.attempt_on(await self.connect())

    async def attempt_on(self, connection: Connection) -> Rows[Any] | None:
        try:
            async with connection.limit(self.options.query_timeout):
                self.listen_to(await self.channels(connection))
                if self in self.listener.index.untold:
                    return None
                self.dirty = False  # what changes from now on is in another execution
                return await self.fetch(connection)
        finally:
            self.listener.connections.give_back(connection)

    async def fetch(self, connection: Connection) -> Rows[Any]:
        cursor = psycopg.AsyncRawCursor(connection, row_factory=self.row_factory)
        await cursor.execute(self.query, self.parameters, prepare=False)
        return Rows(await cursor.fetchall(), tuple(column.name for column in cursor.description or ()))

    async def connect(self) -> Connection:
        """Connect to the server on which the client listens."""
        connection = await self.listener.connections.connect()
        connection.add_notify_handler(ignore)
        try:
            position, _ = await connection.fetch(self.options.timeout, POSITION, (connection.info.backend_pid,))
            if server_of(position) != server_of(self.listener.position):
                raise PinpointError(OTHER_SERVER)
            return connection
        except BaseException:
            connection.pgconn.finish()
            raise

    async def channels(self, connection: Connection) -> set[str]:
        """The channels of the tables that the query reads."""
        cursor = await psycopg.AsyncRawCursor(connection).execute(CHANNELS_OF, (self.query,), prepare=False)
        tables = await cursor.fetchall()
        for table, channel in tables:
            if channel is None:
                statement = f"SELECT pinpoint.watch({sql.Literal(table).as_string(connection)})"
                raise PinpointError(f'the table "{table}" is not watched: execute {statement}', "55000")
        return {channel for _, channel in tables}

    def listen_to(self, channels: set[str]) -> None:
        index = self.listener.index
        index.remove(self, index.channels.get(self, set()) - channels)
        index.add(self, channels)
        index.forget(self, self.listener.listened)  # the execution that follows sees all before


# Types whose values are equal for the server if their texts are.
COMPARED = (type(None), bool, int, float, str, bytes, decimal.Decimal, uuid.UUID, datetime.date, datetime.time,
            datetime.datetime, datetime.timedelta)


def identity(value: Any) -> Any:
    """What is equal only for equal parameters. Raises TypeError for a value of another type."""
    if type(value) is list:
        return list, tuple(map(identity, value))
    if type(value) not in COMPARED:
        raise TypeError
    return type(value), value if isinstance(value, (str, bytes)) else str(value)
