"""How far a primary and its standbys scale, calculated from the parts that run has measured.

The model uses only products and sums. Each resource has a capacity per second (a core:
1,000,000 microseconds of processor time), each notification uses a part of the capacity, and the
resource that is used up first is the limit. The model assumes that the servers have no other load.

Not in the model: PostgreSQL's own limits for transactions that write (the disk, its locks), and
the effect that a busy process handles several items at once, so that each of them costs less.
"""

import functools
import glob
import json
import os
import re

from measurement import Failure

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "results")

LOCK_WRITERS = 16  # as in the other records that are used here
LOCK_FACTOR = 2  # the lock is measured on two cores; on larger machines it moves from core to core
NETWORK = 1.25e9  # bytes per second, of each server and in each direction: 10 Gbit/s
PACKET = 66  # bytes that Ethernet, IP and TCP add to a message

SHAPES = ("channels", "broadcast")


class Parts:
    """The medians of a report."""

    def __init__(self, report):
        self.report = report
        self.points = {(point["workload"], point["x"]): {one["target"]: one["summary"] for one in point["series"]}
                       for point in report["points"]}

    def get(self, workload, x, role, figure):
        """A median, and 0 if it was not measured there: a server without standbys has no WAL sender."""
        return self.points[workload, x][role].get(figure, {"median": 0})["median"]

    def costs(self, workload):
        """By role and process, measured with one standby. Sessions that notify: with fsync."""
        found = {role: {figure.removesuffix("_usec"): self.get(workload, 1, role, figure)
                        for figure in self.points[workload, 1][role]} for role in ("primary", "standby")}
        found["primary"]["flushing_writers"] = self.get(f"{workload}_flush", 1, "primary", "writers_usec")
        return found


