#!/usr/bin/env python3
"""List the figures of a report that differ from those of an earlier report by more than 2 %.

    moved.py EARLIER.json REPORT.json
"""

import argparse
import json

LIMIT = 0.02


def medians(path):
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    return {
        (point["workload"], point["x"], series["target"], figure): summary["median"]
        for point in report["points"]
        for series in point["series"]
        for figure, summary in series["summary"].items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("earlier", help="the earlier report")
    parser.add_argument("report", help="the report to compare with it")
    args = parser.parse_args()
    earlier, now = medians(args.earlier), medians(args.report)
    for key in now:
        if key in earlier and abs(now[key] - earlier[key]) > LIMIT * abs(earlier[key]):
            workload, x, target, figure = key
            print(f"{workload} {x}, {target}, {figure}: {earlier[key]:.1f} to {now[key]:.1f}")


if __name__ == "__main__":
    main()
