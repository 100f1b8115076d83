"""What the clients of the Python package refuse, with an error that says why: arguments, and use after a fork."""

import os

import pg_pinpoint

REFUSED = {"mode": "fast", "autocommit": True, "row_factory": None, "cursor_factory": None}


def check_arguments(client):
    for name, value in REFUSED.items():
        try:
            client("dbname=postgres", **{name: value})
        except ValueError as error:
            if name not in str(error):
                raise
        else:
            raise SystemExit(f"{client.__module__}.Client takes {name}")


def check_fork():
    client = pg_pinpoint.blocking.Client("dbname=postgres")
    if (pid := os.fork()) == 0:
        try:
            client.subscribe("a")
        except pg_pinpoint.PinpointError as error:
            client.close()
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise SystemExit(f"a client that was made before a fork is used after it: exit code {code}")
    client.close()


def main():
    check_arguments(pg_pinpoint.Client)
    check_arguments(pg_pinpoint.blocking.Client)
    check_fork()


if __name__ == "__main__":
    main()
