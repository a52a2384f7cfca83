#!/usr/bin/env python3
"""Memory of a model of more than 500 MB of state: arenas equal the table of bytes, and the resident set grows as predicted."""
import os
import re
import subprocess
import sys

with open("text.txt", "w") as f:
    for i in range(20000):
        f.write(f"line {i} of some text that is learned\n")

RUN = """
[model]
width = 384
layers = 3
heads = 6
experts = 16
top_k = 2
expert_width = 768
shared_experts = 1
[data]
path = "text.txt"
[train]
steps = 2
seq_len = 128
global_batch = 8
val_batches = 1
dtype = "DTYPE"
[mesh]
ep = 2
"""

UNIT = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
failures = 0


def measure(label, dtype, ranks, *overrides):
    """Runs once and judges its memory line; returns the bytes of fixed tensors."""
    global failures
    with open("run.toml", "w") as f:
        f.write(RUN.replace("DTYPE", dtype).replace("ep = 2", f"ep = {ranks}"))
    command = [*os.environ["MOEWRIGHT_MPIRUN"].split(), "-np", str(ranks), os.environ["MOEWRIGHT_BIN"], "train", "run.toml",
               *overrides]
    output = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
    line = next((l for l in output.stdout.splitlines() if l.startswith("memory of the largest rank")), "")
    print(f"{label}, {dtype} np {ranks}: {line}")
    state = re.search(r"fixed tensors ([\d.]+) (MiB|GiB) predicted, .* \(equal to the byte on every rank\)", line)
    routed = re.search(r"routed rows ([\d.]+) (B|KiB|MiB|GiB) used, ([\d.]+) (B|KiB|MiB|GiB) committed at start, ([\d.]+) (B|KiB|MiB|GiB) at worst", line)
    grew = re.search(r"resident set grew by ([\d.]+) (MiB|GiB) \(([+-][\d.]+) % of the ([\d.]+) (MiB|GiB) predicted\)", line)
    if output.returncode != 0 or not (state and routed and grew):
        print(output.stdout[-2000:], output.stderr[-2000:])
        sys.exit("the run failed or printed no memory line")
    if float(routed[1]) * UNIT[routed[2]] > float(routed[5]) * UNIT[routed[6]]:
        sys.exit("more routed rows than the bound")
    predicted, grown = float(grew[4]) * UNIT[grew[5]], float(grew[1]) * UNIT[grew[2]]
    if abs(grown - predicted) > 0.05 * predicted + 16 * 2**20:
        print(f"FAIL: grew by {grown / 2**20:.0f} MiB, predicted {predicted / 2**20:.0f} MiB")
        failures += 1
    return float(state[1]) * UNIT[state[2]]


if measure("fresh", "bf16", 1) < 500e6:
    sys.exit("the model is too small for this test")
kept = measure("fresh", "bf16", 2)
if measure("recomputed", "bf16", 2, "memory.recompute=full") >= kept:
    print("FAIL: recompute saves nothing")
    failures += 1
measure("fresh", "fp32", 2, "checkpoint.dir=checkpoints")
# Large sums and gathers take no memory of their own; moments and masters are cut in two.
whole = measure("whole", "bf16", 2, "mesh.ep=1")
cut = measure("cut", "bf16", 2, "mesh.ep=1", "mesh.zero=1")
if cut > 0.78 * whole:
    sys.exit(f"with ZeRO {cut / 2**20:.0f} of {whole / 2**20:.0f} MiB stay")
# The files that a resumed run reads are not its memory.
measure("resumed", "fp32", 2, "checkpoint.dir=checkpoints", "checkpoint.resume=auto", "train.steps=3")

# Every command takes its share of the node, not all of it.
for command in ("train", "verify", "sample"):
    arguments = ["run.toml", "mesh.ep=1", "mesh.ranks_per_node=65536", "checkpoint.dir=checkpoints", "checkpoint.resume=auto"]
    result = subprocess.run([os.environ["MOEWRIGHT_BIN"], command, *arguments], capture_output=True, errors="replace",
                            stdin=subprocess.DEVNULL, timeout=600)
    if result.returncode != 6:
        print(f"FAIL: {command} on a 65536th of the node: exit {result.returncode}, expected 6", result.stderr[-2000:])
        failures += 1
sys.exit(1 if failures else 0)
