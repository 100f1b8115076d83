"""Server-sent events: each browser gets the rows of a live query. A request that ends also ends its query.

    PINPOINT_DSN=postgresql:///shop PORT=8000 python server_sent_events.py

Needs a table that is watched: CREATE TABLE orders (id int, total int); SELECT pinpoint.watch('orders').
"""

import asyncio
import contextlib
import json
import os

import pg_pinpoint
from pg_pinpoint import Rows

QUERY = "SELECT id, total FROM orders ORDER BY id"
HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"


async def send_rows(client, writer):
    async with client.live(QUERY) as orders:  # all browsers share one execution
        async for event in orders:
            if isinstance(event, Rows):
                text = "data: " + json.dumps(event.rows)
            else:  # QueryError, Disconnected: the rows may be old until the next ones
                text = "event: stale\ndata:"
            writer.write(text.encode() + b"\n\n")
            await writer.drain()


async def serve(client, reader, writer):
    with contextlib.closing(writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEADERS)
        sending = asyncio.create_task(send_rows(client, writer))
        gone = asyncio.create_task(reader.read())  # ends when the browser does
        await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        sending.cancel()
        gone.cancel()


async def main():
    async with pg_pinpoint.Client(os.environ.get("PINPOINT_DSN", "")) as client:
        server = await asyncio.start_server(lambda *streams: serve(client, *streams), "127.0.0.1", int(os.environ["PORT"]))
        async with server:
            print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flush=True)  # PORT=0: any free port
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
