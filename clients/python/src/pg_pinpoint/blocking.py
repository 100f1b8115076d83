"""The same client for programs without asyncio. Its iterators block."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from concurrent.futures import Future
from typing import Any, Coroutine, Generic, Iterator, TypeVar

from . import _client
from ._events import Event, LiveEvent, PinpointError

T = TypeVar("T")


class Client:
    """A client with the arguments of pg_pinpoint.Client. It runs in a thread of its own.

    Its methods raise what those of pg_pinpoint.Client raise, and PinpointError if the client is closed, or was made before
    a fork of the process. All threads can call them.
    """

    def __init__(self, *arguments: Any, **options: Any):
        self.client = _client.Client(*arguments, **options)
        self.closed = False
        self.lock = threading.Lock()  # of closed: nothing begins in a loop that ends
        self.pid = os.getpid()
        # psycopg does not work with the default of Windows.
        self.loop = asyncio.SelectorEventLoop() if sys.platform == "win32" else asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="pg_pinpoint", daemon=True)
        self.thread.start()

    def subscribe(self, *channels: str) -> Events[Event]:
        """Listen on channels. Each begins with a Changed."""
        return Events(self, self.call(self.client.subscribe, *channels))

    def live(self, query: str, parameters: Any = None) -> Events[LiveEvent]:
        """The rows of a query now, and after each change of a table that it reads."""
        return Events(self, self.call(self.client.live, query, parameters))

    def close(self) -> None:
        """End all iterators and connections. The iterators of other threads raise PinpointError."""
        async def end() -> None:
            await self.client.close()
            # The iterators of other threads have an error now. They receive it before the loop ends.
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

        if os.getpid() != self.pid:
            return  # it belongs to the other process
        with self.lock:
            if self.closed:
                return
            self.closed = True
            ended = asyncio.run_coroutine_threadsafe(end(), self.loop)
        ended.result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a function in the thread of the client."""
        async def work() -> Any:
            return function(*arguments)
        return self.begin(work()).result()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin work in the thread of the client."""
        if os.getpid() != self.pid:
            work.close()
            raise PinpointError("the client was made before the fork of this process: make one after it")
        with self.lock:
            if self.closed:
                work.close()
                raise PinpointError("the client is closed")
            return asyncio.run_coroutine_threadsafe(work, self.loop)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Events(Generic[T]):
    """The events of a subscription or of a live query, as an iterator.

    It raises PinpointError if the subscription or live query cannot go on, or the client is closed.
    """

    def __init__(self, client: Client, events: Any):
        self.client = client
        self.events = events

    def add(self, *channels: str) -> None:
        """Only of a subscription: listen on more channels. Raises ValueError if a name is not valid."""
        self.client.call(self.events.add, *channels)

    def remove(self, *channels: str) -> None:
        """Only of a subscription: listen on fewer channels."""
        self.client.call(self.events.remove, *channels)

    def close(self) -> None:
        """End the subscription or live query, without an error. Another thread can call it while one waits for an event."""
        with contextlib.suppress(PinpointError):  # the client is closed
            self.client.call(self.events.close)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        future: Future[T] = self.client.begin(self.events.__anext__())
        try:
            return future.result()
        except StopAsyncIteration:
            raise StopIteration from None
        except BaseException:
            future.cancel()
            raise

    def __enter__(self) -> Events[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
