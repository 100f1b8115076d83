"""The client with the fake server, and with a server in PINPOINT_DSN."""

import asyncio
import gc
import logging
import signal
import threading
import time
import warnings

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

import pg_pinpoint
from conftest import DEADLINE, MANAGED, event_of
from pg_pinpoint import Changed, Connected, Disconnected, Notification, PinpointError, QueryError, Rows
from pg_pinpoint._errors import ConnectionLost
from pg_pinpoint._live_query import LiveQuery
from pg_pinpoint._queue import EventQueue

QUICK = {"min_backoff": 0.01, "max_backoff": 0.05, "timeout": 0.5}
REFUSED = "host=127.0.0.1 port=1 connect_timeout=2"


def fail(*_, **__):
    raise ZeroDivisionError("planted")


# ---- Without a server ------------------------------------------------------------------


@pytest.mark.parametrize("script", ["no_code", "short_code", "cut", "unknown_messages"])
def test_odd_answers_are_tried_again(fake_server, run, script):
    async def work():
        async with pg_pinpoint.Client(fake_server(script), **QUICK) as client, client.subscribe("a") as events:
            for _ in range(5):
                event = await anext(events)
                assert isinstance(event, Disconnected) and event.reason.strip()
    run(work())


def test_slow_server_does_not_delay_close(fake_server, run):
    async def work():
        async with pg_pinpoint.Client(fake_server("slow"), timeout=60) as client, client.subscribe("a") as events:
            assert [event async for event in events.events(timeout=0.3)] == []
    started = time.monotonic()
    run(work())
    assert time.monotonic() - started < 10


def test_max_attempts(fake_server, run):
    async def work():
        async with pg_pinpoint.Client(fake_server("no_code"), max_attempts=2, **QUICK) as client:
            with pytest.raises(PinpointError):
                async for event in client.subscribe("a"):
                    assert isinstance(event, Disconnected)
    run(work())


@pytest.mark.parametrize("planted", ["tell_all", "run"])
def test_whatever_ends_the_listener_ends_the_subscriptions(run, monkeypatch, planted):
    async def broken(_):
        fail()
    monkeypatch.setattr("pg_pinpoint._listener.Listener." + planted, fail if planted == "tell_all" else broken)

    async def work():
        async with pg_pinpoint.Client(REFUSED, **QUICK) as client:
            with pytest.raises(PinpointError, match="planted") as raised:
                async for _ in client.subscribe("a"):
                    pass
            assert isinstance(raised.value.__cause__, ZeroDivisionError)
            with pytest.raises(PinpointError, match="planted"):
                client.subscribe("b")
    run(work())


def test_a_canceled_listener_ends_the_subscriptions(run):
    async def work():
        async with pg_pinpoint.Client(REFUSED) as client, client.subscribe("a") as events:
            await anext(events)
            for task in client._listener.tasks:
                task.cancel()
            with pytest.raises(PinpointError, match="failed"):
                await anext(events)
    run(work())


def test_a_consumer_that_comes_during_an_outage_is_told_at_once(run):
    async def work():
        async with pg_pinpoint.Client(REFUSED, min_backoff=1000, max_backoff=1000) as client:
            for open_one in lambda: client.subscribe("a"), lambda: client.subscribe("b"), lambda: client.live("SELECT 1"):
                async with open_one() as events:
                    event = await anext(events)
                    assert isinstance(event, Disconnected) and 100 < event.retry_in <= 1000
    run(work())


def test_close_is_an_error_of_its_own(run):
    async def work():
        client = pg_pinpoint.Client(REFUSED, min_backoff=1000, max_backoff=1000)
        events = client.subscribe("a")
        await client.close()
        with pytest.raises(pg_pinpoint.ClientClosed):
            async for _ in events:
                pass
        with pytest.raises(pg_pinpoint.ClientClosed):
            client.subscribe("b")
    run(work())
    blocking = pg_pinpoint.blocking.Client(REFUSED)
    blocking.close()
    with pytest.raises(pg_pinpoint.ClientClosed):
        blocking.subscribe("a")


