#!/usr/bin/env python3
"""List the figures of a report that differ from those of an earlier report by more than 2 %.

A difference of one is not listed: a signal that comes a moment later causes another system call.

    moved.py EARLIER.json REPORT.json
"""

import argparse
import json

LIMIT = 0.02
LEAST = 1


def medians(report):
    return {
        (point["workload"], point["x"], series["target"], figure): summary["median"]
        for point in report["points"]
        for series in point["series"]
        for figure, summary in series["summary"].items()
    }


def moved(earlier, report):
    """
    >>> def report_of(**figures):
    ...     summary = {figure: {"median": median} for figure, median in figures.items()}
    ...     series = [{"target": "stock-15", "summary": summary}]
    ...     return {"points": [{"workload": "commit", "x": 100, "series": series}]}
    >>> earlier = report_of(instructions=1000.0, system_calls=4.0, wal_bytes=0.0)
    >>> moved(earlier, report_of(instructions=1020.0, system_calls=5.0, wal_bytes=0.0))
    []
    >>> moved(earlier, report_of(instructions=979.0, system_calls=5.5, wal_bytes=34.0))
    ... # doctest: +NORMALIZE_WHITESPACE
    ['commit 100, stock-15, instructions: 1000.0 to 979.0',
     'commit 100, stock-15, system_calls: 4.0 to 5.5',
     'commit 100, stock-15, wal_bytes: 0.0 to 34.0']
    >>> moved({"points": []}, earlier)
    []
    """
    before, now = medians(earlier), medians(report)
    return [
        f"{workload} {x}, {target}, {figure}: {before[key]:.1f} to {now[key]:.1f}"
        for key in now
        for workload, x, target, figure in [key]
        if key in before and abs(now[key] - before[key]) > max(LIMIT * abs(before[key]), LEAST)
    ]


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("earlier", help="the earlier report")
    parser.add_argument("report", help="the report to compare with it")
    args = parser.parse_args()
    for line in moved(read(args.earlier), read(args.report)):
        print(line)


if __name__ == "__main__":
    main()
