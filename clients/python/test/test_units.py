"""Parts of the package, without a server."""

import inspect
import time

import psycopg
import pytest

import pg_pinpoint
from pg_pinpoint import Changed, Connected, Disconnected, Notification, PinpointError, QueryError, Rows, Stats
from pg_pinpoint._backoff import backoff
from pg_pinpoint._errors import PERMANENT, PERMANENT_TEXTS, is_permanent
from pg_pinpoint._index import Index
from pg_pinpoint._live_query import identity
from pg_pinpoint._queue import EventQueue, Newest
from pg_pinpoint._subscription import check_channels

CLIENTS = pg_pinpoint.Client, pg_pinpoint.blocking.Client


# ---- backoff ----------------------------------------------------------------------


@pytest.mark.parametrize("failures, longest", [(1, 0.1), (2, 0.2), (3, 0.4), (8, 12.8), (9, 15), (10**6, 15)])
def test_backoff_doubles_to_a_limit(failures, longest):
    assert backoff(failures, 0.1, 15, uniform=lambda low, high: high) == pytest.approx(longest)
    assert backoff(failures, 0.1, 15, uniform=lambda low, high: low) == pytest.approx(longest / 2)
    assert longest / 2 <= backoff(failures, 0.1, 15) <= longest + 1e-9


# ---- options ----------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name, value, error", [
    ("mode", "wiat", ValueError), ("mode", None, ValueError), ("min_interval", -1, ValueError),
    ("timeout", 0, ValueError), ("timeout", float("inf"), ValueError), ("timeout", float("nan"), ValueError),
    ("timeout", "10", TypeError), ("timeout", None, TypeError), ("timeout", True, TypeError), ("buffer", -1, ValueError),
    ("buffer", 0.5, TypeError), ("max_attempts", -1, ValueError), ("max_attempts", 1.5, TypeError),
    ("query_connections", 0, ValueError), ("query_connections", -1, ValueError), ("max_backoff", 0.01, ValueError),
    ("min_backof", 1, psycopg.ProgrammingError), ("autocommit", True, ValueError), ("row_factory", None, ValueError)])
def test_options_are_checked(client, name, value, error):
    with pytest.raises(error, match=name):
        client("dbname=postgres", **{name: value})


def test_no_limit_and_options_of_the_driver():
    with pg_pinpoint.blocking.Client("dbname=postgres", max_attempts=None, query_timeout=None, user="somebody",
                                     sslmode="disable", prepare_threshold=None):
        pass


def test_blocking_client_has_the_same_options():
    assert inspect.signature(CLIENTS[0]) == inspect.signature(CLIENTS[1])


def test_nothing_internal_is_public():
    public = {name for kind in (*CLIENTS, pg_pinpoint.Subscription, pg_pinpoint.Live, pg_pinpoint.blocking.Subscription,
                                pg_pinpoint.blocking.Live) for name in dir(kind) if not name.startswith("_")}
    assert public == {"subscribe", "live", "stats", "close", "add", "remove", "events", "closed"}
    with pg_pinpoint.blocking.Client() as client:
        assert not [name for name in vars(client) if not name.startswith("_")]


# ---- errors -------------------------------------------------------------------------


class ServerError(Exception):
    def __init__(self, message, sqlstate):
        super().__init__(message)
        self.sqlstate = sqlstate


@pytest.mark.parametrize("sqlstate", PERMANENT)
def test_permanent_sqlstates(sqlstate):
    assert is_permanent(ServerError("något annat språk", sqlstate))


@pytest.mark.parametrize("sqlstate", ["57P03", "08006", "2", "28", "é", "280001", "42P01"])
def test_other_sqlstates_count_before_the_text(sqlstate):
    assert not is_permanent(ServerError("password authentication failed", sqlstate))


TEXTS = {
    r"authentication failed": 'FATAL:  SCRAM authentication failed for user "u"',
    r"authentication method": "authentication method 7 not supported",
    r"password": "fe_sendauth: no password supplied",
    r"pg_hba\.conf": 'FATAL:  no pg_hba.conf entry for host "::1", user "u", database "d", no encryption',
    r"role .* does not exist": 'FATAL:  role "u" does not exist',
    r"database .* does not exist": 'FATAL:  database "d" does not exist',
    r"permission denied": 'FATAL:  permission denied for database "d"',
    r"not permitted to log in": 'FATAL:  role "u" is not permitted to log in',
    r"certificate": "SSL error: certificate verify failed",
    r"unknown ca": "SSL error: tlsv1 alert unknown ca",
    r"does not support SSL": "server does not support SSL, but SSL was required"}


