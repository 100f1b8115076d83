"""What the measurements in Python share: options, the user of the servers, signals, and the report."""

import argparse
import contextlib
import datetime
import json
import math
import os
import platform
import pwd
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PG_CONFIG = os.environ.get("PG_CONFIG", "pg_config")

DEADLINE = 120  # seconds, for what takes a moment on a machine that is not busy

CPU_DMA_LATENCY = "/dev/cpu_dma_latency"
CPUIDLE = "/sys/devices/system/cpu/cpuidle"

MOST_STOLEN = 0.02  # of the processor time: a run is repeated if the host takes more
MOST_REPEATS = 2

CONFIDENCE = 0.95  # of an interval


class Failure(Exception):
    """Something does not work; the text says what."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def parser_of(doc, **pg_config):
    """The options that all programs have. doc: of the program, its first line describes it; pg_config: how that
    option differs."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=6, metavar="N", help="number of runs (default: 6)")
    parser.add_argument("--pg-config", metavar="FILE", **{
        "default": PG_CONFIG, "help": "pg_config of the server (default: $PG_CONFIG, or pg_config on the PATH)",
        **pg_config})
    parser.add_argument("--json", metavar="FILE",
                        help="write the report, see bench/formats.md, to FILE (default: standard output)")
    return parser


# ---- Processes ----------------------------------------------------------------


def environment():
    """The environment without the settings of libpq."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PG")},
            "PGCTLTIMEOUT": str(DEADLINE)}


def server_user():
    """Options for subprocess: PostgreSQL does not run as root."""
    return {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}


def call(*command, **options):
    """Run a command to its end, and return what it prints."""
    result = subprocess.run(command, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    if result.returncode != 0:
        raise Failure(f"{' '.join(command)}:\n{(result.stdout + result.stderr).strip()[-2000:]}")
    return result.stdout


def as_server_user(*command):
    return call(*command, cwd="/", env=environment(), **server_user())


def new_folder():
    """A temporary folder of the servers' user. The path of a socket may have 107 bytes."""
    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="pinpoint.", dir=parent if len(parent) < 60 else "/tmp")
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
    return folder


def exit_on_signals(handler=None):
    """A signal raises SystemExit. A second one does not keep the servers from being stopped."""
    def on_signal(number, _):
        exit_on_signals(signal.SIG_IGN)
        raise SystemExit(128 + number)

    for each in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(each, handler or on_signal)


# ---- Processors ----------------------------------------------------------------


def keep_awake():
    """Keep the processors from halting until a file is closed. Returns the file and no warning, or None and a warning
    if that is not possible."""
    try:
        if idle("driver") in (None, "none"):
            raise OSError("Linux has no idle driver here that would do it")
        device = open(CPU_DMA_LATENCY, "wb", buffering=0)
        device.write(struct.pack("i", 0))
    except OSError as error:
        return None, (f"the processors were not kept awake ({error}): a processor that halts takes up to 0.4 ms to "
                      "wake, so round trips look slower and intervals become wide")
    return device, None


def idle(what):
    """The driver or the governor of Linux that lets a processor halt; None if Linux does not tell."""
    with contextlib.suppress(OSError), open(f"{CPUIDLE}/current_{what}") as file:
        return file.read().strip()


def conditions(kept_awake):
    """What decides how much the figures vary, for the report."""
    names = {f"idle_{what}": name for what in ("driver", "governor") if (name := idle(what))}
    return {"kept_awake": kept_awake, **names, "load_at_start": os.getloadavg()[0]}


