#!/usr/bin/env python3
"""Memory of ordinary training runs on CPUs beside its prediction: 12 runs of 2 to 500 million parameters on 1 to 8 ranks, in
fp32 and bf16, each with every instruction set that --isa names. Of each run's largest rank: the prediction that the run
prints before its first step and again at its end (tensors of the byte table, rows that depend on the load, libraries), and the
growth of the resident set. A run is within bounds when it grew by at most the prediction + 3 % + 8 MiB and at least the
prediction - 4 % - 8 MiB. Prints a table; --json FILE keeps it. Exit 1 when a run is out of bounds."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from plan_errors_cpu import write_tokens

MIB = 2**20
VOCAB = 8192
MODELS = {  # name: (model table, tokens of a sequence, sequences of a step, steps)
    "2M": ("width = 96\nlayers = 4\nheads = 4\nexperts = 8\ntop_k = 2\nexpert_width = 96", 128, 8, 12),
    "10M": ("width = 192\nlayers = 4\nheads = 6\nexperts = 8\ntop_k = 2\nexpert_width = 384", 128, 8, 6),
    "43M": ("width = 384\nlayers = 4\nheads = 6\nexperts = 16\ntop_k = 2\nexpert_width = 512\nshared_experts = 1", 128, 8, 4),
    "150M": ("width = 512\nlayers = 6\nheads = 8\nexperts = 16\ntop_k = 2\nexpert_width = 896", 128, 8, 3),
    "500M": ("width = 768\nlayers = 8\nheads = 12\nexperts = 32\ntop_k = 2\nexpert_width = 832", 128, 8, 2),
}
RUNS = [  # model, dtype, ranks, threads of a rank (0: the default), overrides
    ("2M", "fp32", 1, 0, ""),
    ("2M", "bf16", 2, 1, "mesh.ep=2"),
    ("10M", "bf16", 1, 0, ""),
    ("10M", "fp32", 4, 1, "mesh.ep=4"),
    ("43M", "fp32", 1, 0, ""),
    ("43M", "bf16", 1, 1, "train.micro_batches=2"),
    ("43M", "fp32", 2, 1, "mesh.pp=2 train.micro_batches=4"),
    ("43M", "bf16", 8, 1, "mesh.ep=8"),
    ("150M", "bf16", 2, 1, "mesh.ep=2 memory.recompute=moe"),
    ("150M", "fp32", 8, 1, "mesh.ep=4 mesh.tp=2 mesh.zero=1"),
    ("500M", "fp32", 1, 0, ""),
    ("500M", "bf16", 4, 1, "mesh.ep=4 memory.moments=bf16 memory.expert_gradients=bf16"),
]
RUN_FILE = """
[model]
vocab = {vocab}
{model}
[data]
kind = "shards"
path = "tokens.bin"
[moe]
aux_loss_coef = 0.01
[train]
steps = {steps}
seq_len = {seq_len}
global_batch = {batch}
val_batches = 0
[log]
jsonl = "metrics.jsonl"
"""


def machine():
    names = [line.split(": ", 1)[1] for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    best = "AMX" if " amx_bf16" in flags else "AVX-512" if " avx512f" in flags else "AVX2"
    return f"{names[0] if names else 'a CPU without a name'} with {best}, {len(os.sched_getaffinity(0))} cores"


def commit():
    done = subprocess.run(["git", "-C", str(pathlib.Path(__file__).parent), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip()


def measure(binary, isa, model, dtype, ranks, threads, overrides):
    table, seq_len, batch, steps = MODELS[model]
    pathlib.Path("run.toml").write_text(RUN_FILE.format(vocab=VOCAB, model=table, steps=steps, seq_len=seq_len, batch=batch))
    metrics = pathlib.Path("metrics.jsonl")
    metrics.unlink(missing_ok=True)
    command = [] if ranks == 1 else ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--oversubscribe", "-np", str(ranks)]
    command += [binary, "train", "run.toml", f"train.dtype={dtype}", f"train.threads={threads}", *overrides.split()]
    environment = dict(os.environ)
    environment.pop("ONEDNN_MAX_CPU_ISA", None)
    if isa != "best":
        environment["ONEDNN_MAX_CPU_ISA"] = isa
    done = subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    last = lines[-1]
    predicted, measured = last["mem_predicted_bytes"] + last["mem_library_bytes"], last["mem_peak_bytes"]
    header = next(line for line in done.stdout.splitlines() if line.startswith("model: "))
    return {"model": model, "summary": header.removeprefix("model: "), "dtype": dtype, "ranks": ranks, "threads": threads,
            "overrides": overrides, "isa": isa, "tensor_bytes": last["mem_predicted_bytes"],
            "library_bytes": last["mem_library_bytes"], "predicted_bytes": predicted, "measured_bytes": measured,
            "measured_by_step": [line["mem_peak_bytes"] for line in lines],
            "percent_above": round(100 * (measured / predicted - 1), 2),
            "within": 0.96 * predicted - 8 * MIB <= measured <= 1.03 * predicted + 8 * MIB}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", help="moewright, of any build")
    parser.add_argument("--isa", nargs="+", default=["AVX2", "best"],
                        help='values of ONEDNN_MAX_CPU_ISA, or "best" for no limit (default: AVX2 best)')
    parser.add_argument("--only", default="", help='runs whose line holds this text, for example "43M fp32"')
    parser.add_argument("--json", metavar="FILE", help="where to write the table")
    options = parser.parse_args()
    binary, output = str(pathlib.Path(options.binary).resolve()), options.json and pathlib.Path(options.json).resolve()
    folder = tempfile.mkdtemp(prefix="memory_runs.")
    os.chdir(folder)
    write_tokens(1 << 17, VOCAB)
    rows = []
    print(f"{'run':<66} {'predicted':>10} {'libraries':>10} {'measured':>10}  {'above':>7}")
    for isa in options.isa:
        for run in RUNS:
            name = f"{run[0]} {run[1]} np {run[2]} {isa} {run[4]}"
            if options.only not in name:
                continue
            row = measure(binary, isa, *run)
            rows.append(row)
            print(f"{name:<66} {row['predicted_bytes'] / MIB:>8.1f} M {row['library_bytes'] / MIB:>8.1f} M "
                  f"{row['measured_bytes'] / MIB:>8.1f} M  {row['percent_above']:>+6.1f} %{'' if row['within'] else '  OUT OF BOUNDS'}", flush=True)
    shutil.rmtree(folder)
    outside = [row for row in rows if not row["within"]]
    print(f"{len(rows) - len(outside)} of {len(rows)} runs within prediction + 3 % + 8 MiB and - 4 % - 8 MiB")
    if output:
        summary = {"benchmark": "memory_runs", "machine": machine(), "commit": commit(),
                   "command": f"bench/memory_runs.py build/release/moewright --isa {' '.join(options.isa)} --json FILE",
                   "bounds": "prediction + 3 % + 8 MiB, prediction - 4 % - 8 MiB", "runs": len(rows), "outside": len(outside), "rows": rows}
        output.write_text(json.dumps(summary, indent=1) + "\n")
    sys.exit(1 if outside else 0)


main()
