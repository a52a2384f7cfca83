#!/usr/bin/env python3
"""How long `moewright plan` takes: finding and weighing all layouts, and simulating the best, of the shipped requests.

  bench/plan_speed.py build/release/moewright --json FILE
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess

from plan_errors_cpu import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUESTS = ("plan-deepseek-v3", "plan-xmoe-super", "plan-qwen3-30b")


def measure(binary, request, rounds):
    command = [binary, "plan", f"examples/{request}.toml", "--json", "--top", "1"]
    plans = [json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
             for _ in range(rounds)]
    row = {key: plans[0][key] for key in ("model", "platform", "ranks", "layouts", "weighed", "fitting")}
    for key in ("closed_form_s", "simulation_s"):
        row[key] = {"median": statistics.median(p[key] for p in plans), "all": [p[key] for p in plans]}
    return {"request": request, **row, "layouts_per_s": row["layouts"] / row["closed_form_s"]["median"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=os.path.abspath)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", dest="path", help="keep the rows in this file")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for request in REQUESTS:
        row = measure(options.binary, request, options.rounds)
        rows.append(row)
        print(f"{request:18} {row['ranks']:5} ranks: {row['layouts']:7} layouts in {row['closed_form_s']['median']:.2f} s "
              f"({row['layouts_per_s']:.0f} a second), the best simulated in {row['simulation_s']['median']:.2f} s")
    if options.path:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
        result = {"benchmark": "plan_speed", "machine": machine(), "load_average_before_runs": load,
                  "commit": commit.strip(), "rounds": options.rounds, "rows": rows}
        pathlib.Path(options.path).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
