"""The options of a client. They are checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

DAY = 86400.0

OF_PSYCOPG = {"prepare_threshold", "context"}  # what psycopg takes besides the parameters of libpq
OWN = {"autocommit", "row_factory", "cursor_factory"}  # what the client sets itself

# By name: the type, the smallest and the largest value.
RANGES: dict[str, tuple[type, float, float]] = {
    "min_interval": (float, 0, DAY), "buffer": (int, 1, 2**40), "min_backoff": (float, 0.001, DAY),
    "max_backoff": (float, 0.001, DAY), "max_attempts": (int, 0, 2**31), "timeout": (float, 0.001, DAY),
    "query_timeout": (float, 0.001, DAY), "check_interval": (float, 0.001, DAY), "probe_timeout": (float, 0.001, DAY),
    "query_connections": (int, 1, 1000)}
NO_LIMIT = {"max_attempts", "query_timeout"}  # for which None is a value


@dataclass(frozen=True)
class Options:
    connect: dict[str, Any]  # the keywords of psycopg.AsyncConnection.connect()
    mode: str
    min_interval: float
    buffer: int
    min_backoff: float
    max_backoff: float
    max_attempts: int | None
    timeout: float
    query_timeout: float | None
    check_interval: float
    probe_timeout: float
    query_connections: int

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "push", "wait"):
            raise ValueError(f'mode is {self.mode!r}, but has to be "auto", "push" or "wait"')
        for name in RANGES:
            check(name, getattr(self, name))
        if self.max_backoff < self.min_backoff:
            raise ValueError(f"max_backoff is {self.max_backoff}, but has to be at least min_backoff, {self.min_backoff}")
        self.connect.setdefault("connect_timeout", max(2, round(self.timeout)))
        self.connect.setdefault("fallback_application_name", "pg-pinpoint")
        # As psycopg gives bytes for the text of a database with SQL_ASCII.
        self.connect.setdefault("client_encoding", "UTF8")


def check(name: str, value: object) -> None:
    kind, least, most = RANGES[name]
    or_none = " or None" if name in NO_LIMIT else ""
    if value is None and or_none:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
        raise TypeError(f"{name} is {value!r}, but has to be a number ({kind.__name__}){or_none}")
    if not least <= value <= most:  # also if it is not a number
        raise ValueError(f"{name} is {value!r}, but has to be from {least:g} to {most:g}{or_none}")


def keywords(conninfo: str, given: dict[str, Any]) -> dict[str, Any]:
    """A connection string and keywords of psycopg.AsyncConnection.connect(), as keywords."""
    for name in OWN & given.keys():
        raise ValueError(f'the option "{name}" cannot be set: the client needs its own value')
    of_psycopg = {name: given.pop(name) for name in OF_PSYCOPG & given.keys()}
    return {**conninfo_to_dict(make_conninfo(conninfo, **given)), **of_psycopg}
