"""The events of one consumer, which may be slow."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Iterable

from ._events import Changed, Connected, Disconnected, Event, Notification

OVERHEAD = 200  # bytes that an event takes without its texts, about
CHANGED = object()  # where in the queue the channels of EventQueue.changed are


class EventQueue:
    """A queue of bounded size. A notification that does not fit becomes a Changed."""

    def __init__(self, limit: int):
        self.limit = limit  # bytes
        self.size = 0
        self.events: deque[object] = deque()
        self.changed: set[str] = set()
        self.error: BaseException | None = None  # the end, after the events
        self.ready = asyncio.Event()

    def put(self, event: Notification | Connected | Disconnected) -> None:
        size = size_of(event)
        if self.size + size > self.limit:
            if isinstance(event, Notification):
                self.put_changed((event.channel,))
            return
        self.size += size
        self.events.append(event)
        self.ready.set()

    def put_changed(self, channels: Iterable[str]) -> None:
        """Add channels to the Changed that is in the queue, or to a new one."""
        if not self.changed:
            self.events.append(CHANGED)
        self.changed.update(channels)
        self.ready.set()

    def end(self, error: BaseException) -> None:
        self.error = self.error or error
        self.ready.set()

    async def get(self) -> Event:
        while not self.events:
            if self.error:
                raise self.error
            self.ready.clear()
            await self.ready.wait()
        event = self.events.popleft()
        if event is CHANGED:
            event, self.changed = Changed(frozenset(self.changed)), set()
        else:
            self.size -= size_of(event)
        return event


def size_of(event: object) -> int:
    if isinstance(event, Notification):
        return OVERHEAD + len(event.channel) + len(event.payload)
    return OVERHEAD
