"""Notifications of PostgreSQL without missed changes, and live queries. See README.md."""

from . import blocking
from ._client import Client
from ._errors import ClientClosed, PinpointError
from ._events import Changed, Connected, Disconnected, Event, LiveEvent, Notification, QueryError, Rows, Stats
from ._live_query import Live
from ._subscription import Subscription

__all__ = ["Changed", "Client", "ClientClosed", "Connected", "Disconnected", "Event", "Live", "LiveEvent",
           "Notification", "PinpointError", "QueryError", "Rows", "Stats", "Subscription", "blocking"]