def test_whatever_ends_a_live_query_ends_its_consumers(run, monkeypatch):
    async def broken(_):
        fail()
    monkeypatch.setattr(LiveQuery, "run", broken)

    async def work():
        async with pg_pinpoint.Client(REFUSED) as client:
            with pytest.raises(PinpointError, match="planted"):
                async for _ in client.live("SELECT 1"):
                    pass
            async with client.subscribe("a") as events:  # the client goes on
                assert isinstance(await anext(events), Disconnected)
    run(work())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whatever_ends_the_thread_ends_the_iterators():
    def end_thread():
        raise SystemExit
    client = pg_pinpoint.blocking.Client(REFUSED, min_backoff=DEADLINE, max_backoff=DEADLINE)
    with client, client.subscribe("a") as events:
        assert isinstance(next(events), Disconnected)
        client._thread.loop.call_soon_threadsafe(end_thread)
        with pytest.raises(PinpointError):
            next(events)
        with pytest.raises(PinpointError):
            client.subscribe("b")


def test_blocking_events_have_a_timeout_and_an_end():
    with pg_pinpoint.blocking.Client(REFUSED, **QUICK) as client, client.subscribe("a") as events:
        assert len(list(events.events(stop_after=2))) == 2
        assert list(events.events(stop_after=0)) == []
        assert len(list(events.events(timeout=0.5))) > 2
        threading.Timer(0.1, events.close).start()
        for event in events:
            assert isinstance(event, Disconnected)


def test_adding_a_channel_does_not_wait_for_the_thread():
    go_on, held = threading.Event(), []
    with pg_pinpoint.blocking.Client(REFUSED, **QUICK) as client, client.subscribe("a") as events:
        client._thread.loop.call_soon_threadsafe(lambda: held.append(go_on.wait(5)))
        events.add("b", "c")
        events.remove("c")
        with pytest.raises(ValueError, match="empty"):
            events.add("")
        go_on.set()
        next(events)
        assert held == [True] and client._listener.index.subscribers.keys() == {"a", "b"}


def test_an_interrupt_loses_no_event():
    def interrupt(*_):
        raise KeyboardInterrupt
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pg_pinpoint.blocking.Client(REFUSED, min_backoff=DEADLINE, max_backoff=DEADLINE) as client:
            with client.subscribe("a") as events:
                next(events)
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                with pytest.raises(KeyboardInterrupt):
                    next(events)
                for payload in "1", "2":
                    client._thread.call(events._consumer._queue.put, Notification("a", payload, 1)).result()
                assert [event.payload for event in events.events(stop_after=2)] == ["1", "2"]
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                with pytest.raises(KeyboardInterrupt):
                    next(events)
                signal.setitimer(signal.ITIMER_REAL, 10)
                assert list(events.events(timeout=0.1)) == []  # the call that was interrupted had no limit
                signal.setitimer(signal.ITIMER_REAL, 0)
                client._thread.call(events._consumer._queue.put, Notification("a", "3", 1)).result()
                assert next(events).payload == "3"
    finally:
        signal.signal(signal.SIGALRM, before)


def test_no_event_is_lost_by_timeouts(run):
    async def work():
        async with pg_pinpoint.Client(REFUSED, min_backoff=DEADLINE, max_backoff=DEADLINE) as client:
            async with client.subscribe("a") as events:
                await anext(events)
                got = []
                for number in range(300):
                    asyncio.get_running_loop().call_later(0.001, events._queue.put, Notification("a", str(number), 1))
                    got += [event.payload async for event in events.events(timeout=0.001)]
                got += [event.payload async for event in events.events(timeout=0.1)]
                assert got == [str(number) for number in range(300)]
    run(work())


def test_forgotten_clients_and_consumers_end_with_a_warning():
    client = pg_pinpoint.blocking.Client(REFUSED)
    thread, events = client._thread, client.subscribe("a")
    list(events.events(timeout=0.1))
    with pytest.warns(ResourceWarning, match="unclosed Subscription"):
        del events
        gc.collect()
    with pytest.warns(ResourceWarning, match="unclosed blocking.Client"):
        del client
        gc.collect()
    thread.thread.join(DEADLINE)
    assert not thread.thread.is_alive()


