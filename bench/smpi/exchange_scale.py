#!/usr/bin/env python3
"""Exchanges of 64 to 1,024 ranks in simulation: the project's exchange under SimGrid SMPI (Debian: libsimgrid-dev). With
jemalloc (Debian: libjemalloc2) and huge pages, runs of 1,024 ranks take about half of the time.

    bench/smpi/exchange_scale.py            # what the table lacks, then the table and the plot
    bench/smpi/exchange_scale.py --list     # the runs, not run
    bench/smpi/exchange_scale.py --only "dragonfly 256 64 flat"

A run is one dispatch. Results go to bench/results/exchange_smpi.json, from which docs/exchange_smpi.svg is drawn.
"""
import argparse
import ctypes.util
import json
import os
import pathlib
import subprocess
import tempfile
import time

from exchange_plot import draw

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/smpi"
RESULTS, PLOT = ROOT / "bench/results/exchange_smpi.json", ROOT / "docs/exchange_smpi.svg"
RANKS_PER_NODE, ROW_BYTES, TOP_K = 8, 4096, 8

# 128 nodes on the 32 routers of one group, hosts are nodes: 4 NICs of 22.5 GB/s as one link. Messages within a node
# have 50 GB/s for the 7 peers of a rank, each its share.
DRAGONFLY = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="dragonfly" prefix="node-" suffix="" radical="0-127" speed="100Gf" core="8" bw="90GBps" lat="0.4us"
    loopback_bw="7.1GBps" loopback_lat="2us" topology="DRAGONFLY" topo_parameters="1,4;1,1;32,1;4"
    sharing_policy="SPLITDUPLEX"/>
