"""The client: subscriptions and live queries over few connections."""

from __future__ import annotations

import asyncio
import math
from typing import Any, AsyncIterator, Iterable, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ._events import Event, LiveEvent, PinpointError
from ._listener import HEARTBEAT, Listener
from ._live import LiveQuery
from ._queue import EventQueue


class Client:
    """A client of one database. It connects when the first subscription is made.

    conninfo and other keywords are those of psycopg.AsyncConnection.connect().

    mode: "push" with LISTEN, "wait" with pinpoint.wait(), "auto" finds out.
    min_interval: seconds between two executions of a live query.
    buffer: bytes of notifications that wait for one consumer.
    min_backoff, max_backoff: seconds between two attempts to connect.
    max_attempts: after so many failed attempts in succession, subscriptions end with an error.
    timeout: seconds after which a connection or a short query counts as lost.
    query_timeout: seconds after which a live query counts as lost.
    check_interval: seconds between two checks of a connection without heartbeats.
    probe_timeout: seconds in which a notification has to come through a pooler.
    query_connections: connections that all live queries share.
    """

    def __init__(self, conninfo: str = "", *, mode: Literal["auto", "push", "wait"] = "auto",
                 min_interval: float = 0.05, buffer: int = 64 * 1024 * 1024,
                 min_backoff: float = 0.1, max_backoff: float = 15, max_attempts: float = math.inf,
                 timeout: float = 10, query_timeout: float = 60, check_interval: float = 10,
                 probe_timeout: float = 3, query_connections: int = 2, **options: Any):
        if mode not in ("auto", "push", "wait"):
            raise ValueError(f'mode is "{mode}", but has to be "auto", "push" or "wait"')
        self.conninfo = conninfo
        self.options = options
        if "connect_timeout" not in {**conninfo_to_dict(conninfo), **options}:
            options["connect_timeout"] = max(2, round(timeout))
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
        self.idle: list[psycopg.AsyncConnection[Any]] = []  # for live queries
        self.generation = 0  # of connections for live queries
        self.live_queries: dict[Any, LiveQuery] = {}
        self.listener: Listener | None = None
        self.error: PinpointError | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def subscribe(self, *channels: str) -> Subscription:
        """Listen on channels. Each begins with a Changed."""
        if self.error:
            raise self.error
        if not self.listener or self.listener.task.done():
            self.listener = Listener(self)
        return Subscription(self.listener, channels)

    def live(self, query: str, parameters: Any = None) -> Live:
        """The rows of a query now, and after each change of a table that it reads."""
        key = (query, repr(parameters))
        shared = self.live_queries.get(key)
        if not shared:
            shared = self.live_queries[key] = LiveQuery(self, key, query, parameters)
        return Live(shared)

    async def close(self) -> None:
        """End all subscriptions, live queries and connections."""
        self.fail(PinpointError("the client is closed"))
        tasks = [live.task for live in self.live_queries.values()]
        if self.listener:
            tasks.append(self.listener.task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.drop_query_connections()

    # ---- For the other modules ----------------------------------------------------

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(self.conninfo, autocommit=True, **self.options)

    def fail(self, error: PinpointError) -> None:
        """End all consumers with an error."""
        self.error = self.error or error
        for subscription in list(self.listener.subscriptions) if self.listener else ():
            subscription.queue.end(error)
        for live in list(self.live_queries.values()):
            live.fail(error)

    def drop_query_connections(self) -> None:
        """The server of the listening connection may be another one from now on."""
        self.generation += 1
        while self.idle:
            self.idle.pop().pgconn.finish()
        for live in self.live_queries.values():
            live.interrupt()


class Subscription:
    """The events of some channels, as an asynchronous iterator."""

    def __init__(self, listener: Listener, channels: Iterable[str]):
        self.listener = listener
        self.channels: set[str] = set()
        self.heard: set[str] = set()  # of which the consumer has been told
        self.told = asyncio.Event()
        self.queue = EventQueue(listener.client.buffer)
        check_channels(channels)
        listener.subscriptions.add(self)
        if listener.connected:
            self.queue.put(listener.connected)
        self.add(*channels)

    def add(self, *channels: str) -> None:
        """Listen on more channels. Each begins with a Changed."""
        check_channels(channels)
        self.channels.update(channels)
        self.listener.want(self, channels)

    def remove(self, *channels: str) -> None:
        """Listen on fewer channels."""
        self.channels.difference_update(channels)
        self.heard.difference_update(channels)
        self.listener.unwant(self, channels)

    def close(self) -> None:
        self.remove(*self.channels)
        self.listener.subscriptions.discard(self)
        self.queue.end(StopAsyncIteration())

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        return await self.queue.get()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Live:
    """The results of a live query, as an asynchronous iterator. A slow consumer gets the newest."""

    def __init__(self, shared: LiveQuery):
        self.shared = shared
        self.latest: LiveEvent | None = None
        self.error: BaseException | None = None
        self.ready = asyncio.Event()
        shared.add(self)

    def put(self, event: LiveEvent) -> None:
        self.latest = event
        self.ready.set()

    def end(self, error: BaseException) -> None:
        self.error = self.error or error
        self.ready.set()

    def close(self) -> None:
        self.shared.remove(self)
        self.end(StopAsyncIteration())

    def __aiter__(self) -> AsyncIterator[LiveEvent]:
        return self

    async def __anext__(self) -> LiveEvent:
        while self.latest is None:
            if self.error:
                raise self.error
            self.ready.clear()
            await self.ready.wait()
        event, self.latest = self.latest, None
        return event

    async def __aenter__(self) -> Live:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


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