def test_a_forgotten_client_in_asyncio(run):
    async def work():
        client = pg_pinpoint.Client(REFUSED)
        tasks, events = client._listener.tasks, client.subscribe("a")
        await anext(events)
        with pytest.warns(ResourceWarning, match="unclosed Subscription"):
            del events
            gc.collect()
        with pytest.warns(ResourceWarning, match="unclosed Client"):
            del client
            gc.collect()
        while tasks:
            await asyncio.sleep(0.01)
    run(work())


def test_a_closed_client_gives_no_warning(run):
    async def work():
        async with pg_pinpoint.Client(REFUSED) as client:
            events = client.subscribe("a")
            await anext(events)
        del client, events
        gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(work())


def test_logging(run, caplog):
    async def work():
        async with pg_pinpoint.Client("host=127.0.0.1 port=1 password=secret", max_attempts=1, **QUICK) as client:
            with pytest.raises(PinpointError):
                async for _ in client.subscribe("a"):
                    pass
    with caplog.at_level(logging.INFO, "pg_pinpoint"):
        run(work())
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    assert "secret" not in caplog.text


def test_dispatch_counts_its_own_subscribers_only(run, monkeypatch):
    async def work():
        async with pg_pinpoint.Client(REFUSED) as client:
            others = [client.subscribe(f"c{number}") for number in range(5000)]
            asked = []
            monkeypatch.setattr(EventQueue, "put", lambda queue, event: asked.append(queue))
            index = client._listener.index
            index.take_told(index.take_all(), ())
            assert index.hearing("c7") == [others[7]._queue]
    run(work())


def test_failures_count_until_a_connection_has_lasted(run, monkeypatch):
    counted = []
    lasting = iter([None, 0, 0, None, 100, None])  # seconds that the connection has worked; None: not at all

    async def session(listener):
        if (seconds := next(lasting, None)) is not None:
            listener.begin(Connected(180000, False, "push"))
            listener.connected_at -= seconds
        raise ConnectionLost("lost")
    monkeypatch.setattr("pg_pinpoint._listener.Listener.session", session)
    monkeypatch.setattr("pg_pinpoint._listener.backoff", lambda failures, *_: counted.append(failures) or 0.0)

    async def work():
        async with pg_pinpoint.Client(max_attempts=4, max_backoff=15) as client, client.subscribe("a") as events:
            with pytest.raises(PinpointError, match="lost"):
                async for _ in events:
                    pass
    run(work())
    assert counted == [1, 2, 3, 4, 1, 2, 3, 4]


def test_a_channel_that_comes_back_during_unlisten_is_listened_on_again(run):
    async def work():
        async with pg_pinpoint.Client(REFUSED) as client:
            listener, index = client._listener, client._listener.index
            index.join("subscriber")
            index.add("subscriber", ["a"])
            listener.listened = index.take_all()
            index.remove("subscriber", ["a"])

            async def unlisten(*_):
                assert "a" not in listener.listened  # otherwise a live query would take it for listened on
                index.add("subscriber", ["a"])
            listener.execute = unlisten
            await listener.listen_to(None, *index.take_altered(listener.listened))
            assert index.take_altered(listener.listened) == (["a"], [])
            index.leave("subscriber")
    run(work())


# ---- With a server ------------------------------------------------------------------------


def watched(server, table):
    server.execute(f"DROP TABLE IF EXISTS {table}")
    server.execute(f"CREATE TABLE {table} (n int)")
    server.execute("SELECT pinpoint.watch(%s)", (table,))


