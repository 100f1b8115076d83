"""The events of one consumer, which may be slow."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from ._events import Changed, Event, LiveEvent, Notification, QueryError, Stats

T = TypeVar("T")

OVERHEAD = 200  # bytes that an event takes without its texts, about
logger = logging.getLogger("pg_pinpoint")
logger.addHandler(logging.NullHandler())  # not to the standard error if the application sets nothing


class Queue(Generic[T]):
    """What take() returns, None if there is nothing yet; then the end."""

    def __init__(self, stats: Stats) -> None:
        self.stats = stats
        self.error: BaseException | None = None  # the end, after the events
        self.ready = asyncio.Event()

    def take(self) -> T | None:
        raise NotImplementedError

    def end(self, error: BaseException) -> None:
        self.error = self.error or error
        self.ready.set()

    async def get(self) -> T:
        """The next event. A task that is canceled here has taken none."""
        while (event := self.take()) is None:
            if self.error:
                raise self.error
            self.ready.clear()
            await self.ready.wait()
        self.stats.events_given += 1
        return event


class EventQueue(Queue[Event]):
    """A queue of bounded size. A notification that does not fit becomes a Changed."""

    def __init__(self, stats: Stats, limit: int):
        super().__init__(stats)
        self.limit = limit  # bytes
        self.size = 0
        self.events: deque[Event | None] = deque()  # None is the place of the Changed
        self.changed: set[str] = set()
        self.dropping = False

    def put(self, event: Event) -> None:
        size = size_of(event)
        if self.size + size <= self.limit:
            self.size += size
            self.events.append(event)
            self.ready.set()
            self.dropping = False
            return
        if not self.dropping:
            logger.warning("a consumer is too slow: events are dropped")
        self.dropping = True
        self.stats.events_dropped += 1
        if isinstance(event, Notification):
            self.put_changed((event.channel,))

    def put_changed(self, channels: Iterable[str]) -> None:
        """Add channels to the Changed that is in the queue, or to a new one."""
        if not self.changed:
            self.events.append(None)
        self.changed.update(channels)
        self.ready.set()

    def take(self) -> Event | None:
        if not self.events:
            return None
        event = self.events.popleft()
        if event:
            self.size -= size_of(event)
            return event
        changed, self.changed = self.changed, set()
        return Changed(frozenset(changed))


class Newest(Queue[LiveEvent[Any]]):
    """The newest event of a live query. An error that repeats is told once."""

    def __init__(self, stats: Stats) -> None:
        super().__init__(stats)
        self.event: LiveEvent[Any] | None = None
        self.told: QueryError | None = None  # the last event, if it was an error

    def put(self, event: LiveEvent[Any]) -> None:
        error = event if isinstance(event, QueryError) else None
        if error and error == self.told:
            return
        self.told, self.event = error, event
        self.ready.set()

    def take(self) -> LiveEvent[Any] | None:
        event, self.event = self.event, None
        return event


def size_of(event: Event) -> int:
    if isinstance(event, Notification):
        return OVERHEAD + len(event.channel) + len(event.payload)
    return OVERHEAD