def processor_time():
    """Processor time since the start of the system: that which the host has taken ("steal"), and all."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return ticks[7], sum(ticks)


def stolen_since(before):
    """The share of the processor time that the host has taken since then."""
    stolen, total = (now - then for now, then in zip(processor_time(), before))
    return stolen / total if total > 0 else 0.0


# ---- Measurements --------------------------------------------------------------


class Measurement:
    """What surrounds a measurement, as a context: a folder, and the servers that were started. Both are removed at
    the end. A failure or a signal ends the context; the exit code says so then. Keeps the targets and their runs."""

    def __enter__(self):
        exit_on_signals()
        self.started, self.folder = datetime.datetime.now(datetime.timezone.utc), new_folder()
        self.servers, self.targets, self.runs, self.code = [], {}, {}, 0
        self.conditions = conditions(self.keep_awake())
        self.stolen, self.repeats = 0.0, 0  # of the last run
        return self

    def __exit__(self, kind, error, _):
        is_failure = isinstance(error, (Failure, OSError, ValueError, subprocess.SubprocessError))
        if is_failure:
            self.fail(error)
        elif isinstance(error, SystemExit):
            self.code = error.code
        for server in reversed(self.servers):
            try:
                server.stop("immediate")
            except Failure as failure:
                self.fail(failure)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.awake:
            self.awake.close()
        return is_failure or isinstance(error, SystemExit)

    def keep_awake(self):
        """Until the end. Returns whether that is possible."""
        self.awake, warning = keep_awake()
        self.warnings = [warning] if warning else []
        for each in self.warnings:
            say(f"warning: {each}")
        return self.awake is not None

    def start(self, server):
        self.servers.append(server)
        server.start()
        return server

    def fail(self, failure):
        say(f"failed: {failure}")
        self.code = 2

    def say_run(self, number, runs, of=""):
        say(f"{of}run {number} of {runs}, {datetime.datetime.now(datetime.timezone.utc) - self.started}")

    def undisturbed(self, function, *arguments):
        """The result of a run, which is repeated if the host takes too much of the processors meanwhile. The run from
        which it took the least counts."""
        kept = None
        for repeats in range(MOST_REPEATS + 1):
            before = processor_time()
            result = function(*arguments)
            stolen = stolen_since(before)
            if kept is None or stolen < kept[1]:
                kept = result, stolen
            if stolen <= MOST_STOLEN:
                break
        result, self.stolen = kept
        self.repeats = repeats
        return result

    def add(self, workload, x, target, figures):
        """What the last run has measured of a target: figures by their names."""
        runs = self.runs.setdefault((workload, x), {}).setdefault(target, [])
        runs.append((figures, self.stolen, self.repeats))

    def write_report(self, options, program, figures, scale, main_figure=None, baseline=None, **fields):
        """Write the report, and return the exit code. Figures are (name, label, kind); the main figure has a chart."""
        if not self.runs:
            return self.code or 2
        with open(os.path.join(ROOT, "VERSION")) as file:
            version = file.read().strip()
        result = {
            "schema_version": 2, **fields,
            "program_version": version, "command_line": [program, *sys.argv[1:]],
            "date": self.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "machine": {"cpu_model": cpu_model(), "cpu_count": os.cpu_count(), "os": system_name(),
                        "kernel": platform.release()},
            "conditions": self.conditions,
            "targets": [{"name": name, **target} for name, target in self.targets.items()],
            "figures": [{"name": name, "label": label, "kind": kind, "scale": scale, "chart": name == main_figure}
                        for name, label, kind in figures],
            "points": [{"workload": workload, "x": x, "series": [
                series(target, found, baseline) for target in self.targets]}
                for (workload, x), found in self.runs.items()],
            "complete": self.code == 0, "warnings": self.warnings,
        }
        with open(options.json, "w") if options.json else contextlib.nullcontext(sys.stdout) as file:
            file.write(as_json(result) + "\n")
        return self.code


# ---- The report, which bench/formats.md describes --------------------------------


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def interval(values):
    """That of the median, by the sign test: exact, whatever the distribution is. From few values there is none.

    >>> ranks = lambda n: (interval(range(1, n + 1))["low"], interval(range(1, n + 1))["high"])
    >>> [ranks(n) for n in (6, 8, 9, 12, 15, 20, 25)]
    [(1, 6), (1, 8), (2, 8), (3, 10), (4, 12), (6, 15), (8, 18)]
    >>> interval([1, 2, 3, 4, 5, 6])["coverage"], interval([1, 2, 3, 4, 5])
    (0.96875, None)
    """
    values, found, below = sorted(values), None, 0.0
    for rank in range(len(values)):
        below += math.comb(len(values), rank) / 2 ** len(values)
        if 1 - 2 * below < CONFIDENCE:
            break
        found = {"low": values[rank], "high": values[-1 - rank], "coverage": 1 - 2 * below}
    return found


def comparison(pairs):
    """Of pairs of values: a value, and that of the baseline."""
    ratios = [value / base for value, base in pairs]
    found = interval(ratios)
    return {**summary(ratios), "pairs": len(ratios), **({"interval": found} if found else {})}


def series(target, runs_of, baseline):
    """The runs of a target at one point, each with figures by their names, and their ratios to the runs of the
    baseline."""
    found = runs_of.get(target, [])
    runs, base_runs = [run for run, _, _ in found], [run for run, _, _ in runs_of.get(baseline, [])]
    one = {"target": target, "summary": {}, "ratio": {}, "runs": runs,
           "stolen": [stolen for _, stolen, _ in found], "repeats": [repeats for _, _, repeats in found]}
    for figure in {name: None for run in runs for name in run}:
        one["summary"][figure] = summary([run[figure] for run in runs if figure in run])
        pairs = [(run[figure], base[figure]) for run, base in zip(runs, base_runs)
                 if figure in run and figure in base and target != baseline]
        if pairs and min(base for _, base in pairs) > 0:
            one["ratio"][figure] = comparison(pairs)
    return one


def system_name():
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def cpu_model():
    with open("/proc/cpuinfo") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")


def members(value):
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def has_text(value):
    return isinstance(value, str) or any(map(has_text, members(value)))


def as_json(value, margin="\n"):
    """The value as JSON. Values without text in them, and objects of single values, are on one line, as pinpoint-bench
    writes them.

    >>> print(as_json({"words": ["a", "b"], "settings": {"port": "5432", "preload": []}, "runs": [{"tps": 1.5}, {}]}))
    {
      "words": [
        "a",
        "b"
      ],
      "settings": {"port": "5432", "preload": []},
      "runs": [{"tps": 1.5}, {}]
    }
    """
    has_single_values = not any(map(members, members(value)))
    if not members(value) or not has_text(value) or isinstance(value, dict) and has_single_values:
        return json.dumps(value)
    inner = margin + "  "
    if isinstance(value, list):
        return "[" + ",".join(inner + as_json(member, inner) for member in value) + margin + "]"
    pairs = (f"{inner}{json.dumps(name)}: {as_json(member, inner)}" for name, member in value.items())
    return "{" + ",".join(pairs) + margin + "}"
