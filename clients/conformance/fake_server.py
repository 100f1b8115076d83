#!/usr/bin/env python3
"""A server that gives odd answers, for tests of what a client makes of them.

    fake_server.py SCRIPT    prints its port, and ends with its standard input

It speaks PostgreSQL's protocol 3.0. Each connection gets the answers of the script, from the startup message on. The
scripts are the functions below that are in SCRIPTS.
"""

import contextlib
import socketserver
import struct
import sys
import threading

CANCEL, TLS, GSS = 80877102, 80877103, 80877104  # what a client may send instead of a startup message

# What a proxy or pooler may ask for, and no driver can do all of: Kerberos V5, SCM, SSPI, and one of the future.
METHODS = (2, 6, 9, 99)
PAUSE = 0.2  # seconds between two bytes of a slow server


def message(kind, content=b""):
    return kind + struct.pack("!i", len(content) + 4) + content


def error(**fields):
    """An ErrorResponse, with the fields of these names only."""
    texts = b"".join(name.encode() + text.encode() + b"\0" for name, text in fields.items())
    return message(b"E", texts + b"\0")


def authentication(method):
    return message(b"R", struct.pack("!i", method))


def parameter(name, value):
    return message(b"S", name + b"\0" + value + b"\0")


READY = message(b"Z", b"I")
GREETING = b"".join([
    authentication(0), parameter(b"server_version", b"18.0"), parameter(b"client_encoding", b"UTF8"),
    parameter(b"server_encoding", b"UTF8"), parameter(b"DateStyle", b"ISO, MDY"), parameter(b"TimeZone", b"UTC"),
    parameter(b"integer_datetimes", b"on"), parameter(b"standard_conforming_strings", b"on"),
    message(b"K", struct.pack("!ii", 1, 1)), READY])
STARTING = error(S="FATAL", V="FATAL", C="57P03", M="the fake server is starting up")


class Connection:
    """A connection that has sent its startup message. number: how many the server has had before."""

    def __init__(self, stream, number):
        self.stream, self.number = stream, number

    def send(self, data):
        self.stream.sendall(data)

    def receive(self, size):
        data = b""
        while len(data) < size:
            if not (part := self.stream.recv(size - len(data))):
                raise ConnectionError
            data += part
        return data

    def receive_message(self):
        kind, size = struct.unpack("!ci", self.receive(5))
        self.receive(size - 4)
        return kind

    def receive_startup(self):
        """Returns whether it is one. TLS is refused."""
        while True:
            size, code = struct.unpack("!ii", self.receive(8))
            self.receive(size - 8)
            if code not in (TLS, GSS):
                return code != CANCEL
            self.send(b"N")

    def answer_queries(self):
        """Each query fails, until the client ends the connection."""
        while (kind := self.receive_message()) != b"X":
            if kind in b"QS":
                self.send(STARTING + READY)


class Truncated(Connection):
    """A connection that ends after some bytes."""

    def __init__(self, connection, limit):
        super().__init__(connection.stream, connection.number)
        self.limit = limit

    def send(self, data):
        super().send(data[:self.limit])
        self.limit -= len(data)
        if self.limit <= 0:
            raise ConnectionError


# ---- Scripts ----------------------------------------------------------------------


def no_code(connection):
    """An error without a code before authentication, as proxies send it."""
    connection.send(error(S="FATAL", M="no such upstream"))


def short_code(connection):
    """An error with a code of one byte, or with one that is no ASCII."""
    connection.send(error(S="FATAL", V="FATAL", C=("5", "2", "é", "4é")[connection.number % 4], M="a short code"))


def cut(connection):
    """All answers, cut after some bytes: one more in each connection, in steps that differ from a message's size."""
    answers = GREETING + STARTING + READY
    truncated = Truncated(connection, 1 + connection.number * 7 % len(answers))
    truncated.send(GREETING)
    truncated.answer_queries()


def unknown_messages(connection):
    """Messages of a kind that no client knows: before authentication, after it, or in the answer of a query."""
    unknown = message(b"~", b"unknown")
    moment = connection.number % 3
    connection.send((unknown if moment == 0 else b"") + GREETING)
    if moment == 1:
        connection.send(unknown)
    connection.receive_message()
    connection.send(unknown)
    connection.answer_queries()


def authentication_methods(connection):
    """A method of authentication that the client cannot do. Its answer is not read further."""
    connection.send(authentication(METHODS[connection.number % len(METHODS)]))
    connection.receive_message()


def slow(connection):
    """One byte after the other."""
    for byte in GREETING:
        connection.send(bytes([byte]))
        if connection.server.stopped.wait(PAUSE):
            return
    connection.answer_queries()


SCRIPTS = {script.__name__: script
           for script in (no_code, short_code, cut, unknown_messages, authentication_methods, slow)}


# ---- The server -------------------------------------------------------------------


class FakeServer(socketserver.ThreadingTCPServer):
    """Serves connections to its port, each in a thread, until close()."""

    daemon_threads = True
    request_queue_size = 200

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), None)
        self.script = SCRIPTS[script]
        self.stopped = threading.Event()
        self.connections = 0
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def finish_request(self, stream, _):
        with contextlib.suppress(OSError, struct.error):
            connection = Connection(stream, 0)
            if connection.receive_startup():
                connection.server, connection.number = self, self.connections
                self.connections += 1
                self.script(connection)

    def close(self):
        self.stopped.set()
        self.shutdown()
        self.server_close()


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in SCRIPTS:
        sys.exit(f"usage: fake_server.py {'|'.join(SCRIPTS)}")
    print(FakeServer(sys.argv[1]).port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
