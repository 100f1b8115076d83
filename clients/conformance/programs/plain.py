"""What an application writes without the package, and without any care for lost connections."""

import json
import os
import sys

import psycopg

with psycopg.connect(os.environ["PINPOINT_DSN"], autocommit=True) as connection:
    connection.execute(f"LISTEN {sys.argv[1]}")
    print(json.dumps({"event": "connected"}), flush=True)
    for notification in connection.notifies():
        print(json.dumps({"event": "notification", "channel": notification.channel, "payload": notification.payload}), flush=True)
