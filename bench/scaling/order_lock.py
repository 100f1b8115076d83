#!/usr/bin/env python3
"""Measure for how long transactions that notify hold the lock PinpointOrder.

    order_lock.py [--runs 6] [--seconds 3] [--listeners 0 1 200 1000 5000] [--pg-config FILE] [--json FILE]

Builds pg_pinpoint with -DPINPOINT_TIME_ORDER_LOCK (notify/base/locks.c) in a temporary folder, and starts a server that
preloads it from there, on a Unix socket only. It needs pg_pinpoint in the server's installation, which is not changed,
for CREATE EXTENSION, and make and a C compiler. All files are removed at the end, also after Ctrl-C. If root starts
the program, the server runs as the user postgres.

Exit code 0: everything was measured; 2: an error; 128 plus the number of the signal: the program was ended by a signal.
"""

import glob
import os
import resource
import shutil
import statistics
import sys

sys.dont_write_bytecode = True
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from measurement import ROOT, Measurement, call, parser_of
from server import Receivers, Server, wait_for_end, wait_until

# Numbers of listeners, and of writers beside them.
POINTS = {0: (1, 16, 64), 1: (1, 16, 64), 200: (1, 16, 64), 1000: (1, 16, 64), 5000: (16,)}
CHANNEL = "c"
MESSAGE = 5 + 4 + len(CHANNEL) + 1 + 1  # type and length, PID, channel, no payload
WARMUP = 0.1  # of the holds of each session, which are left out

SETTINGS = {
    "shared_preload_libraries": "pg_pinpoint", "max_connections": str(max(POINTS) + 100), "fsync": "on",
    # no checkpoint and no vacuum in some runs and not in others
    "autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "16GB",
}
FIGURES = [  # name, label, kind
    ("limit_per_sec", "1 / (mean time of announce + mean time of publish)", "rate"),
    ("announce_usec", "announce, mean", "time"),
    ("announce_median_usec", "announce, median", "time"),
    ("publish_usec", "publish, mean", "time"),
    ("publish_median_usec", "publish, median", "time"),
    ("holds", "holds that were measured", "count"),
    ("transactions_per_sec", "transactions per second", "rate"),
    ("held", "share of the time in which a transaction that notifies held the lock", "count"),
]
METHOD = [
    "Sessions of pgbench insert a row and notify one channel in one transaction, as fast as they can. The other "
    "sessions listen on this channel and read all notifications. x is the number of listeners. A run begins when all "
    "listeners have read everything.",
    "The library is built with -DPINPOINT_TIME_ORDER_LOCK. Each session reads the clock after it has acquired "
    "PinpointOrder in exclusive mode, and before it releases it: once when it announces, and once when it publishes. "
    f"The first {WARMUP:.0%} of each session's times are left out.",
]


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=int, default=3, metavar="S", help="seconds per load, an integer (default: 3)")
    parser.add_argument("--listeners", type=int, nargs="+", metavar="N", choices=POINTS, default=list(POINTS),
                        help="numbers of listening sessions (default: all)")
    return parser.parse_args()


def build(pg_config, folder):
    """The path by which the server preloads the library."""
    left_out = shutil.ignore_patterns("*.o", "*.bc", "*.so", "test")
    shutil.copytree(f"{ROOT}/notify", f"{folder}/notify", ignore=left_out)
    shutil.copy(f"{ROOT}/VERSION", folder)
    call("make", "-s", "-j2", "-C", f"{folder}/notify", "pg_pinpoint.so", "with_llvm=no", f"PG_CONFIG={pg_config}",
         "COPT=-DPINPOINT_TIME_ORDER_LOCK")
    return f"{folder}/notify/pg_pinpoint"


def measure_once(server, receivers, writers, seconds):
    load = server.pgbench(f"INSERT INTO changes (text) VALUES (repeat('x', 100)) \\; NOTIFY {CHANNEL};\n",
                          f"-c{writers}", f"-j{min(writers, 2)}", f"-T{seconds}")
    n = receivers.read_during(load, seconds)
    files = f"{server.data}/pinpoint_order_lock.*"
    wait_until(lambda: len(glob.glob(files)) == writers, "all writers have written their times")
    wait_for_end([name.rpartition(".")[2] for name in glob.glob(files)])
    times = {"announce": [], "publish": []}
    for name in glob.glob(files):
        with open(name) as file:
            holds = [line.split() for line in file]
        os.remove(name)
        for place, nanoseconds in holds[int(WARMUP * len(holds)):]:
            times[place].append(int(nanoseconds) / 1000)
    receivers.read_until(n * sum(map(len, receivers.sessions.values())) * MESSAGE)
    announce, publish = (statistics.fmean(times[place]) for place in ("announce", "publish"))
    return {"limit_per_sec": 1e6 / (announce + publish), "announce_usec": announce, "publish_usec": publish,
            "announce_median_usec": statistics.median(times["announce"]),
            "publish_median_usec": statistics.median(times["publish"]), "holds": sum(map(len, times.values())),
            "transactions_per_sec": n / seconds, "held": n * (announce + publish) / 1e6 / seconds}


def measure(options, measured):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(POINTS) + 200, max(hard, max(POINTS) + 200)))
    pg_config = os.path.abspath(shutil.which(options.pg_config) or options.pg_config)
    library = build(pg_config, measured.folder)
    server = measured.start(Server(call(pg_config, "--bindir").strip(), f"{measured.folder}/p", SETTINGS))
    server.control.query("CREATE EXTENSION pg_pinpoint; CREATE TABLE changes (text text)")
    # CREATE EXTENSION loads the installed library, and fails if another one is preloaded.
    server.control.query(f"ALTER SYSTEM SET shared_preload_libraries = '{library}'")
    server.stop()
    server.start()
    measured.targets["pinpoint"] = server.description(options.pg_config)
    for number in range(1, options.runs + 1):
        for listeners in options.listeners:
            receivers = Receivers([server], [CHANNEL] * listeners)
            for writers in POINTS[listeners]:
                figures = measured.undisturbed(measure_once, server, receivers, writers, options.seconds)
                measured.add(f"writers_{writers}", listeners, "pinpoint", figures)
            receivers.close()
        measured.say_run(number, options.runs)


def main():
    options = parse_arguments()
    with Measurement() as measured:
        measure(options, measured)
    return measured.write_report(
        options, "bench/scaling/order_lock.py", FIGURES, "logarithmic", benchmark="order-lock", method=METHOD,
        question="For how long does a transaction that notifies hold the lock PinpointOrder?",
        parameters={"runs": options.runs, "seconds": options.seconds, "listeners": options.listeners},
        axis={"name": "listeners", "label": "listeners", "scale": "logarithmic"})


if __name__ == "__main__":
    sys.exit(main())
