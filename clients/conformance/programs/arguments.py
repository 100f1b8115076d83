"""Arguments that the clients of the Python package refuse, with an error that names them."""

import pg_pinpoint

REFUSED = {"mode": "fast", "autocommit": True, "row_factory": None, "cursor_factory": None}

for client in pg_pinpoint.Client, pg_pinpoint.blocking.Client:
    for name, value in REFUSED.items():
        try:
            client("dbname=postgres", **{name: value})
        except ValueError as error:
            if name not in str(error):
                raise
        else:
            raise SystemExit(f"{client.__module__}.Client takes {name}")
