"""pg_pinpoint beside other extensions: it changes nothing.

    run.py FOLDER [NAME...]

- For each neighbour of neighbours.py, a server with the neighbour, and servers with pg_pinpoint
  named before and after it in shared_preload_libraries. On each of them, two sessions do what
  transcript.sql says. What they see and receive, and what logical decoding makes of it, must be
  equal to that of the server without pg_pinpoint. If pg_pinpoint is named before the neighbour,
  so must be the lines that the server logs, and the statements that pg_stat_statements counts.
- Beside each neighbour, tables are watched: watch.sql and watch.out.
- situations.py: what a neighbour does with watched tables and with notifications.
- timescaledb.py, citus.py, pg_tle.py: the same for these, if they are installed.

Names select neighbours and situations. Lines begin with "passed" or "failed". If
PINPOINT_TEST_FAULT is set, one line of each transcript and each value is changed, and all
comparisons must fail.
"""

import argparse
import difflib
import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg2

import citus
import neighbours
import pg_tle
import situations
import timescaledb
from server import Failed, Server, make_template
from transcript import HERE, Transcript

JOBS = 3  # of those, two wait for pg_cron


class Runner:
    """Starts the servers of the tests, and runs the tests."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.template = self.folder / "template"
        make_template(self.template)
        self.count = 0

    def server(self, libraries, settings=()):
        self.count += 1  # by one thread at a time: the interpreter adds under its lock
        return Server(self.folder / f"s{self.count}", self.template, libraries, settings)

    # ---- Transcripts

    def transcripts(self, neighbour, libraries):
        """The transcript of a server, what it logged and counted, and that of watch.sql."""
        pinpoint = neighbours.PINPOINT in libraries
        with self.server(libraries, neighbour.settings) as server:
            control = server.connect("control")
            for extension in neighbour.extensions:
                control.run(f'CREATE EXTENSION IF NOT EXISTS "{extension}" CASCADE')
            if pinpoint:
                control.run("CREATE EXTENSION pg_pinpoint")
            transcript = Transcript(server, neighbour.options)
            transcript.run("transcript.sql")
            transcript.decode()
            lines, observed = transcript.lines, transcript.log() + counted(neighbour, control)
            transcript.lines = []
            if pinpoint:
                transcript.run("watch.sql")
            return lines, observed, transcript.lines

    def neighbour(self, neighbour):
        stock, stock_observed, _ = self.transcripts(neighbour, list(neighbour.libraries))
        received, decoded = (sum(part in line for line in stock) for part in (
            "-> listener", "INSERT: id[integer]:1 "))
        if received < 25 or decoded != 1 or "decoderbufs: 0 changes of t" in stock:
            raise Failed("the transcript is too short:\n" + "\n".join(stock))
        expected = (HERE / "watch.out").read_text().splitlines()
        results = []
        for order, libraries in neighbour.orders():
            lines, observed, watch = self.transcripts(neighbour, libraries)
            what = f"{neighbour.name}, {order}" if neighbour.libraries else neighbour.name
            results.append(compare(f"{what}: transcript", stock, lines))
            if order == "pg_pinpoint before":
                results.append(compare(f"{what}: log and statistics", stock_observed, observed))
            results.append(compare(f"{what}: watched tables", expected,
                                   [text for line in watch for text in line.splitlines()]))
        return results

    # ---- Everything

    def situation(self, situation):
        situation(self)
        return [f"passed {situation.__doc__}"]

    def attempt(self, what, function, subject):
        try:
            results = function(subject)
        except (Failed, psycopg2.Error) as failure:
            where = traceback.extract_tb(failure.__traceback__)
            place = next((f for f in reversed(where) if f.name not in ("run", "value")), where[-1])
            results = [f"failed {what}\n    {place.name}, line {place.lineno}: "
                       + str(failure).strip().replace("\n", "\n    ")]
        print("\n".join(results), flush=True)
        return sum(result.startswith("failed") for result in results)

    def run(self, names):
        chosen = [*situations.ALL]
        for extension in (timescaledb, citus, pg_tle):
            chosen += extension.ALL if neighbours.is_installed(extension.__name__) else []
        every = [(s.__name__, s.__doc__, self.situation, s) for s in chosen]
        every += [(n.name, n.name, self.neighbour, n) for n in neighbours.ALL]
        if unknown := set(names) - {name for name, *_ in every}:
            sys.exit(f"there is no {', '.join(sorted(unknown))}")
        tasks = [task for name, *task in every if not names or name in names]
        with ThreadPoolExecutor(JOBS) as pool:
            return sum(pool.map(lambda task: self.attempt(*task), tasks))


def counted(neighbour, control):
    """The statements that pg_stat_statements has counted."""
    if "pg_stat_statements" not in neighbour.libraries:
        return []
    rows = control.run("SELECT query, calls, rows FROM pg_stat_statements"
                       " WHERE query ~* 'notify|listen|tell' AND query !~ 'sync|pinpoint'"
                       ' ORDER BY query COLLATE "C", calls, rows')
    return [f"{calls} calls, {rows} rows: {query}" for query, calls, rows in rows]


def compare(what, expected, lines):
    if os.environ.get("PINPOINT_TEST_FAULT") and lines:
        lines = [*lines[:-1], lines[-1] + " (changed)"]
    if expected == lines:
        return f"passed {what}"
    difference = difflib.unified_diff(expected, lines, "expected", "is", lineterm="", n=1)
    return "\n    ".join([f"failed {what}", *list(difference)[:60]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", metavar="FOLDER", help="for the servers; it is empty")
    parser.add_argument("names", metavar="NAME", nargs="*",
                        help="a neighbour or a situation (default: all)")
    options = parser.parse_args()
    failures = Runner(options.folder).run(options.names)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
