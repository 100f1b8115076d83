"""Subscriptions to channels."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ._consumer import Consumer
from ._events import Event
from ._listener import HEARTBEAT, Listener
from ._queue import EventQueue


class Subscription(Consumer[Event]):
    """The events of some channels, as an asynchronous iterator.

    It raises PinpointError if the subscription cannot go on, or the client is closed.
    """

    _queue: EventQueue

    def __init__(self, owner: object, listener: Listener, channels: Iterable[str]):
        listener.ensure()
        check_channels(channels)
        queue = EventQueue(listener.stats, listener.options.buffer)
        super().__init__(owner, listener, queue, partial(listener.index.leave, queue))
        listener.index.join(queue)
        if current := listener.current():
            queue.put(current)
        listener.index.add(queue, channels)

    def add(self, *channels: str) -> None:
        """Listen on more channels. Each begins with a Changed. Raises ValueError if a name is not valid."""
        check_channels(channels)
        self._listener.index.add(self._queue, channels)

    def remove(self, *channels: str) -> None:
        """Listen on fewer channels. Events that are already in the queue still follow."""
        self._listener.index.remove(self._queue, channels)


def check_channels(channels: Iterable[str]) -> None:
    for channel in channels:
        if not isinstance(channel, str):
            raise TypeError(f"the name of a channel has to be a str, but is {channel!r}")
        if not channel:
            raise ValueError("the name of a channel cannot be empty")
        if len(channel.encode()) > 63:
            raise ValueError(f'the name of a channel can have 63 bytes: "{channel}" is longer')
        if "\0" in channel:
            raise ValueError("the name of a channel cannot contain the character NUL")
        if channel == HEARTBEAT:
            raise ValueError(f'the channel "{HEARTBEAT}" is for the client itself')
