"""The connection that receives notifications: by LISTEN and heartbeats, or by pinpoint.wait()."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import secrets
import socket
import time
from collections.abc import Set
from typing import TYPE_CHECKING, Any, AsyncIterator, Awaitable, Collection

import psycopg
from psycopg import capabilities, sql

from ._events import Connected, Disconnected, Event, Notification, PinpointError

if TYPE_CHECKING:
    from ._client import Client, Subscription
    from ._live import LiveQuery

HEARTBEAT = "pinpoint_heartbeat"

# to_regproc returns NULL on a server without pg_pinpoint.
INQUIRY = """
    SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), pg_backend_pid(),
           to_regproc('pinpoint.changed_since') IS NOT NULL,
           to_regproc('pinpoint.wait') IS NOT NULL,
           coalesce((SELECT setting::float8 / 1000 FROM pg_settings
                      WHERE name = 'pinpoint.heartbeat_interval'), 0),
           (SELECT coalesce(min(setting::float8), 0) / 1000 FROM pg_settings
            WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0')"""
HAS_PINPOINT = "SELECT to_regproc('pinpoint.changed_since') IS NOT NULL"
CHANGED_SINCE = "SELECT changed, position FROM pinpoint.changed_since(%s, VARIADIC %s::text[])"
WAIT = "CALL pinpoint.wait(%s::text[], %s::text, %s::interval)"

NO_LISTEN = (
    "LISTEN does not work through this connection, because a pooler gives each transaction another session."
    " Connect to the server, or to a pool in session mode, or install pg_pinpoint 1.1 or later in this database."
)


class ConnectionLost(Exception):
    """The server does not answer any more, or its extension has changed."""


@contextlib.asynccontextmanager
async def limit(connection: Connection, seconds: float) -> AsyncIterator[None]:
    """Time for the server to answer. Not with a cancellation, for which psycopg waits for the server."""
    timer = asyncio.get_running_loop().call_later(seconds, cut, connection)
    try:
        yield
    except psycopg.Error:
        if timer.when() <= asyncio.get_running_loop().time():
            raise ConnectionLost("the server does not answer") from None
        raise
    finally:
        timer.cancel()


def cut(connection: Connection) -> None:
    """Closes the connection, so that pending calls fail."""
    connection.is_cut = True
    with contextlib.suppress(psycopg.Error, OSError), socket.fromfd(
            connection.pgconn.socket, socket.AF_INET, socket.SOCK_STREAM) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def discard(task: asyncio.Future[Any]) -> None:
    """Cancel a task whose result is not used, also if it is an error."""
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    task.cancel()


class Connection(psycopg.AsyncConnection[Any]):
    is_cut = False

    async def cancel_safe(self, *, timeout: float = 30.0) -> None:
        """Psycopg calls it for each task that is canceled.

        Not after cut(), as the server may be silent. Not before libpq 17, which would wait for it without a limit.
        """
        if not self.is_cut and capabilities.has_cancel_safe():
            await super().cancel_safe(timeout=timeout)


def ignore(_: object) -> None:
    """Discard a notification: a pooler also delivers those of its other clients, and they would be collected."""


class Listener:
    """Keeps one connection that receives the notifications of a client."""

    def __init__(self, client: Client):
        self.client = client
        self.subscribers: set[Subscription | LiveQuery] = set()
        self.listened: set[str] = set()
        self.heard = 0.0  # time of the last notification
        self.any_heartbeat = False
        self.position: str | None = None
        self.waits = client.mode == "wait"
        self.connected: Connected | None = None
        self.ever_connected = False
        self.changes = asyncio.Event()  # the channels of the subscribers have changed
        client.start(self.run())

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                await self.session()
                continue  # with other channels
            except Exception as error:  # whatever it is, the application is told, and nothing is missed
                if self.client.error:
                    return  # closed: this was the cancellation
                reason = describe(error)
                sqlstate = getattr(error, "sqlstate", None)
                final = not self.ever_connected and (isinstance(error, PinpointError) or is_permanent(error))
            if sqlstate == "22P02":
                self.position = None  # of a false heartbeat, or unknown to an older version: ask without
            failures = 1 if self.connected else failures + 1
            self.connected = None
            self.client.drop_query_connections()
            if final or failures > self.client.max_attempts:
                self.client.fail(PinpointError(reason, sqlstate))
                return
            delay = min(self.client.max_backoff, self.client.min_backoff * 2 ** min(failures - 1, 30))
            delay *= random.uniform(0.5, 1)
            self.tell_all(Disconnected(reason, delay))
            await asyncio.sleep(delay)

    async def session(self) -> None:
        """Connect, and receive until the connection is lost. It returns if a new one is needed for other channels."""
        connection = await self.client.connect()
        try:
            self.listened.clear()
            version, standby, pid, pinpoint, has_wait, interval, time_limit = await self.fetch(connection, INQUIRY)
            pooled = pid != connection.info.backend_pid
            # If only the channels have changed, the client is still connected.
            waits = self.waits or self.connected is not None and self.connected.mode == "wait"
            if pooled and not waits and self.client.mode == "auto":
                waits = not await self.hears_through_pooler(connection, standby, has_wait)
            if waits and not has_wait:
                raise PinpointError("waiting needs the extension pg_pinpoint 1.1 or later in this database")
            if not pinpoint:
                self.position = None
            connected = Connected(version, standby, "wait" if waits else "push")
            if waits:
                await self.wait(connection, connected, time_limit)
            else:
                await self.listen(connection, connected, pinpoint, has_wait, interval, pooled)
        finally:
            await connection.close()

    async def fetch(self, connection: Any, query: Any, parameters: Any = None) -> Any:
        """Execute a query at READ COMMITTED, which the functions need, and return its row."""
        async with limit(connection, self.client.timeout):
            await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            row = await (await connection.execute(query, parameters, prepare=False)).fetchone()
            await connection.execute("COMMIT")
        return row

    async def hears_through_pooler(self, connection: Any, standby: bool, has_wait: bool) -> bool:
        """Does a notification arrive while no transaction is running?"""
        if standby:
            return not has_wait  # a standby cannot notify
        channel = "pinpoint_probe_" + secrets.token_hex(8)
        await self.execute(connection, sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        other = await self.client.connect()
        try:
            await self.execute(other, "SELECT pg_notify(%s, '')", (channel,))
        finally:
            await other.close()
        heard = False
        async for notification in connection.notifies(timeout=self.client.probe_timeout):
            if heard := notification.channel == channel:
                break
        await self.execute(connection, sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
        if not heard and not has_wait:
            raise PinpointError(NO_LISTEN)
        return heard

    async def execute(self, connection: Any, query: Any, parameters: Any = None) -> Any:
        async with limit(connection, self.client.timeout):
            return await connection.execute(query, parameters, prepare=False)

    # ---- Channels -----------------------------------------------------------------

    def wanted(self) -> set[str]:
        self.changes.clear()
        return set().union(*(subscriber.channels for subscriber in self.subscribers))

    def covers(self, asked: Set[str]) -> bool:
        """Does a call that waits for these channels have all wanted ones? Then it continues, and subscribers are told."""
        if not self.wanted() <= asked:
            self.changes.set()
            return False
        self.tell_changed(asked, ())
        return True

    def tell_changed(self, heard: Set[str], changed: Collection[str]) -> None:
        """Tell subscribers of changed channels, and of all whose notifications they receive from now on."""
        for subscriber in self.subscribers:
            channels = {c for c in subscriber.channels & heard if c in changed or c not in subscriber.heard}
            subscriber.heard |= channels
            if channels:
                subscriber.put_changed(channels)

    def tell_all(self, event: Event) -> None:
        for subscriber in self.subscribers:
            subscriber.put(event)

    def begin(self, connected: Connected) -> None:
        self.connected = connected
        self.ever_connected = True
        self.tell_all(connected)

    async def until_changes(self, work: Awaitable[Any], timeout: float | None = None) -> asyncio.Task[Any]:
        """Run work until it ends, the wanted channels change, or the time is over."""
        task = asyncio.ensure_future(work)
        changes = asyncio.create_task(self.changes.wait())
        try:
            await asyncio.wait({task, changes}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            discard(task)
            raise
        finally:
            changes.cancel()
        return task

    # ---- LISTEN -------------------------------------------------------------------

    async def listen(self, connection: Any, connected: Connected, pinpoint: bool, has_listen: bool,
                     interval: float, pooled: bool) -> None:
        heartbeats = pinpoint and interval > 0
        if heartbeats:
            await self.execute(connection, sql.SQL("LISTEN {}").format(sql.Identifier(HEARTBEAT)))
        self.heard, self.any_heartbeat = time.monotonic(), False  # of the connection, also if the channels change
        while True:
            wanted = self.wanted()
            await self.listen_to(connection, wanted, has_listen)
            changed: Collection[str] = ()
            if not self.connected:
                changed = wanted
                if pinpoint:
                    changed, self.position = await self.fetch(connection, CHANGED_SINCE, (self.position, sorted(wanted)))
                self.begin(connected)
            self.tell_changed(wanted, changed)

            reader = await self.until_changes(self.read(connection, pinpoint, interval if heartbeats else 0, pooled and has_listen))
            if not reader.done():
                discard(reader)
                await asyncio.wait({reader})
            if not reader.cancelled():
                reader.result()

    async def listen_to(self, connection: Any, wanted: set[str], has_listen: bool) -> None:
        """Make the connection listen to these channels."""
        new, gone = sorted(wanted - self.listened), sorted(self.listened - wanted)
        if has_listen:
            for function, channels in ("listen", new), ("unlisten", gone):
                if channels:
                    await self.execute(connection, f"SELECT pinpoint.{function}(VARIADIC %s::text[])", (channels,))
        else:
            statements = [sql.SQL("LISTEN {}").format(sql.Identifier(c)) for c in new]
            statements += [sql.SQL("UNLISTEN {}").format(sql.Identifier(c)) for c in gone]
            if statements:
                await self.execute(connection, sql.SQL("; ").join(statements))
        self.listened = wanted

    async def read(self, connection: Any, pinpoint: bool, interval: float, may_wait: bool) -> None:
        """Read notifications until the connection is lost. interval: of heartbeats, 0 without."""
        quiet = 3 * interval if interval else self.client.check_interval
        while True:
            async for notification in connection.notifies(timeout=max(0.01, self.heard + quiet - time.monotonic())):
                self.heard = time.monotonic()
                if notification.channel == HEARTBEAT:
                    self.any_heartbeat = True
                    self.position = notification.payload.split(" ")[0]
                    continue
                event = Notification(notification.channel, notification.payload, notification.pid)
                for subscriber in self.subscribers:
                    if event.channel in subscriber.heard:
                        subscriber.put(event)
            if time.monotonic() < self.heard + quiet:
                continue
            if interval:
                if may_wait and not self.any_heartbeat and self.client.mode == "auto":
                    await self.execute(connection, HAS_PINPOINT)  # it is not the connection
                    self.waits = True
                raise ConnectionLost(f"no heartbeat for {quiet:g} seconds")
            (has_pinpoint,) = await (await self.execute(connection, HAS_PINPOINT)).fetchone()
            if has_pinpoint != pinpoint:
                raise ConnectionLost("the extension pg_pinpoint was created or dropped")
            self.heard = time.monotonic()

    # ---- pinpoint.wait() ------------------------------------------------------------

    async def wait(self, connection: Any, connected: Connected, time_limit: float) -> None:
        connection.add_notify_handler(ignore)
        timeout = self.client.check_interval
        if time_limit:
            timeout = min(timeout, time_limit / 2)
        # The first call shows whether it works. It and each call after a cancellation are not canceled, and end at
        # once, so there are answers, however often the channels change.
        first = at_once = True
        while True:
            wanted = self.wanted()
            if self.connected:
                self.tell_changed(wanted, ())
            arguments = (sorted(wanted) or [HEARTBEAT], self.position, f"{0 if at_once else timeout} s")
            end = time.monotonic() + timeout + self.client.timeout
            call = await self.until_changes(connection.execute(WAIT, arguments, prepare=False), end - time.monotonic())
            while not call.done() and self.changes.is_set() and time.monotonic() < end:
                if at_once:
                    self.changes.clear()  # the next call has them
                elif not self.covers(wanted):
                    break
                call = await self.until_changes(call, end - time.monotonic())
            try:
                async with limit(connection, self.client.timeout):
                    if not call.done():
                        if not self.changes.is_set():
                            raise ConnectionLost(f"no answer for {timeout + self.client.timeout:g} seconds")
                        if not capabilities.has_cancel_safe():
                            return  # wait for the other channels on a new connection
                        await connection.cancel_safe(timeout=self.client.timeout)
                    changed, position = await (await call).fetchone()
            except psycopg.errors.QueryCanceled:
                at_once = True
                continue  # by this client, or by a timeout that the server has
            finally:
                discard(call)
                if not call.done():
                    cut(connection)
                    await asyncio.wait({call})
            # A connection for other channels: the live queries have theirs.
            if first and self.connected and server_of(position) != server_of(self.position):
                raise ConnectionLost("the connection leads to another server")
            first = at_once = False
            self.position = position
            if not self.connected:
                self.begin(connected)
            self.tell_changed(wanted, changed)
            if changed:
                await asyncio.sleep(self.client.min_interval)


def server_of(position: str | None) -> list[str] | None:
    """The part of a position that tells the server."""
    return position.split("-")[:2] if position else None


def describe(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "the server does not answer"
    text = str(error).strip() or type(error).__name__
    hint = getattr(getattr(error, "diag", None), "message_hint", None)
    return f"{text} ({hint})" if hint and hint not in text else text


def is_permanent(error: Exception) -> bool:
    """Is it an error that another attempt does not mend: authorization, no such database, no such feature?

    libpq gives no SQLSTATE of errors while it connects.
    """
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate:
        return sqlstate[:2] in ("28", "3D", "42", "0A")
    last = str(error).split("\nMultiple connection attempts failed")[0]  # psycopg lists all of them after it
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "", last)  # without names
    return re.search(r"authentication (failed|method)|password|pg_hba\.conf|(role|database) .* does not exist|permission denied|not permitted to log in"
                     r"|certificate|unknown ca|does not support SSL", text) is not None
