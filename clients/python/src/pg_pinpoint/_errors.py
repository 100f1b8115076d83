"""The final error, and what the errors of the server mean."""

from __future__ import annotations

import re

# SQLSTATEs of errors that another attempt does not mend: no such role or not admitted, a wrong password, no such
# database, a missing privilege, and what the server or its extension cannot do. A proxy may send any text, or none.
PERMANENT = ("28000", "28P01", "3D000", "42501", "0A000")

# The same of errors without a SQLSTATE: libpq gives none while it connects.
PERMANENT_TEXTS = (r"authentication failed", r"authentication method", r"password", r"pg_hba\.conf",
                   r"role .* does not exist", r"database .* does not exist", r"permission denied",
                   r"not permitted to log in", r"certificate", r"unknown ca", r"does not support SSL")

NEEDS_PINPOINT = "needs pg_pinpoint 1.1 or later, or its pinpoint.sql, in this database"
OTHER_SERVER = "the connection leads to another server than the one on which the client listens"


class PinpointError(Exception):
    """The subscription or live query cannot go on. sqlstate: the server's, if it has sent one."""

    def __init__(self, message: str, sqlstate: str | None = None):
        super().__init__(message)
        self.sqlstate = sqlstate


class ClientClosed(PinpointError):
    """close() of the client was called."""

    def __init__(self, message: str = "the client is closed", sqlstate: str | None = None):
        super().__init__(message, sqlstate)


class ConnectionLost(Exception):
    """The server does not answer any more, or its extension has changed."""


def sqlstate_of(error: BaseException) -> str | None:
    return getattr(error, "sqlstate", None)


def describe(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "the server does not answer"
    text = str(error).strip() or type(error).__name__
    hint = getattr(getattr(error, "diag", None), "message_hint", None)
    return f"{text} ({hint})" if hint and hint not in text else text


def is_permanent(error: Exception) -> bool:
    """Is it an error that another attempt does not mend?"""
    if sqlstate := sqlstate_of(error):
        return sqlstate in PERMANENT
    if isinstance(error, PinpointError):
        return True
    last = str(error).split("\nMultiple connection attempts failed")[0]  # psycopg lists all of them after it
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "", last)  # without names
    return any(re.search(pattern, text) for pattern in PERMANENT_TEXTS)
