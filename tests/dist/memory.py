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


def in_bytes(text):
    number, unit = text.split()
    return float(number) * UNIT[unit]


def measure(label, dtype, ranks, *overrides):
    """Runs once and judges its memory line; returns the bytes of fixed tensors."""
    global failures
    with open("run.toml", "w") as f:
        f.write(RUN.replace("DTYPE", dtype).replace("ep = 2", f"ep = {ranks}"))
    command = [*os.environ["MOEWRIGHT_MPIRUN"].split(), "-np", str(ranks), os.environ["MOEWRIGHT_BIN"], "train", "run.toml",
               "log.format=long", *overrides]
    output = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
    lines = [l for l in output.stdout.splitlines() if l.startswith("memory of the largest rank: ")]
    header, line = (lines[0], lines[-1]) if len(lines) == 2 else ("", "")
    print(f"{label}, {dtype} np {ranks}: {line}")
    prediction = r"predicted ([\d.]+ [MG]iB) \(tensors ([\d.]+)(?:, rows that depend on the load ([\d.]+))?, libraries ([\d.]+)\)"
    before, after = re.search(prediction, header), re.search(rf"measured ([\d.]+ [MG]iB) \([+-][\d.]+ %\), {prediction}; fixed tensors equal to the byte on every rank", line)
    if output.returncode != 0 or not (before and after):
        print(output.stdout[-2000:], output.stderr[-2000:])
        sys.exit("the run failed or printed no memory lines")
    # The last line is of the rank that measured most, the header of the one with the largest prediction.
    if after[4] is None and abs(in_bytes(before[1]) / in_bytes(after[2]) - 1) > 0.01:
        sys.exit(f"the last line has another prediction than the header: {header}")
    step = [l for l in output.stdout.splitlines() if l.startswith("step ")][-1]
    if f"mem {after[1].split()[0]} of {after[2]}" not in step:
        sys.exit(f"the step line has other numbers than the last line: {step}")
    rows = re.search(r"rows that depend on the load: ([\d.]+ \w+) used, .* ([\d.]+ \w+) at worst", output.stdout)
    moves_rows = "mesh.ep=1" not in overrides and not any(o.startswith("moe.transport=gather_") for o in overrides)
    if ranks > 1 and moves_rows and not (rows and in_bytes(rows[1]) <= in_bytes(rows[2])):
        sys.exit("more routed rows than the bound, or none")
    predicted, grown = in_bytes(after[2]), in_bytes(after[1])
    if not 0.96 * predicted - 8 * 2**20 <= grown <= 1.03 * predicted + 8 * 2**20:
        print(f"FAIL: grew by {grown / 2**20:.0f} MiB, predicted {predicted / 2**20:.0f} MiB")
        failures += 1
    return float(after[3]) * in_bytes("1 " + after[2].split()[1])


if measure("fresh", "bf16", 1) < 500e6:
    sys.exit("the model is too small for this test")
kept = measure("fresh", "bf16", 2)
if measure("recomputed", "bf16", 2, "memory.recompute=full") >= kept:
    print("FAIL: recompute saves nothing")
    failures += 1
# Buffers of 0.8 MB for each product in the heap of the second thread.
measure("two threads", "bf16", 1, "model.width=256", "model.layers=4", "model.heads=4", "model.experts=8", "model.expert_width=384",
        "model.shared_experts=0", "train.seq_len=256", "train.global_batch=16", "train.threads=2")
measure("fresh", "fp32", 2, "checkpoint.dir=checkpoints")
measure("gathered weights", "bf16", 2, "moe.transport=gather_weights", "moe.row_chunks=2")
measure("gathered weights, all kept", "bf16", 2, "moe.transport=gather_weights", "moe.row_chunks=2", "moe.weight_slots=0")
measure("gathered tokens", "bf16", 2, "moe.transport=gather_tokens", "moe.row_chunks=2")
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
