"""Who listens on which channel. All costs are those of the channels that change."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Set
from typing import Protocol

from ._events import Event


class Subscriber(Protocol):
    """What events are given to."""

    def put(self, event: Event, /) -> None: ...
    def put_changed(self, channels: Iterable[str], /) -> None: ...
    def end(self, error: BaseException, /) -> None: ...


class Index:
    def __init__(self) -> None:
        self.channels: dict[Subscriber, set[str]] = {}  # of each subscriber
        self.subscribers: dict[str, set[Subscriber]] = {}  # of each channel
        self.untold: dict[Subscriber, set[str]] = {}  # channels whose first Changed has not been given
        self.altered: set[str] = set()  # channels that have got their first, or lost their last subscriber
        self.changes = asyncio.Event()

    def join(self, subscriber: Subscriber) -> None:
        self.channels[subscriber] = set()

    def leave(self, subscriber: Subscriber) -> None:
        if subscriber in self.channels:
            self.remove(subscriber, list(self.channels[subscriber]))
            del self.channels[subscriber]

    def add(self, subscriber: Subscriber, channels: Iterable[str]) -> None:
        if subscriber not in self.channels:
            return  # closed
        new = set(channels) - self.channels[subscriber]
        for channel in new:
            subscribers = self.subscribers.setdefault(channel, set())
            if not subscribers:
                self.altered.add(channel)
            subscribers.add(subscriber)
        if new:
            self.channels[subscriber] |= new
            self.untold.setdefault(subscriber, set()).update(new)
            self.changes.set()

    def remove(self, subscriber: Subscriber, channels: Iterable[str]) -> None:
        for channel in self.channels.get(subscriber, set()).intersection(channels):
            self.channels[subscriber].discard(channel)
            self.subscribers[channel].discard(subscriber)
            if not self.subscribers[channel]:
                del self.subscribers[channel]
                self.altered.add(channel)
                self.changes.set()
            self.forget(subscriber, {channel})

    def hearing(self, channel: str) -> list[Subscriber]:
        """The subscribers to which a notification of the channel is given."""
        return [subscriber for subscriber in self.subscribers.get(channel, ())
                if channel not in self.untold.get(subscriber, ())]

    def take_altered(self, listened: Set[str]) -> tuple[list[str], list[str]]:
        """The channels to begin and to end with, if these are listened on."""
        self.changes.clear()
        altered, self.altered = self.altered, set()
        return (sorted(c for c in altered if c in self.subscribers and c not in listened),
                sorted(c for c in altered if c not in self.subscribers and c in listened))

    def take_all(self) -> set[str]:
        """All channels, to begin with."""
        self.changes.clear()
        self.altered.clear()
        return set(self.subscribers)

    def has_new(self, listened: Set[str]) -> bool:
        return any(c in self.subscribers and c not in listened for c in self.altered)

    def take_told(self, listened: Set[str], changed: Collection[str]) -> dict[Subscriber, set[str]]:
        """What to tell: of changed channels, and of those that a subscriber hears from now on."""
        told: dict[Subscriber, set[str]] = {}
        for channel in changed:
            for subscriber in self.subscribers.get(channel, ()):
                told.setdefault(subscriber, set()).add(channel)
        for subscriber, channels in list(self.untold.items()):
            if heard := channels & listened:
                told.setdefault(subscriber, set()).update(heard)
        for subscriber, channels in told.items():
            self.forget(subscriber, channels)
        return told

    def forget(self, subscriber: Subscriber, channels: Set[str]) -> None:
        """These channels are no longer untold."""
        if subscriber in self.untold:
            self.untold[subscriber] -= channels
            if not self.untold[subscriber]:
                del self.untold[subscriber]
