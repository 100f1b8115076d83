"""The connection that receives notifications: by LISTEN and heartbeats, or by pinpoint.wait()."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Set
from typing import Any, TypeVar

import psycopg
from psycopg import capabilities, sql

from ._backoff import backoff
from ._connection import Connection, Connections, cancel_all, discard, ignore, server_of
from ._errors import (NEEDS_PINPOINT, OTHER_SERVER, ClientClosed, ConnectionLost, PinpointError, describe, is_permanent,
                      sqlstate_of)
from ._events import Connected, Disconnected, Event, Notification, Stats
from ._index import Index
from ._options import Options
from ._queue import logger

T = TypeVar("T")

HEARTBEAT = "pinpoint_heartbeat"


def has(function: str) -> str:
    """A condition. to_regproc() returns NULL without the function, and fails without the privilege."""
    return ("CASE WHEN has_schema_privilege(to_regnamespace('pinpoint'), 'USAGE')"
            f" THEN to_regproc('pinpoint.{function}') IS NOT NULL ELSE false END")


# Sessions that only listen are idle, and what a session executes ends with its connection. A pooler gives the session to
# others. The parameter is the process ID of the connection.
OWN_SESSION = """
    (SELECT string_agg(set_config(name, CASE setting WHEN '0' THEN '1s' ELSE '0' END, false), '') FROM pg_settings
     WHERE pg_backend_pid() = %s AND (name = 'idle_session_timeout' AND setting <> '0'
           OR name = 'client_connection_check_interval' AND setting = '0' AND version() ~ 'linux'))"""
# With pinpoint.sql there are no heartbeats, even if the server has the library for another database.
INQUIRY = f"""
    SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), pg_backend_pid(), current_user,
           has_schema_privilege(to_regnamespace('pinpoint'), 'USAGE'),
           {has("changed_since")}, {has("wait")},
           coalesce((SELECT setting::float8 / 1000 FROM pg_settings WHERE name = 'pinpoint.heartbeat_interval'
                      AND EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_pinpoint')), 0),
           (SELECT coalesce(min(setting::float8), 0) / 1000 FROM pg_settings
            WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0'),
           {OWN_SESSION}"""
HAS_PINPOINT = f"SELECT {has('changed_since')}"
CHANGED_SINCE = "SELECT changed, position FROM pinpoint.changed_since(%s, VARIADIC %s::text[])"
# Of those of the channels that watched tables have.
TABLES_CHANGED = """
    SELECT changed, position FROM pinpoint.changed_since(
        %s, VARIADIC ARRAY(SELECT channel::text FROM pinpoint.watched WHERE channel = ANY (%s::text[])))"""
WAIT = "CALL pinpoint.wait(%s::text[], %s::text, %s::interval)"

NO_LISTEN = (
    "LISTEN does not work through this connection, because a pooler gives each transaction another session."
    " Connect to the server, or to a pool in session mode, or install pg_pinpoint 1.1 or later, or its pinpoint.sql,"
    " in this database."
)


class Listener:
    """Keeps one connection that receives the notifications of a client. It ends all that belongs to the client."""

    def __init__(self, options: Options):
        self.options = options
        self.connections = Connections(options)
        self.index = Index()
        self.live: dict[Any, Any] = {}  # the live queries; equal ones have the same key
        self.stats = Stats()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.loop: asyncio.AbstractEventLoop | None = None  # that of the first call
        self.error: PinpointError | None = None  # the final one
        self.listened: set[str] = set()
        self.heard = 0.0  # time of the last sign of life; 0 before the first
        self.any_heartbeat = False
        self.position: str | None = None
        self.cannot_live: tuple[str, str] | None = None  # why there are no live queries
        self.waits = options.mode == "wait"
        self.connected: Connected | None = None
        self.failure: tuple[str, float] | None = None  # why not, and when the next attempt is
        self.connected_at = 0.0  # 0 before the first connection

    # ---- Tasks ----------------------------------------------------------------------

    def ensure(self) -> None:
        """Raises the error that has ended the client, or begins to listen."""
        if self.error:
            raise self.error
        if not self.loop:
            self.loop = asyncio.get_running_loop()
            self.start(self.run(), self.fail)

    def start(self, work: Coroutine[Any, Any, T], failed: Callable[[PinpointError], None] | None = None) -> asyncio.Task[T]:
        """A task that ends with the client. failed is called with a final error, however the task ends."""
        def ended(task: asyncio.Task[T]) -> None:
            self.tasks.discard(task)
            if failed:
                cause = asyncio.CancelledError() if task.cancelled() else task.exception()
                error = PinpointError(f"the client has failed: {describe(cause) if cause else 'its task has ended'}")
                error.__cause__ = cause
                failed(error)

        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(ended)
        return task

    def fail(self, error: PinpointError) -> None:
        """End all subscribers with an error, and the connections of live queries."""
        if not self.error:
            self.error = error
            logger.error("the client ends: %s", error)
        self.connected = None
        for subscriber in list(self.index.channels):
            subscriber.end(self.error)
        self.connections.drop_idle()

    def end(self) -> None:
        """Begin to end everything, because the client is closed."""
        self.error = self.error or ClientClosed()
        self.fail(self.error)
        for task in self.tasks:
            task.cancel()

    async def close(self) -> None:
        self.end()
        await cancel_all(set(self.tasks))

    # ---- The connection ---------------------------------------------------------------

    async def run(self) -> None:
        failures = 0
        while not self.error:
            try:
                await self.session()
                continue  # with other channels
            except Exception as error:  # whatever it is, the application is told, and nothing is missed
                if self.error:
                    return  # closed: this was the cancellation
                reason, sqlstate = describe(error), sqlstate_of(error)
                final = not self.connected_at and is_permanent(error)
            if sqlstate == "22P02":
                self.position = None  # of a false heartbeat, or unknown to an older version: ask without
            if self.connected and time.monotonic() - self.connected_at >= self.options.max_backoff:
                failures = 0
            failures += 1
            self.connected = None
            self.connections.drop_idle()  # the client may now listen on another server
            if final or self.options.max_attempts is not None and failures > self.options.max_attempts:
                return self.fail(PinpointError(reason, sqlstate))
            delay = backoff(failures, self.options.min_backoff, self.options.max_backoff)
            logger.warning("disconnected: %s; the next attempt is in %.2f s", reason, delay)
            self.failure = reason, time.monotonic() + delay
            self.tell_all(Disconnected(reason, delay))
            await asyncio.sleep(delay)

    def current(self) -> Connected | Disconnected | None:
        """What a new consumer is told. None while the first attempt goes on."""
        if self.connected or not self.failure:
            return self.connected
        reason, retry_at = self.failure
        return Disconnected(reason, max(0.0, retry_at - time.monotonic()))

    async def session(self) -> None:
        """Connect, and receive until the connection is lost. It returns if a new one is needed for other channels."""
        connection = await self.connections.connect()
        try:
            self.listened = set()
            (version, standby, pid, user, has_usage, pinpoint, has_wait, interval, time_limit,
             _) = await connection.fetch(self.options.timeout, INQUIRY, (connection.info.backend_pid,))
            pooled = pid != connection.info.backend_pid
            # If only the channels have changed, the client is still connected.
            waits = self.waits or self.connected is not None and self.connected.mode == "wait"
            if pooled and not waits and self.options.mode == "auto":
                waits = not await self.hears_through_pooler(connection, standby, has_wait)
                logger.info("behind a pooler: %s is used", "pinpoint.wait()" if waits else "LISTEN")
            if waits and not has_wait:
                raise PinpointError(f"pinpoint.wait {NEEDS_PINPOINT}", "0A000")
            if not pinpoint:
                self.position = None
            self.cannot_live = None
            if has_usage is False:
                grant = sql.SQL("GRANT USAGE ON SCHEMA pinpoint TO {}").format(sql.Identifier(user)).as_string(connection)
                self.cannot_live = f"a live query needs the schema pinpoint: execute {grant}", "42501"
            elif not has_wait:
                self.cannot_live = f"a live query {NEEDS_PINPOINT}", "0A000"
            connected = Connected(version, standby, "wait" if waits else "push")
            if waits:
                await self.wait(connection, connected, time_limit)
            else:
                await self.listen(connection, connected, pinpoint, interval, pooled and has_wait)
        finally:
            await connection.close()

    async def hears_through_pooler(self, connection: Connection, standby: bool, has_wait: bool) -> bool:
        """Does a notification arrive while no transaction is running?"""
        if standby:
            return not has_wait  # a standby cannot notify
        channel = "pinpoint_probe_" + secrets.token_hex(8)
        await self.execute(connection, sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        other = await self.connections.connect()
        try:
            await self.execute(other, "SELECT pg_notify(%s, '')", (channel,))
        finally:
            await other.close()
        heard = False
        async for notification in connection.notifies(timeout=self.options.probe_timeout):
            if heard := notification.channel == channel:
                break
        await self.execute(connection, sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
        if not heard and not has_wait:
            raise PinpointError(NO_LISTEN, "0A000")
        return heard

    async def execute(self, connection: Connection, query: Any, parameters: Any = None) -> psycopg.AsyncCursor[Any]:
        async with connection.limit(self.options.timeout):
            return await connection.execute(query, parameters, prepare=False)

    # ---- Subscribers ------------------------------------------------------------------

    def tell_changed(self, heard: Set[str], changed: Collection[str]) -> None:
        """Tell subscribers of changed channels, and of all whose notifications they receive from now on."""
        for subscriber, channels in self.index.take_told(heard, changed).items():
            subscriber.put_changed(channels)

    def tell_all(self, event: Event) -> None:
        for subscriber in list(self.index.channels):
            subscriber.put(event)

    def begin(self, connected: Connected) -> None:
        self.stats.reconnects += self.connected_at > 0
        self.connected, self.failure = connected, None
        self.connected_at = self.heard = time.monotonic()
        logger.info("connected to PostgreSQL %s%s, mode %s", connected.server_version,
                    ", a standby" if connected.standby else "", connected.mode)
        self.tell_all(connected)

    async def until_changes(self, work: Awaitable[Any], timeout: float | None = None) -> asyncio.Future[Any]:
        """Run work until it ends, the wanted channels change, or the time is over."""
        task = asyncio.ensure_future(work)
        changes = asyncio.create_task(self.index.changes.wait())
        try:
            await asyncio.wait({task, changes}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            discard(task)
            raise
        finally:
            changes.cancel()
        return task

    # ---- LISTEN -------------------------------------------------------------------

    async def listen(self, connection: Connection, connected: Connected, pinpoint: bool, interval: float,
                     may_wait: bool) -> None:
        heartbeats = pinpoint and interval > 0
        if heartbeats:
            await self.execute(connection, sql.SQL("LISTEN {}").format(sql.Identifier(HEARTBEAT)))
        self.any_heartbeat = False
        await self.listen_to(connection, sorted(self.index.take_all()), [])
        changed: Collection[str] = self.listened
        if pinpoint:
            changed, self.position = await connection.fetch(
                self.options.timeout, CHANGED_SINCE, (self.position, sorted(self.listened)))
        self.begin(connected)
        self.tell_changed(self.listened, changed)
        asked = self.position  # of the last question
        asks = self.cannot_live is None and not heartbeats  # a server with positions of 1.1
        ask_at = self.next_question() if asks else math.inf
        quiet = 3 * interval if heartbeats else self.options.check_interval
        while True:
            # Only the reading is canceled: the cancellation of a query would end the connection.
            reader = await self.until_changes(self.read(connection, min(self.heard + quiet, ask_at)))
            if not reader.done():
                await cancel_all({reader})
            if not reader.cancelled():
                reader.result()
                if time.monotonic() >= self.heard + quiet:
                    await self.check(connection, pinpoint, heartbeats, may_wait)
            await self.listen_to(connection, *self.index.take_altered(self.listened))
            self.tell_changed(self.listened, ())
            if ask_at <= time.monotonic():
                asked, ask_at = await self.ask(connection, asked), self.next_question()

    async def listen_to(self, connection: Connection, new: list[str], gone: list[str]) -> None:
        """Make the connection listen to more channels, and to fewer."""
        self.listened.difference_update(gone)  # before they end: listened has only what is heard for certain
        statements = [sql.SQL("LISTEN {}").format(sql.Identifier(channel)) for channel in new]
        statements += [sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)) for channel in gone]
        if statements:
            await self.execute(connection, sql.SQL("; ").join(statements))
        self.listened.update(new)

    def next_question(self) -> float:
        return time.monotonic() + 6 * self.options.check_interval

    async def ask(self, connection: Connection, position: str | None) -> str | None:
        """Tell which watched tables have changed since a position. Returns the next position.

        Without heartbeats, there are changes that are not notified: for instance ALTER TABLE. A channel that is only
        notified may count as changed each time.
        """
        changed, position = await connection.fetch(
            self.options.timeout, TABLES_CHANGED, (position, sorted(self.listened)))
        self.tell_changed(self.listened, changed)
        return position

    async def read(self, connection: Connection, end: float) -> None:
        """Read notifications until the connection is lost, or this time."""
        async for notification in connection.notifies(timeout=max(0.01, end - time.monotonic())):
            self.heard = time.monotonic()
            if notification.channel == HEARTBEAT:
                self.any_heartbeat = True
                self.position = notification.payload.split(" ")[0]
                continue
            event = Notification(notification.channel, notification.payload, notification.pid)
            for subscriber in self.index.hearing(event.channel):
                subscriber.put(event)

    async def check(self, connection: Connection, pinpoint: bool, heartbeats: bool, may_wait: bool) -> None:
        """The connection has been quiet for too long. Is it lost?"""
        if heartbeats:
            if may_wait and not self.any_heartbeat and self.options.mode == "auto":
                await self.execute(connection, HAS_PINPOINT)  # it is not the connection
                self.waits = True
                logger.info("no heartbeat arrives by LISTEN: pinpoint.wait() is used")
            raise ConnectionLost("no heartbeat for three intervals")
        row = await (await self.execute(connection, HAS_PINPOINT)).fetchone()
        if row != (pinpoint,):
            raise ConnectionLost("the extension pg_pinpoint was created or dropped")
        self.heard = time.monotonic()

    # ---- pinpoint.wait() ------------------------------------------------------------

    async def wait(self, connection: Connection, connected: Connected, time_limit: float) -> None:
        connection.add_notify_handler(ignore)
        timeout = self.options.check_interval
        if time_limit:
            timeout = min(timeout, time_limit / 2)
        # The first call shows whether it works. It and each call after a cancellation are not canceled, and end at
        # once, so there are answers, however often the channels change.
        first = at_once = True
        while True:
            wanted = self.index.take_all()
            if self.connected:
                self.tell_changed(wanted, ())
            arguments = (sorted(wanted) or [HEARTBEAT], self.position, f"{0 if at_once else timeout} s")
            end = time.monotonic() + timeout + self.options.timeout
            call = await self.until_changes(connection.execute(WAIT, arguments, prepare=False), end - time.monotonic())
            while not call.done() and self.index.changes.is_set() and time.monotonic() < end:
                if at_once:
                    self.index.changes.clear()  # the next call has them
                elif self.index.has_new(wanted):
                    break
                else:  # only channels that the call has already
                    self.index.changes.clear()
                    self.tell_changed(wanted, ())
                call = await self.until_changes(call, end - time.monotonic())
            try:
                async with connection.limit(self.options.timeout):
                    if not call.done():
                        if not self.index.changes.is_set():
                            raise ConnectionLost(f"no answer for {timeout + self.options.timeout:g} seconds")
                        if not capabilities.has_cancel_safe():
                            return  # wait for the other channels on a new connection
                        await connection.cancel_statement(self.options.timeout)
                    changed, position = await (await call).fetchone()
            except psycopg.errors.QueryCanceled:
                at_once = True
                continue  # by this client, or by a timeout that the server has
            finally:
                await cancel_all({call})
            # A connection for other channels: the live queries have theirs.
            if first and self.connected and server_of(position) != server_of(self.position):
                raise ConnectionLost(OTHER_SERVER)
            first = at_once = False
            self.position, self.heard = position, time.monotonic()
            if not self.connected:
                self.begin(connected)
            self.tell_changed(wanted, changed)
            if changed:
                await asyncio.sleep(self.options.min_interval)
