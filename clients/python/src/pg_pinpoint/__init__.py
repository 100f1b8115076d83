"""Notifications of PostgreSQL without missed changes, and live queries. See README.md."""

from . import blocking
from ._client import Client, Subscription
from ._events import Changed, Connected, Disconnected, Notification, PinpointError, QueryError, Rows
from ._live import Live

__all__ = ["Changed", "Client", "Connected", "Disconnected", "Live", "Notification", "PinpointError",
           "QueryError", "Rows", "Subscription", "blocking"]