def table(heading, rows):
    lines = [heading, ["---"] + ["---:"] * (len(heading) - 1), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


# ---- What was measured ----------------------------------------------------------------


PROCESSES = [("writers", "session that notifies"), ("flushing_writers", "the same with `fsync = on`"),
             ("sending", "its client (pgbench)"), ("walsender", "WAL sender, per standby"),
             ("walreceiver", "WAL receiver"), ("startup", "startup process"), ("waker", "waker"),
             ("listeners", "listener, per delivery"), ("receiving", "its client, per delivery"), ("other", "others")]


def measured_parts(parts):
    costs = {shape: parts.costs(shape) for shape in SHAPES}
    return table(["microseconds", *(f"{shape}, {role}" for shape in SHAPES for role in ("primary", "standby"))],
                 [[label, *(f"{costs[shape][role][name]:.1f}" if costs[shape][role].get(name) else ""
                            for shape in SHAPES for role in ("primary", "standby"))] for name, label in PROCESSES])


# ---- The same machine: predicted and measured ---------------------------------------------


def predicted(parts, shape, standbys):
    """Notifications per second on the machine of the report, where all servers and clients share the
    cores. Uses what was measured with one standby, and nothing else."""
    costs, copies = parts.costs(shape), parts.report["parameters"]["listeners_received"][shape]
    primary, standby = costs["primary"], costs["standby"]
    deliveries = copies * (primary["listeners"] + primary["receiving"])
    first = primary["writers"] + primary["sending"] + primary.get("waker", 0) + primary["other"] + deliveries
    each = (primary["walsender"] + sum(standby.get(name, 0) for name in ("walreceiver", "startup", "waker", "other"))
            + copies * (standby["listeners"] + primary["receiving"]))
    cores = parts.report["machine"]["cpu_count"] * primary["usage"]
    return 1e6 * cores / (first + standbys * each)


def validation(parts):
    direct, rows = parts.report["parameters"]["standbys"], []
    for x in range(direct + 2):
        row = [f"{x}" if x <= direct else f"{direct} and a cascading one"]
        for shape in SHAPES:
            measured = parts.points[shape, x]["primary"]["notifications_per_sec"]
            value = predicted(parts, shape, x)
            row += [f"{value:,.0f}" if x != 1 else "", "{median:,.0f} ({min:,.0f}-{max:,.0f})".format(**measured),
                    f"{100 * (value / measured['median'] - 1):+.0f} %" if x != 1 else ""]
        rows.append(row)
    columns = [f"{shape}, {what}" for shape in SHAPES for what in ("predicted", "measured", "error")]
    return table(["standbys", *columns], rows)


# ---- Other machines ------------------------------------------------------------------------


def packet_bytes(parts):
    return parts.report["parameters"]["message_bytes"] + PACKET


def loads(parts, cores, standbys, upstreams, listeners):
    """What a notification takes of each resource, as a share of a second. With one listener of a server
    it is woken each time; several are those of "broadcast"."""
    shape = "channels" if listeners == 1 else "broadcast"
    costs, copies = parts.costs(shape), parts.report["parameters"]["listeners_received"][shape]
    primary, standby = costs["primary"], costs["standby"]
    wal = parts.get("wal_insert", 100, "primary", "wal_bytes")
    packet = packet_bytes(parts)
    more = (standbys - upstreams) / upstreams if upstreams else 0  # cascading standbys of a standby
    idle = (parts.get("replay", 100, "standby", "replay_usec") - parts.get("replay", 0, "standby", "replay_usec")) / 100
    startup = standby["startup"] + idle * max(0, listeners - copies)

    def per_listener(costs):
        return listeners * (costs["listeners"] + costs.get("waker", 0) / copies)

    found = {
        "lock": LOCK_FACTOR * lock_usec(listeners) / 1e6,
        "primary's cores": (primary["flushing_writers"] + primary["other"] + upstreams * primary["walsender"]
                            + per_listener(primary)) / 1e6 / cores,
        "primary's network": (upstreams * wal + listeners * packet) / NETWORK,
    }
    if standbys:
        found.update({
            "a WAL sender": primary["walsender"] / 1e6,
            "startup": startup / 1e6,
            "standby's cores": (standby["walreceiver"] + startup + standby["other"] + more * primary["walsender"]
                                + per_listener(standby)) / 1e6 / cores,
            "standby's network": (more * wal + listeners * packet) / NETWORK,
        })
    return found


@functools.cache
def record(name):
    """The record that was made together with the newest one of the parts: times of different machines
    cannot be compared."""
    folder = os.path.dirname(max(glob.glob(os.path.join(RESULTS, "*", "scaling.json"))))
    try:
        with open(os.path.join(folder, f"{name}.json")) as file:
            return Parts(json.load(file))
    except FileNotFoundError:
        raise Failure(f"no {name}.json beside scaling.json: measure scaling, order-lock, queue and commit together")


# ---- The lock PinpointOrder, from the record of order_lock.py -----------------------------


def lock_figure(figure, writers, listeners):
    return record("order-lock").get(f"writers_{writers}", listeners, "pinpoint", figure)


def lock_usec(listeners):
    """The time for which a transaction holds the lock: on a line through those with 1 and 1,000 listeners."""
    one, many = (1e6 / lock_figure("limit_per_sec", LOCK_WRITERS, x) for x in (1, 1000))
    return one + (many - one) * (listeners - 1) / 999


def lock_times():
    def times(step, *point):
        mean, median = (lock_figure(f"{step}_{what}", *point) for what in ("usec", "median_usec"))
        return f"{mean:.2f} ({median:.2f})"

    points = sorted((int(workload.removeprefix("writers_")), x) for workload, x in record("order-lock").points)
    return table(["writers", "listeners", "announce (µs)", "publish (µs)",
                  "limit, calculated in each run (transactions per second)"],
                 [[f"{writers}", f"{x:,}", times("announce", writers, x), times("publish", writers, x),
                   rounded(lock_figure("limit_per_sec", writers, x))] for writers, x in points])


def lock_texts():
    """What the text of the page says about the lock."""
    doubled = sorted(lock_figure("limit_per_sec", writers, 1) / LOCK_FACTOR for writers in (16, 64))
    return {
        "lock rate": rounded(lock_figure("transactions_per_sec", LOCK_WRITERS, 1)),
        "lock held": f"{100 * lock_figure('held', LOCK_WRITERS, 1):.1f} %",
        "lock deliveries": rounded(200 * lock_figure("limit_per_sec", LOCK_WRITERS, 200)),
        "lock doubled": " to ".join(map(rounded, doubled)),
    }


def stock_limit(parts, version, cores, woken, received):
    """Notifications per second of a stock server that wakes so many sessions, of which so many receive a
    notification. Its transactions that notify commit one at a time, which limits them even without listeners."""
    queue, commit = record("queue"), record("commit")
    role = f"stock-{version}"
    microseconds = 1e6 * queue.report["machine"]["cpu_count"] / queue.get("broadcast", 200, role, "notify_tps")
    wakeup = (microseconds - queue.get("broadcast", 200, role, "listeners_client_usec")) / 200
    serial = commit.get("", 16, role, "notify_tps")
    return min(serial, 1e6 * cores / (wakeup * woken), NETWORK / (packet_bytes(parts) * received))


def rounded(value):
    """Two digits: a calculation is not more exact."""
    digits = f"{value:.1e}"
    return f"{float(digits):,.0f}" if value >= 10 else f"{float(digits):g}"


def limits(parts):
    """Limits of notifications that have so many listeners on each server, beside stock PostgreSQL with all
    listeners on its only server. Stock 15 wakes all sessions that listen on any channel."""
    sessions, sizes, rows = 1000, (16, 32, 64, 128), []  # sessions that listen on each server; cores
    for listeners in 1, sessions:
        for standbys, upstreams in (0, 0), (10, 10), (100, 100), (100, 10):
            name = f"{standbys}" if upstreams == standbys else f"{standbys}, {standbys - upstreams} of them cascading"
            row = [name, f"{listeners:,}", f"{listeners * (standbys + 1):,}"]
            for cores in sizes:
                found = loads(parts, cores, standbys, upstreams, listeners)
                first = max(found, key=found.get)
                row.append(f"{rounded(1 / found[first])}, {first}")
            received = listeners * (standbys + 1)
            rows.append(row + [rounded(stock_limit(parts, 15, sizes[-1], sessions * (standbys + 1), received)),
                               rounded(stock_limit(parts, 19, sizes[-1], received, received))])
    return table(["standbys", "listeners", "deliveries", *(f"{cores} cores" for cores in sizes),
                  *(f"stock {version}, {sizes[-1]} cores" for version in (15, 19))], rows)


def utilisation(parts, options):
    standbys = 10 if options.standbys is None else options.standbys
    upstreams = standbys if options.upstreams is None else options.upstreams
    cores, listeners = options.cores or 16, options.listeners or 1
    found = loads(parts, cores, standbys, upstreams, listeners)
    limit = 1 / max(found.values())
    rate = options.rate or limit
    return (f"{cores} cores, {standbys} standbys ({upstreams} of them stream from the primary), a notification has "
            f"{listeners} listeners on each server: at most {rounded(limit)} notifications per second, "
            f"{rounded(limit * listeners * (standbys + 1))} deliveries.\n\n"
            + table(["resource", "limit, notifications per second", f"used at {rounded(rate)} per second"],
                    [[name, rounded(1 / share), f"{100 * rate * share:.0f} %"] for name, share in
                     sorted(found.items(), key=lambda item: -item[1])]))


def tables(parts):
    return {"parts": measured_parts(parts), "throughput": validation(parts),
            "limits": limits(parts), "lock": lock_times()}


def update(page, found):
    """Write tables and figures into a page, between comments <!-- model NAME --> and <!-- end -->."""
    with open(page) as file:
        text = file.read()
    for name, rows in found.items():
        text, n = re.subn(f"(<!-- model {name} -->).*?(<!-- end -->)", lambda match: match[1] + rows + match[2],
                          text, flags=re.DOTALL)
        if n != 1:
            raise Failure(f'{page} has no place for "{name}"')
    with open(page, "w") as file:
        file.write(text)


def main(options):
    with open(options.model) as file:
        parts = Parts(json.load(file))
    if ("replay", 0) not in parts.points:
        raise Failure(f"{options.model} is not a report with standbys")
    if any(vars(options)[name] is not None for name in ("cores", "standbys", "upstreams", "listeners", "rate")):
        print(utilisation(parts, options), end="")
    elif options.page:
        update(options.page, {**{name: f"\n{rows}" for name, rows in tables(parts).items()}, **lock_texts()})
    else:
        for name, rows in tables(parts).items():
            print(f"{name}\n\n{rows}")
    return 0
