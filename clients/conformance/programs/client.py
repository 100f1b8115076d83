"""The conformance program over the Python package: see "Conformance" in clients/README.md.

    client.py asyncio|threads subscribe CHANNEL...
    client.py asyncio|threads live QUERY
"""

import asyncio
import concurrent.futures
import json
import os
import sys
import threading

import pg_pinpoint
from psycopg.types.json import Jsonb
from pg_pinpoint import Changed, Connected, Disconnected, Notification, PinpointError, QueryError, Rows

one_line_at_a_time = threading.Lock()  # several threads print


def as_json(event):
    match event:
        case Notification(channel, payload, pid):
            return {"event": "notification", "channel": channel, "payload": payload, "pid": pid}
        case Changed(channels):
            return {"event": "changed", "channels": sorted(channels)}
        case Connected(version, standby, mode):
            return {"event": "connected", "mode": mode, "standby": standby, "server_version": version}
        case Disconnected(reason, retry_in):
            return {"event": "disconnected", "reason": reason, "retry_in": retry_in}
        case Rows(rows, columns):
            return {"event": "rows", "rows": rows, "columns": columns}
        case QueryError(message, sqlstate):
            return {"event": "error", "message": message, "sqlstate": sqlstate}


def show(event):
    with one_line_at_a_time:
        print(json.dumps(event, default=str), flush=True)


def hidden(value):
    """A parameter whose repr() is shortened."""
    return [Jsonb({"text": "x" * 100, "value": value})]


PARAMETER = "SELECT $1::jsonb ->> 'value'"


async def come_and_go(client, query):
    """Consumers of live queries come and go; then another one gets rows, and two with other parameters."""
    async def rows_of(live):
        while not isinstance(event := await anext(live), Rows):
            pass
        return event.rows

    async def one(number, wait):
        async with client.live(f"{query} -- {number % 10}") as live:
            if wait:
                await rows_of(live)
    await asyncio.gather(*(one(number, number % 3 == 0) for number in range(200)))
    await one(0, True)
    show({"event": "came_and_went"})
    async with client.live(PARAMETER, hidden("1")) as first, client.live(PARAMETER, hidden("2")) as second:
        show({"event": "parameters", "rows": [await rows_of(first), await rows_of(second)]})


def come_and_go_with_threads(client, query):
    def rows_of(live):
        while not isinstance(event := next(live), Rows):
            pass
        return event.rows

    def one(number, wait):
        with client.live(f"{query} -- {number % 10}") as live:
            if wait:
                rows_of(live)
    with concurrent.futures.ThreadPoolExecutor(20) as threads:
        list(threads.map(lambda number: one(number, number % 3 == 0), range(200)))
    one(0, True)
    show({"event": "came_and_went"})
    with client.live(PARAMETER, hidden("1")) as first, client.live(PARAMETER, hidden("2")) as second:
        show({"event": "parameters", "rows": [rows_of(first), rows_of(second)]})


async def run(address, options, mode, *arguments):
    """With asyncio."""
    async with pg_pinpoint.Client(address, **options) as client:
        events = client.live(arguments[0]) if mode == "live" else client.subscribe(*arguments)
        loop = asyncio.get_running_loop()
        if mode == "live":
            events.add = lambda _: asyncio.create_task(come_and_go(client, arguments[0]))

        def close():
            asyncio.run_coroutine_threadsafe(client.close(), loop)
        threading.Thread(target=commands, args=(client, events, close, loop.call_soon_threadsafe), daemon=True).start()
        async for event in events:
            # A consumer that is slow must not stop the client.
            await asyncio.to_thread(show, as_json(event))


def run_with_threads(address, options, mode, *arguments):
    client = pg_pinpoint.blocking.Client(address, **options)
    with client, client.live(arguments[0]) if mode == "live" else client.subscribe(*arguments) as events:
        if mode == "live":
            events.add = lambda _: come_and_go_with_threads(client, arguments[0])
        threading.Thread(target=commands, args=(client, events, client.close, lambda f, *a: f(*a)), daemon=True).start()
        for event in events:
            show(as_json(event))


def commands(client, events, close, call):
    """Lines of standard input: "+b" adds a channel, "-a" removes one, ">QUERY" opens another live query, "<" closes
    those, "!" closes the client; the end closes the events."""
    opened = []

    def open_another(query):
        opened.append(client.live(query))

    def close_them(_):
        for live in opened:
            live.close()
    for line in sys.stdin:
        kind, text = line[0], line[1:].rstrip("\n")
        if kind == "!":
            close()
        elif kind in "<>":
            call(open_another if kind == ">" else close_them, text)
        else:
            call(events.add if kind == "+" else events.remove, text)
    call(events.close)


def main():
    address, options = os.environ["PINPOINT_DSN"], json.loads(os.environ.get("PINPOINT_OPTIONS", "{}"))
    way, *arguments = sys.argv[1:]
    try:
        if way == "threads":
            run_with_threads(address, options, *arguments)
        else:
            asyncio.run(run(address, options, *arguments))
    except (PinpointError, ValueError) as error:
        show({"event": "error", "message": str(error), "sqlstate": getattr(error, "sqlstate", None)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
