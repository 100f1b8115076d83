"""The events of one consumer, which may be slow."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import AsyncIterator, Generic, Iterable, Self, TypeVar

from ._events import Changed, Event, Notification

T = TypeVar("T")

OVERHEAD = 200  # bytes that an event takes without its texts, about


class Events(Generic[T]):
    """An asynchronous iterator over what take() returns, None if there is nothing yet."""

    def __init__(self) -> None:
        self.error: BaseException | None = None  # the end, after the events
        self.ready = asyncio.Event()

    def take(self) -> T | None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def end(self, error: BaseException) -> None:
        self.error = self.error or error
        self.ready.set()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while (event := self.take()) is None:
            if self.error:
                raise self.error
            self.ready.clear()
            await self.ready.wait()
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class EventQueue(Events[Event]):
    """A queue of bounded size. A notification that does not fit becomes a Changed."""

    def __init__(self, limit: int):
        super().__init__()
        self.limit = limit  # bytes
        self.size = 0
        self.events: deque[Event | None] = deque()  # None is the place of the Changed
        self.changed: set[str] = set()

    def put(self, event: Event) -> None:
        size = size_of(event)
        if self.size + size <= self.limit:
            self.size += size
            self.events.append(event)
            self.ready.set()
        elif isinstance(event, Notification):
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


def size_of(event: Event) -> int:
    if isinstance(event, Notification):
        return OVERHEAD + len(event.channel) + len(event.payload)
    return OVERHEAD
