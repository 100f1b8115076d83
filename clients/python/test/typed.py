"""The types of the package, as an application sees them. mypy --strict and pyright check it; it is not executed."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

from psycopg.rows import dict_row

import pg_pinpoint
from pg_pinpoint import Event, Live, LiveEvent, Rows, Stats, Subscription


async def with_asyncio() -> None:
    async with pg_pinpoint.Client("", mode="push", query_timeout=None, host="localhost") as client:
        async with client.subscribe("a", "b") as subscription:
            assert_type(subscription, Subscription)
            assert_type(subscription.events(timeout=1, stop_after=1), AsyncIterator[Event])
            async for event in subscription:
                assert_type(event, Event)
        assert_type(client.live("SELECT 1"), Live[tuple[Any, ...]])
        live = client.live("SELECT $1::int", [1], row_factory=dict_row)
        assert_type(live, Live[dict[str, Any]])
        async for result in live:
            assert_type(result, LiveEvent[dict[str, Any]])
            if isinstance(result, Rows):
                assert_type(result.rows, list[dict[str, Any]])
        assert_type(client.stats(), Stats)


def with_threads() -> None:
    with pg_pinpoint.blocking.Client("", mode="wait", max_attempts=3) as client, client.subscribe("a") as subscription:
        assert_type(subscription.events(timeout=1), Iterator[Event])
        for event in subscription:
            assert_type(event, Event)
        for result in client.live("SELECT 1", (1,), row_factory=dict_row):
            assert_type(result, LiveEvent[dict[str, Any]])