</platform>
"""

# Links of GB/s need a coarse precision (of bytes/s); messages wait for their receiver and share links evenly, without
# what SMPI assumes of TCP; tests of messages and clocks take no time.
CONFIG = {
    "smpi/simulate-computation": "no", "smpi/privatization": "no", "contexts/stack-size": "512",
    "maxmin/precision": "1e-3", "smpi/send-is-detached-thresh": "0", "smpi/bw-factor": "0:1.0",
    "smpi/lat-factor": "0:1.0", "network/weight-S": "0", "network/TCP-gamma": "1e12", "network/crosstraffic": "0",
    "smpi/test": "0", "smpi/wtime": "0",
}
# Seconds that a rank needs to start a send. SMPI has no such cost of receives without a copy (smpi/or).
MESSAGE_COSTS = {"smpi/ois": "0:2e-6:0"}

PLATFORMS = {
    "dragonfly": {"hosts": lambda rank: f"node-{rank // RANKS_PER_NODE}", "config": {}, "routes": None},
    "frontier_ideal": {"hosts": lambda rank: f"gcd-{rank}", "config": MESSAGE_COSTS, "routes": "ideal"},
    "frontier_static": {"hosts": lambda rank: f"gcd-{rank}", "config": MESSAGE_COSTS, "routes": "static"},
}


def run_of(platform, ranks, kib, transport, chunks=1, zipf=None, ep=0, stride=1, forward=False, **model):
    """A row of the table before it is run. kib: bytes that a rank has for each member of its group, on average."""
    group = ep or ranks
    return {"platform": platform, "ranks": ranks, "ep": group, "stride": stride, "kib_per_pair": kib,
            "transport": transport, "chunks": chunks, "zipf": zipf, "forward": forward,
            "experts": max(256, group), "top_k": TOP_K, "row_bytes": ROW_BYTES,
            "tokens": kib * 1024 * group // (ROW_BYTES * TOP_K), **model}


def runs():
    flat, printed, halo, bypass = ("flat", 1), ("printed", 1), ("halo", 4), ("bypass", 4)
    whole, finer = ((("halo", chunks), ("bypass", chunks)) for chunks in (1, 8))
    for platform in PLATFORMS:
        for ranks in (64, 256):
            for arm in (printed, *whole, flat):  # 4 KiB are one row, which chunks cannot divide
                yield run_of(platform, ranks, 4, *arm)
            for kib in (64, 512):
                for arm in (printed, halo, bypass, *whole) if ranks == 64 else (printed, halo, bypass):
                    yield run_of(platform, ranks, kib, *arm)
            yield run_of(platform, ranks, 64, *flat)
        yield run_of(platform, 64, 64, "at_once")
        yield run_of(platform, 64, 512, *flat)
    for platform in ("dragonfly", "frontier_ideal"):
        yield run_of(platform, 256, 512, *flat)
        # As the planner's groups: of EP ranks for flat, of one rank of each node for the way between nodes.
        for kib in (64, 512):
            for group, stride in ((32, 8), (16, 8), (8, 8), (128, 1), (64, 1)):
                yield run_of(platform, 256, kib, *flat, ep=group, stride=stride)
        for arm in (printed, halo, bypass, *finer, flat):
            yield run_of(platform, 64, 64, *arm, zipf=1.0)
        for arm in (printed, *finer, flat):
            yield run_of(platform, 64, 64, *arm, zipf=0.5)
        yield run_of(platform, 256, 64, *finer[0])
        for zipf in (0.5, 1.0):
            for arm in (printed, *finer):
                yield run_of(platform, 256, 64, *arm, zipf=zipf)
    for ranks in (64, 256):
        for arm in finer:
            yield run_of("frontier_ideal", ranks, 512, *arm, zipf=1.0)
    for group in (64, 256):
        for stride in (1, 1024 // group):  # of neighbours, or as far apart as there are groups
            for arm in (printed, halo, bypass, *([flat] if group == 64 else [])):
                yield run_of("dragonfly", 1024, 64, *arm, ep=group, stride=stride)
    for arm in (printed, whole[0], halo, bypass):
        yield run_of("dragonfly", 1024, 64, *arm)
    for arm in (printed, *whole):
        yield run_of("dragonfly", 1024, 4, *arm)
    for zipf in (None, 1.0):
        for arm in (printed, halo, bypass):
            yield run_of("frontier_ideal", 1024, 64, *arm, zipf=zipf)
    for arm in (printed, ("halo", 6), ("bypass", 6)):
        yield run_of("dragonfly", 1024, 64, *arm, zipf=1.0)


def end_precision(row):
    """Seconds within which messages count as ending at the same time, so that their rates are computed once: up to 75 times
    faster. Times of 64 and 256 ranks differ by 0.1 % at most, and the 120 ms of drawn routing on 1,024 ranks by 0.5 %."""
    return "1e-8" if row["ranks"] < 1024 or row["zipf"] is None else "2e-4"


def key_of(row):
    return {name: row[name] for name in run_of("", 64, 4, "")}


def words_of(row):
    words = [row["platform"], str(row["ranks"]), str(row["kib_per_pair"]), row["transport"], f"chunks={row['chunks']}"]
    words += [f"zipf={row['zipf']}"] if row["zipf"] is not None else []
    return words + ([f"ep={row['ep']}", f"stride={row['stride']}"] if row["ep"] != row["ranks"] else []) + (["forward"] if row["forward"] else [])


def simulate(row, folder, limit_s):
    platform = PLATFORMS[row["platform"]]
    hosts = folder / "hosts"
    hosts.write_text("".join(platform["hosts"](rank) + "\n" for rank in range(row["ranks"])))
    dragonfly = folder / "dragonfly.xml"
    dragonfly.write_text(DRAGONFLY)
    settings = {**CONFIG, **platform["config"], "surf/precision": end_precision(row)}
    config = [f"--cfg={key}:{value}" for key, value in settings.items()]
    options = ["--transport", row["transport"], "--experts", row["experts"], "--top-k", row["top_k"],
               "--tokens", row["tokens"], "--row-bytes", row["row_bytes"], "--ranks-per-node", RANKS_PER_NODE,
               "--chunks", row["chunks"], "--ep", row["ep"], "--stride", row["stride"]]
    options += ["--zipf", row["zipf"]] if row["zipf"] is not None else []
    options += ["--forward"] if row["forward"] else []
    command = ["smpirun", "-np", row["ranks"], "-platform",
               BUILD / "frontier_platform.so" if platform["routes"] else dragonfly, "-hostfile", hosts,
               "--log=root.thres:error", *config, BUILD / "exchange_scale", *options]
    begin = time.monotonic()
    out, err = (folder / name for name in ("out", "err"))
    environment = {**os.environ, "FRONTIER_ROUTES": platform["routes"] or "",
                   "LD_PRELOAD": ctypes.util.find_library("jemalloc") or "", "MALLOC_CONF": "thp:always"}
    child = subprocess.Popen(["timeout", str(limit_s), *map(str, command)], stdout=out.open("w"), stderr=err.open("w"),
                             env=environment)
    _, status, used = os.wait4(child.pid, 0)
    wall = time.monotonic() - begin
    if status != 0:
        return {**row, "failed": f"exit {os.waitstatus_to_exitcode(status)} after {wall:.0f} s", "error": err.read_text()[-300:]}
    line = next(line for line in out.read_text().splitlines() if line.startswith("{"))
    return {**row, **json.loads(line), "cpu_s": round(used.ru_utime + used.ru_stime, 1), "wall_s": round(wall, 1),
            "resident_gb": round(used.ru_maxrss / 2**20, 2)}


def write(rows):
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", default="", help="words that a run's line must have")
    parser.add_argument("--limit", type=int, default=600, help="seconds of one run")
    args = parser.parse_args()
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    known = [key_of(row) for row in rows]
    todo = [row for row in runs() if key_of(row) not in known and set(args.only.split()) <= set(words_of(row))]
    if args.list:
        print("\n".join(" ".join(words_of(row)) for row in todo))
        return
    if todo:
        subprocess.run(["make", "-s", "-C", str(pathlib.Path(__file__).parent)], check=True)
    with tempfile.TemporaryDirectory() as folder:
        for row in todo:
            done = simulate(row, pathlib.Path(folder), args.limit)
            print(*words_of(done), {name: done[name] for name in done if name not in row}, flush=True)
            if "failed" not in done:
                rows.append(done)
                write(rows)
    PLOT.write_text(draw(rows))


if __name__ == "__main__":
    main()
