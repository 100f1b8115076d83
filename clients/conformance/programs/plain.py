"""What an application writes without the package, and without any care for lost connections: events of a channel, or the
rows of a query after each notification on it."""

import json
import os
import sys

import psycopg

DSN = os.environ["PINPOINT_DSN"]
channel, query = (*sys.argv[1:], None)[:2]


def show(**event):
    print(json.dumps(event), flush=True)


with psycopg.connect(DSN, autocommit=True) as listening, psycopg.connect(DSN, autocommit=True) as querying:
    listening.execute(f"LISTEN {channel}")
    show(event="connected")
    for notification in listening.notifies():
        if query:
            show(event="rows", rows=querying.execute(query).fetchall())
        else:
            show(event="notification", channel=notification.channel, payload=notification.payload)