def test_notifications_stats_and_idle_sessions(dsn, server, run):
    async def work():
        async with pg_pinpoint.Client(dsn) as client, client.subscribe("py_a") as events:
            assert client.stats().last_sign_of_life is None
            assert isinstance(await anext(events), Connected)
            assert await anext(events) == Changed(frozenset(["py_a"]))
            server.execute("NOTIFY py_a, 'x'")
            assert (await event_of(events, Notification)).payload == "x"
            events.add("py_b")
            assert await anext(events) == Changed(frozenset(["py_b"]))
            assert client.stats().events_given == 4 and client.stats().last_sign_of_life < DEADLINE
            assert client.stats().reconnects == client.stats().events_dropped == 0
            await asyncio.sleep(0.5)  # longer than the session may be idle
            server.execute("NOTIFY py_b, 'y'")
            assert (await anext(events)).payload == "y"
    role = psycopg.conninfo.make_conninfo(dsn, options="-c idle_session_timeout=200")
    for dsn in dsn, role:
        run(work())


def test_live_query_with_row_factory_and_parameters(dsn, server, run):
    watched(server, "py_live")

    async def work():
        async with pg_pinpoint.Client(dsn) as client:
            query = "SELECT n FROM py_live WHERE n > $1"
            async with client.live(query, [1]) as live, client.live(query, (1,), row_factory=dict_row) as dicts:
                assert (await event_of(live, Rows)).rows == []
                server.execute("INSERT INTO py_live VALUES (1), (2)")
                while (await event_of(live, Rows)).rows != [(2,)]:
                    pass
                while (await event_of(dicts, Rows)).rows != [{"n": 2}]:
                    pass
                assert len(client._listener.live) == 2
                async with client.live(query, [1]), client.live("SELECT $1::jsonb", [Jsonb(1)]), \
                        client.live("SELECT $1::jsonb", [Jsonb(1)]):
                    assert len(client._listener.live) == 4
            assert not client._listener.live
            with pytest.raises(TypeError):
                client.live(query, "ab")
    run(work())


@pytest.fixture
def managed(dsn, server):
    """A database with managed/pinpoint.sql, which has positions but no heartbeats, and a connection to it."""
    server.execute("DROP DATABASE IF EXISTS py_managed")
    server.execute("CREATE DATABASE py_managed")
    dsn = psycopg.conninfo.make_conninfo(dsn, dbname="py_managed")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(MANAGED.read_text())
        yield dsn, connection
    server.execute("DROP DATABASE py_managed WITH (FORCE)")


@pytest.mark.parametrize("busy", [False, True])
def test_without_heartbeats_live_queries_ask_for_what_is_not_notified(managed, run, busy):
    dsn, connection = managed
    watched(connection, "t")
    connection.execute("INSERT INTO t VALUES (1)")

    async def notify(client):
        while client._listener.connected:
            connection.execute("NOTIFY other")
            await asyncio.sleep(0.01)

    async def work():
        async with pg_pinpoint.Client(dsn, check_interval=0.05) as client, client.subscribe("other") as events, \
                client.live("SELECT * FROM public.t") as live:
            assert (await event_of(live, Rows)).rows == [(1,)]
            await event_of(events, Changed)
            query = client._listener.live[next(iter(client._listener.live))]
            while query.dirty or not query.execution.done():
                await asyncio.sleep(0.01)  # what the beginning has caused is over
            position = client._listener.position
            notifying = asyncio.create_task(notify(client)) if busy else None
            connection.execute("ALTER TABLE t ADD COLUMN m int DEFAULT 7")
            while (await event_of(live, Rows)).rows != [(1, 7)]:
                pass
            assert client._listener.position == position
            if notifying:
                notifying.cancel()
            assert Changed not in {type(event) async for event in events.events(timeout=1)}
            live.close()
    run(work())


def test_channels_that_change_during_a_check_lose_no_connection(managed, run):
    dsn, connection = managed

    async def work():
        async with pg_pinpoint.Client(dsn, check_interval=0.001) as client, client.subscribe("c") as events:
            await event_of(events, Changed)
            for number in range(300):
                events.add(f"c{number}")
                await asyncio.sleep(number % 10 * 0.0005 + 0.01)
            assert client.stats().reconnects == 0 and client._listener.connected
            assert {type(event) async for event in events.events(timeout=0.1)} == {Changed}
    run(work())


