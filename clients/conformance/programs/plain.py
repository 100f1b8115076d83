"""What an application writes without the package, and without any care for lost connections.

    plain.py CHANNEL [QUERY]

Prints the events of a channel, or the rows of a query after each notification on it.
"""

import json
import os
import sys

import psycopg


def show(**event):
    print(json.dumps(event), flush=True)


def main():
    address = os.environ["PINPOINT_DSN"]
    channel, query = (*sys.argv[1:], None)[:2]
    with psycopg.connect(address, autocommit=True) as listening, psycopg.connect(address, autocommit=True) as querying:
        listening.execute(f"LISTEN {channel}")
        show(event="connected")
        for notification in listening.notifies():
            if query:
                show(event="rows", rows=querying.execute(query).fetchall())
            else:
                show(event="notification", channel=notification.channel, payload=notification.payload)


if __name__ == "__main__":
    main()