@pytest.mark.parametrize("pattern", PERMANENT_TEXTS)
def test_permanent_texts(pattern):
    prefix = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '
    assert is_permanent(ServerError(prefix + TEXTS[pattern], None))
    # No other entry takes it.
    assert [p for p in PERMANENT_TEXTS if __import__("re").search(p, TEXTS[pattern])] == [pattern]


@pytest.mark.parametrize("text", [
    "connection refused", "FATAL:  the database system is starting up", "FATAL:  no such upstream", "",
    'could not translate host name "password" to address',
    "the server is starting up\nMultiple connection attempts failed. All failures were:\n- password"])
def test_other_texts(text):
    assert not is_permanent(ServerError(text, None))


def test_errors_of_the_package_are_permanent():
    assert is_permanent(PinpointError("a pooler")) and is_permanent(PinpointError("needs pg_pinpoint 1.1", "0A000"))


# ---- queues -----------------------------------------------------------------------


@pytest.mark.parametrize(("name", "error"), [("", ValueError), ("x" * 64, ValueError), ("a\0b", ValueError),
                                             ("pinpoint_heartbeat", ValueError), (1, TypeError)])
def test_names_of_channels_are_checked(name, error):
    with pytest.raises(error):
        check_channels(["a", name])


def test_a_notification_that_does_not_fit_becomes_a_changed():
    stats = Stats()
    queue = EventQueue(stats, 450)
    for number in range(5):
        queue.put(Notification("a", str(number), 1))
    queue.put(Connected(180000, False, "push"))
    assert [queue.take() for _ in range(4)] == [
        Notification("a", "0", 1), Notification("a", "1", 1), Changed(frozenset("a")), None]
    assert queue.size == 0 and stats.events_dropped == 4


def test_a_live_query_gives_its_newest_event_and_an_error_once():
    queue = Newest(Stats())
    error = QueryError("wrong", "42P01")
    queue.put(Rows([(1,)], ("n",)))
    queue.put(error)
    assert queue.take() == error
    queue.put(QueryError("wrong", "42P01"))
    assert queue.take() is None
    queue.put(QueryError("wrong", "42703"))
    assert queue.take() == QueryError("wrong", "42703")
    for between in Disconnected("lost", 1), Rows([], ()):
        queue.put(between)
        queue.take()
        queue.put(error)
        assert queue.take() == error


# ---- parameters ---------------------------------------------------------------------


def test_equal_parameters():
    assert identity([1, "a", None, b"x", [1, [2.5]]]) == identity([1, "a", None, b"x", [1, [2.5]]])
    for one, other in (1, True), (1, 1.0), (0.0, -0.0), ("1", 1), ([1], [[1]]), (None, "None"):
        assert identity([one]) != identity([other])
    with pytest.raises(TypeError):
        identity([object()])


# ---- the index -----------------------------------------------------------------------


def test_index_tells_each_channel_once():
    index = Index()
    for subscriber in "first", "second":
        index.join(subscriber)
        index.add(subscriber, ["a"])
    assert index.take_altered(set()) == (["a"], [])
    assert index.hearing("a") == []  # not before its Changed
    assert index.take_told({"a"}, ()) == {"first": {"a"}, "second": {"a"}}
    assert sorted(index.hearing("a")) == ["first", "second"]
    index.remove("first", ["a", "never added"])
    assert index.take_altered({"a"}) == ([], []) and index.hearing("a") == ["second"]
    index.leave("second")
    assert index.take_altered({"a"}) == ([], ["a"])
    assert not index.subscribers and not index.untold and index.take_told({"a"}, {"a"}) == {}
    index.add("second", ["b"])
    assert not index.subscribers  # it has left


def processor_time(index, listened, times=300):
    """To add and remove a subscriber, and to dispatch a notification."""
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        for number in range(times):
            index.join("other")
            index.add("other", ["another", "c1"])
            index.take_altered(listened)
            index.take_told(listened, ())
            index.hearing("c1")
            index.leave("other")
        best = min(best, time.process_time() - started)
    return best / times


def test_costs_do_not_depend_on_the_other_channels():
    def index_with(channels, subscribers):
        index = Index()
        for number in range(subscribers):
            index.join(number)
            index.add(number, [f"c{n}" for n in range(number, channels, subscribers)])
        index.take_told(index.take_all(), ())
        return index, {f"c{n}" for n in range(channels)}
    few, many = processor_time(*index_with(10, 5)), processor_time(*index_with(40000, 5000))
    assert many < 10 * few
