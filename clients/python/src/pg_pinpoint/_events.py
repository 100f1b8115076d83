"""The events that subscriptions and live queries give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, Union

Mode = Literal["push", "wait"]
Row = TypeVar("Row")


@dataclass(frozen=True)
class Notification:
    """A notification on a channel. pid is the process ID of the session that sent it."""

    channel: str
    payload: str
    pid: int


@dataclass(frozen=True)
class Changed:
    """These channels may have been notified while the client did not listen: read your tables."""

    channels: frozenset[str]


@dataclass(frozen=True)
class Connected:
    """The connection works, and all channels are listened on.

    server_version: for instance 150018. mode: "push" with LISTEN, "wait" with pinpoint.wait().
    """

    server_version: int
    standby: bool
    mode: Mode


@dataclass(frozen=True)
class Disconnected:
    """The connection was lost, or could not be made. The next attempt is in retry_in seconds."""

    reason: str
    retry_in: float


@dataclass(frozen=True)
class Rows(Generic[Row]):
    """The result of a live query. A row is what row_factory makes: by default a tuple in the order of columns."""

    rows: list[Row]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class QueryError:
    """A live query, or its connection, has failed. It is tried again. The same error is told once.

    sqlstate: that of the server; 55000 if a table is not watched, 0A000 without pg_pinpoint 1.1.
    """

    message: str
    sqlstate: str | None


@dataclass
class Stats:
    """What a client has done. last_sign_of_life: seconds since the server was heard; None before."""

    events_given: int = 0
    events_dropped: int = 0
    reconnects: int = 0
    last_sign_of_life: float | None = None


Event = Union[Notification, Changed, Connected, Disconnected]
LiveEvent = Union[Rows[Row], QueryError, Disconnected]
