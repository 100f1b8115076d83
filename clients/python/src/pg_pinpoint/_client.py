"""The client: subscriptions and live queries over few connections."""

from __future__ import annotations

import asyncio
import math
import pickle
import weakref
from typing import Any, Coroutine, Iterable, Literal, TypeVar

from psycopg.conninfo import conninfo_to_dict

from ._events import PinpointError
from ._listener import HEARTBEAT, Connection, Listener, cut
from ._live import Live, LiveQuery
from ._queue import EventQueue

T = TypeVar("T")


class Client:
    """A client of one database. It connects when the first subscription is made.

    conninfo and other keywords are those of psycopg.AsyncConnection.connect(), without autocommit,
    row_factory and cursor_factory.

    mode: "push" with LISTEN, "wait" with pinpoint.wait(), "auto" finds out.
    min_interval: seconds between the beginnings of two executions of a live query.
    buffer: bytes of notifications that wait for one consumer.
    min_backoff, max_backoff: seconds between two attempts to connect.
    max_attempts: after so many failed attempts in succession, subscriptions end with an error.
    timeout: seconds after which a connection or a short query counts as lost.
    query_timeout: seconds after which a live query counts as lost.
    check_interval: seconds between two checks of a connection without heartbeats.
    probe_timeout: seconds in which a notification has to come through a pooler.
    query_connections: connections that all live queries share.

    Raises ValueError if mode is none of the three, or one of the keywords cannot be set, and psycopg.ProgrammingError
    if conninfo is not valid.
    """

    def __init__(self, conninfo: str = "", *, mode: Literal["auto", "push", "wait"] = "auto",
                 min_interval: float = 0.05, buffer: int = 64 * 1024 * 1024,
                 min_backoff: float = 0.1, max_backoff: float = 15, max_attempts: float = math.inf,
                 timeout: float = 10, query_timeout: float = 60, check_interval: float = 10,
                 probe_timeout: float = 3, query_connections: int = 2, **options: Any):
        if mode not in ("auto", "push", "wait"):
            raise ValueError(f'mode is "{mode}", but has to be "auto", "push" or "wait"')
        for name in "autocommit", "row_factory", "cursor_factory":
            if name in options:
                raise ValueError(f'the option "{name}" cannot be set: the client needs its own value')
        self.conninfo = conninfo
        # UTF8, as psycopg gives bytes for the text of a database with SQL_ASCII.
        defaults = {"connect_timeout": max(2, round(timeout)), "client_encoding": "UTF8"}
        given = conninfo_to_dict(conninfo)
        self.options = {**{name: value for name, value in defaults.items() if name not in given}, **options}
        self.mode = mode
        self.min_interval = min_interval
        self.buffer = buffer
        self.min_backoff = min_backoff
        self.max_backoff = max_backoff
        self.max_attempts = max_attempts
        self.timeout = timeout
        self.query_timeout = query_timeout
        self.check_interval = check_interval
        self.probe_timeout = probe_timeout
        self.query_slots = asyncio.Semaphore(query_connections)
        self.open: weakref.WeakSet[Connection] = weakref.WeakSet()  # all connections
        self.idle: list[Connection] = []  # for live queries
        self.live_queries: dict[Any, LiveQuery] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.listener: Listener | None = None
        self.error: PinpointError | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def subscribe(self, *channels: str) -> Subscription:
        """Listen on channels. Each begins with a Changed.

        Raises ValueError if a name is empty, longer than 63 bytes, contains NUL or is pinpoint_heartbeat, and the
        PinpointError that has ended the client. Call it in the event loop.
        """
        return Subscription(self.listening(), channels)

    def live(self, query: str, parameters: Any = None) -> Live:
        """The rows of a query now, and after each change of a table that it reads. parameters: a list, for $1, $2 ...

        Raises the PinpointError that has ended the client. An error of the query is an event.
        """
        listener = self.listening()
        key, parameters = identity(parameters)
        key = query, key
        if key not in self.live_queries:
            self.live_queries[key] = LiveQuery(self, listener, key, query, parameters)
        return Live(self.live_queries[key])

    async def close(self) -> None:
        """End all subscriptions, live queries and connections. The iterators raise PinpointError."""
        self.fail(PinpointError("the client is closed"))
        for connection in self.open:
            cut(connection)
        self.drop_query_connections()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    # ---- For the other modules ----------------------------------------------------

    def listening(self) -> Listener:
        if self.error:
            raise self.error
        self.listener = self.listener or Listener(self)
        return self.listener

    async def connect(self) -> Connection:
        connection = await Connection.connect(self.conninfo, autocommit=True, **self.options)
        self.open.add(connection)
        return connection

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that ends with the client."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def fail(self, error: PinpointError) -> None:
        """End all consumers with an error."""
        self.error = self.error or error
        for subscriber in list(self.listener.subscribers) if self.listener else ():
            subscriber.end(error)

    def drop_query_connections(self) -> None:
        """Close the connections of live queries, because the client may now listen on another server."""
        while self.idle:
            self.idle.pop().pgconn.finish()
        for live in self.live_queries.values():
            live.interrupt()


class Subscription(EventQueue):
    """The events of some channels, as an asynchronous iterator.

    It raises PinpointError if the subscription cannot go on, or the client is closed.
    """

    def __init__(self, listener: Listener, channels: Iterable[str]):
        super().__init__(listener.client.buffer)
        self.listener = listener
        self.channels: set[str] = set()
        self.heard: set[str] = set()  # of which the consumer has been told
        check_channels(channels)
        listener.subscribers.add(self)
        if listener.connected:
            self.put(listener.connected)
        self.add(*channels)

    def add(self, *channels: str) -> None:
        """Listen on more channels. Each begins with a Changed. Raises ValueError if a name is not valid."""
        check_channels(channels)
        self.channels.update(channels)
        self.listener.changes.set()

    def remove(self, *channels: str) -> None:
        """Listen on fewer channels. Events that are already in the queue still follow."""
        self.channels.difference_update(channels)
        self.heard.difference_update(channels)
        self.listener.changes.set()

    def close(self) -> None:
        """End the subscription: after the events in the queue, the iterator ends, without an error."""
        self.listener.subscribers.discard(self)
        self.listener.changes.set()
        self.end(StopAsyncIteration())


def identity(parameters: Any) -> tuple[Any, Any]:
    """What is equal only for equal parameters (repr() is not, for example of Jsonb), and a copy of them."""
    try:
        pickled = pickle.dumps(parameters)
        return pickled, pickle.loads(pickled)
    except Exception:
        return object(), parameters  # not shared


def check_channels(channels: Iterable[str]) -> None:
    for channel in channels:
        if not channel:
            raise ValueError("the name of a channel cannot be empty")
        if len(channel.encode()) > 63:
            raise ValueError(f'the name of a channel can have 63 bytes: "{channel}" is longer')
        if "\0" in channel:
            raise ValueError("the name of a channel cannot contain the character NUL")
        if channel == HEARTBEAT:
            raise ValueError(f'the channel "{HEARTBEAT}" is for the client itself')
