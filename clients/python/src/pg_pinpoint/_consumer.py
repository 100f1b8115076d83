"""What subscriptions and live queries have in common: an asynchronous iterator over a queue."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Self, TypeVar

from ._listener import Listener
from ._queue import Queue

T = TypeVar("T")


class Consumer(Generic[T]):
    """An asynchronous iterator over events. It goes on until close(), and is closed if nobody refers to it."""

    def __init__(self, owner: object, listener: Listener, queue: Queue[T], detach: Callable[[], None]):
        self._owner = owner  # the client, which ends if nobody refers to it
        self._listener = listener
        self._queue = queue
        self._detach = detach

    def close(self) -> None:
        """End it: after the events in its queue, the iterator ends, without an error."""
        end(self._detach, self._queue)

    @property
    def closed(self) -> bool:
        """Whether it was closed, or cannot go on. There may still be events in its queue."""
        return self._queue.error is not None

    async def events(self, *, timeout: float | None = None, stop_after: int | None = None) -> AsyncIterator[T]:
        """The events of so many seconds, and at most so many. None: no limit. No event is lost between two calls.

        Raises PinpointError if it cannot go on, or the client is closed.
        """
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        for _ in range(sys.maxsize if stop_after is None else stop_after):
            try:
                async with asyncio.timeout_at(deadline):
                    event = await self._queue.get()
            except (TimeoutError, StopAsyncIteration):
                return
            yield event

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        return await self._queue.get()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        listener = getattr(self, "_listener", None)  # None: an argument was not valid
        if listener and listener.loop and not self._queue.error:
            warnings.warn(f"unclosed {type(self).__name__} of pg_pinpoint", ResourceWarning, source=self)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                listener.loop.call_soon_threadsafe(end, self._detach, self._queue)


def end(detach: Callable[[], None], queue: Queue[Any]) -> None:
    detach()
    queue.end(StopAsyncIteration())  # another thread may wait for it
