"""The same client for programs without asyncio. Its iterators block."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from psycopg.rows import BaseRowFactory, tuple_row

from ._client import BaseClient
from ._consumer import Consumer
from ._errors import ClientClosed, PinpointError
from ._events import Event, LiveEvent, Row
from ._listener import Listener
from ._live_query import Live as AsyncLive
from ._subscription import Subscription as AsyncSubscription
from ._subscription import check_channels

T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C", bound="Consumer[Any]")


class _Thread:
    """An event loop in a thread of its own, in which the client runs."""

    def __init__(self, listener: Listener):
        self.listener = listener
        self.closed = False
        self.lock = threading.Lock()  # of closed: nothing begins in a loop that ends
        # psycopg does not work with the default of Windows.
        self.loop = asyncio.SelectorEventLoop() if sys.platform == "win32" else asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.run, name="pg_pinpoint", daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Whatever ends the loop, the iterators of other threads receive an error before."""
        try:
            self.loop.run_forever()
        finally:
            with self.lock:
                self.closed = True
            self.loop.run_until_complete(self.end())
            self.loop.close()

    async def end(self) -> None:
        await self.listener.close()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    def is_open(self) -> bool:
        """In a process that was forked, the thread is not alive."""
        return not self.closed and self.thread.is_alive()

    def stop(self) -> None:
        """Begin to close the client. All threads can call it."""
        with self.lock:
            if self.is_open():
                self.closed = True
                self.loop.call_soon_threadsafe(self.loop.stop)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin work in the thread of the client."""
        with self.lock:
            if self.is_open():
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        if self.closed:
            raise ClientClosed
        raise PinpointError("the client was made before the fork of this process: make one after it")

    def call(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> Future[T]:
        """Call a function in the thread of the client, after what was called before."""
        async def work() -> T:
            return function(*arguments, **keywords)
        return self.begin(work())


class Client(BaseClient):
    """A client with the arguments and methods of pg_pinpoint.Client. It runs in a thread of its own.

    Its methods raise what those of pg_pinpoint.Client raise, and PinpointError if the client is closed, or was made before
    a fork of the process. All threads can call them.
    """

    def _begin(self) -> None:
        self._thread = _Thread(self._listener)

    def subscribe(self, *channels: str) -> Subscription:
        """Listen on channels. Each begins with a Changed."""
        return Subscription(self, self._thread.call(AsyncSubscription, self, self._listener, channels))

    @overload
    def live(self, query: str, parameters: Sequence[Any] | None = None) -> Live[tuple[Any, ...]]: ...
    @overload
    def live(self, query: str, parameters: Sequence[Any] | None = None, *, row_factory: BaseRowFactory[Row]) -> Live[Row]: ...
    def live(self, query: str, parameters: Sequence[Any] | None = None, *,
             row_factory: BaseRowFactory[Any] = tuple_row) -> Live[Any]:
        """The rows of a query now, and after each change of a table that it reads."""
        return Live(self, self._thread.call(AsyncLive, self, self._listener, query, parameters, row_factory))

    def close(self) -> None:
        """End all iterators and connections. The iterators of other threads raise ClientClosed."""
        self._thread.stop()
        self._thread.thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)  # None: an option was not valid
        if thread and thread.is_open():
            warnings.warn("unclosed blocking.Client of pg_pinpoint", ResourceWarning, source=self)
            thread.stop()


class _Events(Generic[C, T]):
    """An iterator over events. One thread at a time takes them; another one can call close() meanwhile.

    It raises PinpointError if it cannot go on, or the client is closed.
    """

    def __init__(self, client: Client, consumer: Future[C]):
        self._thread = client._thread
        self._consumer = consumer.result()  # it refers to the client
        self._pending: Future[T] | None = None  # the next call returns its event: this one was interrupted, or its time is over

    def close(self) -> None:
        """End it, without an error. Another thread can call it while one waits for an event."""
        with contextlib.suppress(PinpointError):  # the client is closed
            self._thread.call(self._consumer.close)

    @property
    def closed(self) -> bool:
        """Whether it was closed, or cannot go on. There may still be events in its queue."""
        return self._consumer.closed

    def events(self, *, timeout: float | None = None, stop_after: int | None = None) -> Iterator[T]:
        """The events of so many seconds, and at most so many. None: no limit. No event is lost between two calls."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for _ in range(sys.maxsize if stop_after is None else stop_after):
            try:
                event = self._next(None if deadline is None else deadline - time.monotonic())
            except (TimeoutError, StopAsyncIteration):
                return
            yield event

    def _next(self, timeout: float | None) -> T:
        self._pending = self._pending or self._thread.begin(self._consumer._queue.get())
        # The other thread has a moment to answer, also if no time is left.
        event = self._pending.result(None if timeout is None else max(timeout, 0.01))
        self._pending = None
        return event

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._next(None)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Subscription(_Events[AsyncSubscription, Event]):
    """The events of some channels, as an iterator that blocks."""

    # Neither waits for the other thread: many channels that come one by one would be as many LISTEN.

    def add(self, *channels: str) -> None:
        """Listen on more channels. Raises ValueError if a name is not valid."""
        check_channels(channels)
        self._thread.call(self._consumer.add, *channels)

    def remove(self, *channels: str) -> None:
        """Listen on fewer channels."""
        self._thread.call(self._consumer.remove, *channels)


class Live(_Events["AsyncLive[Row]", LiveEvent[Row]]):
    """The events of a live query, as an iterator that blocks."""