def test_a_failed_question_is_a_lost_connection(managed, run):
    dsn, connection = managed
    watched(connection, "t")
    connection.execute("DROP ROLE IF EXISTS py_asking")
    connection.execute("CREATE ROLE py_asking LOGIN")
    connection.execute("GRANT SELECT ON t TO py_asking")
    dsn = psycopg.conninfo.make_conninfo(dsn, user="py_asking")

    async def work():
        async with pg_pinpoint.Client(dsn, check_interval=0.05, min_backoff=0.01, max_backoff=0.1) as client:
            async with client.live("SELECT n FROM public.t") as live:
                await event_of(live, Rows)
                connection.execute("REVOKE EXECUTE ON FUNCTION pinpoint.changed_since FROM public, py_asking")
                assert "permission denied" in (await event_of(live, Disconnected)).reason
                connection.execute("GRANT EXECUTE ON FUNCTION pinpoint.changed_since TO py_asking")
                await event_of(live, Rows)
    try:
        run(work())
    finally:
        connection.execute("DROP OWNED BY py_asking")
        connection.execute("DROP ROLE py_asking")


def first_error(run, dsn):
    """Of a live query that fails. A consumer that comes meanwhile is told at once."""
    async def work():
        async with pg_pinpoint.Client(dsn, min_backoff=1000, max_backoff=1000) as client, client.live("SELECT 1") as live:
            error = await event_of(live, QueryError)
            async with client.live("SELECT 1") as other:
                assert await asyncio.wait_for(anext(other), DEADLINE) == error
            return error
    return run(work())


def test_extension_at_1_0(dsn, server, run):
    server.execute("DROP DATABASE IF EXISTS py_old")
    server.execute("CREATE DATABASE py_old")
    old = psycopg.conninfo.make_conninfo(dsn, dbname="py_old")
    with psycopg.connect(old, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_pinpoint VERSION '1.0'")
    error = first_error(run, old)
    server.execute("DROP DATABASE py_old WITH (FORCE)")
    assert error.sqlstate == "0A000" and "needs pg_pinpoint 1.1" in error.message


def test_role_without_usage(dsn, server, run):
    server.execute("DROP ROLE IF EXISTS py_stranger")
    server.execute("CREATE ROLE py_stranger LOGIN")
    server.execute("CREATE DATABASE py_private")
    private = psycopg.conninfo.make_conninfo(dsn, dbname="py_private")
    try:
        with psycopg.connect(private, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_pinpoint")
            connection.execute("REVOKE USAGE ON SCHEMA pinpoint FROM public")
        stranger = psycopg.conninfo.make_conninfo(private, user="py_stranger")
        error = first_error(run, stranger)
        assert error.sqlstate == "42501" and 'GRANT USAGE ON SCHEMA pinpoint TO "py_stranger"' in error.message

        async def work():
            async with pg_pinpoint.Client(stranger, check_interval=0.1) as client, client.subscribe("a") as events:
                assert [type(event) async for event in events.events(timeout=0.5)] == [Connected, Changed]
        run(work())
    finally:
        server.execute("DROP DATABASE py_private WITH (FORCE)")
        server.execute("DROP ROLE py_stranger")


def test_a_waiting_live_query_occupies_no_connection(dsn, server, run):
    for number in range(4):
        watched(server, f"py_held{number}")

    async def work():
        async with pg_pinpoint.Client(dsn, query_connections=1) as client:
            lives = [client.live(f"SELECT n FROM py_held{number}") for number in range(4)]
            listen_to, held = client._listener.listen_to, asyncio.Event()

            async def late(*arguments):
                await held.wait()
                await listen_to(*arguments)
            async with client.subscribe("py_other") as events:
                await event_of(events, Connected)
            client._listener.listen_to = late
            while len(client._listener.index.untold) < 4:
                await asyncio.sleep(0.01)
            assert len(client._listener.connections.idle) == 1
            held.set()
            for live in lives:
                await event_of(live, Rows)
                live.close()
    run(work())
