"""The client: subscriptions and live queries over few connections."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Sequence
from typing import Any, Literal, overload

from psycopg.rows import BaseRowFactory, tuple_row

from ._events import Row, Stats
from ._listener import Listener
from ._live_query import Live
from ._options import Options, keywords
from ._subscription import Subscription


class BaseClient:
    """What the client and the blocking client have in common: their arguments and counters."""

    def __init__(self, conninfo: str = "", *, mode: Literal["auto", "push", "wait"] = "auto",
                 min_interval: float = 0.05, buffer: int = 64 * 1024 * 1024,
                 min_backoff: float = 0.1, max_backoff: float = 15, max_attempts: int | None = None,
                 timeout: float = 10, query_timeout: float | None = 60, check_interval: float = 10,
                 probe_timeout: float = 3, query_connections: int = 2, **connect: Any):
        """conninfo and other keywords are those of psycopg.AsyncConnection.connect(), without autocommit,
        row_factory and cursor_factory. All times are seconds.

        mode: "push" with LISTEN, "wait" with pinpoint.wait(), "auto" finds out.
        min_interval: between the beginnings of two executions of a live query.
        buffer: bytes of notifications that wait for one consumer.
        min_backoff, max_backoff: between two attempts to connect, or to execute a query that fails.
        max_attempts: after more failed attempts in succession, the client ends with an error; None: no limit.
        timeout: after which a connection or a short query counts as lost.
        query_timeout: after which a live query counts as lost; None: no limit.
        check_interval: between two checks of a connection without heartbeats.
        probe_timeout: in which a notification has to come through a pooler.
        query_connections: connections that all live queries share.

        Raises ValueError and TypeError if an option is not valid, and psycopg.ProgrammingError if conninfo or another
        keyword is not.
        """
        self._listener = Listener(Options(
            keywords(conninfo, connect), mode, min_interval, buffer, min_backoff, max_backoff, max_attempts, timeout,
            query_timeout, check_interval, probe_timeout, query_connections))
        self._begin()

    def _begin(self) -> None:
        """What only the blocking client does: an __init__ of its own would need all options once more."""

    def stats(self) -> Stats:
        """What the client has done until now."""
        heard = self._listener.heard
        return dataclasses.replace(self._listener.stats, last_sign_of_life=time.monotonic() - heard if heard else None)


class Client(BaseClient):
    """A client of one database. It connects with the first subscription or live query, in the running event loop."""

    def subscribe(self, *channels: str) -> Subscription:
        """Listen on channels. Each begins with a Changed.

        Raises ValueError if a name is empty, longer than 63 bytes, contains NUL or is pinpoint_heartbeat, and the
        PinpointError that has ended the client. Call it in the event loop.
        """
        return Subscription(self, self._listener, channels)

    @overload
    def live(self, query: str, parameters: Sequence[Any] | None = None) -> Live[tuple[Any, ...]]: ...
    @overload
    def live(self, query: str, parameters: Sequence[Any] | None = None, *, row_factory: BaseRowFactory[Row]) -> Live[Row]: ...
    def live(self, query: str, parameters: Sequence[Any] | None = None, *,
             row_factory: BaseRowFactory[Any] = tuple_row) -> Live[Any]:
        """The rows of a query now, and after each change of a table that it reads.

        parameters: a list or tuple, for $1, $2 ...; do not modify its objects. row_factory: as that of a cursor of
        psycopg. Raises TypeError if parameters is neither, and the PinpointError that has ended the client. An error
        of the query is an event.
        """
        return Live(self, self._listener, query, parameters, row_factory)

    async def close(self) -> None:
        """End all subscriptions, live queries and connections. The iterators raise ClientClosed."""
        await self._listener.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        listener = getattr(self, "_listener", None)  # None: an option was not valid
        if listener and listener.loop and not listener.error:
            warnings.warn("unclosed Client of pg_pinpoint", ResourceWarning, source=self)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                listener.loop.call_soon_threadsafe(listener.end)
