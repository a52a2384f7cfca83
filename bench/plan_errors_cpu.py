#!/usr/bin/env python3
"""Compares what `moewright plan` predicts on CPUs with measured runs: growth of the resident set, and time of a step, of
two models in over thirty layouts on 1 to 8 ranks of one thread. Each round measures a profile for each number of ranks
(`moewright probe`) and runs all layouts; plans are made from the medians of the profiles, as shared machines are faster in
one minute than in the next. Prints a table; --json FILE keeps it.

Memory: the largest rank's growth of VmHWM since the libraries started, against what the plan says of fixed tensors, of the
routed rows of the fullest rank, whose pages a CPU takes as they come, and of what libraries take in use. Time, at 1 and 2
ranks: of the pairs of layouts of one model whose measured medians differ by more than a tenth, the share that the plans put
in the same order."""

import argparse
import itertools
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = {
    "grouped": """
[model]
vocab = 8192
width = 384
layers = 6
heads = 12
kv_heads = 4
head_dim = 32
experts = 16
top_k = 2
expert_width = 512
qk_norm = "per_head"
""",
    "latent": """
[model]
vocab = 8192
width = 384
layers = 6
attention = "latent"
heads = 8
q_rank = 192
kv_rank = 128
nope_dim = 32
rope_dim = 16
value_dim = 32
experts = 16
top_k = 2
expert_width = 640
activation = "gelu"
shared_experts = 1
dense_layers = 1
dense_width = 1024
""",
}
COMMON = """
[data]
kind = "shards"
path = "tokens.bin"
[train]
steps = 3
seq_len = 64
global_batch = 16
lr = 1e-4
val_batches = 0
threads = 1
[log]
jsonl = "metrics.jsonl"
[plan]
balance = 1  # random tokens, no balancing loss
[watchdog]
seconds = 0
"""
LAYOUTS = [  # model, ranks, overrides
    ("grouped", 1, "train.micro_batches=1 train.dtype=fp32"),
    ("grouped", 1, "train.micro_batches=4 train.dtype=fp32"),
    ("grouped", 1, "train.micro_batches=1 train.dtype=fp32 memory.recompute=moe"),
    ("grouped", 1, "train.micro_batches=1 train.dtype=fp32 memory.recompute=full"),
    ("grouped", 1, "train.micro_batches=2"),
    ("grouped", 1, "train.micro_batches=2 memory.recompute=selective"),
    ("latent", 1, "train.micro_batches=1 train.dtype=fp32"),
    ("latent", 1, "train.micro_batches=2 train.dtype=fp32 memory.recompute=full"),
    ("latent", 1, "train.micro_batches=4"),
    ("grouped", 2, "train.micro_batches=2 train.dtype=fp32"),
    ("grouped", 2, "train.micro_batches=2 train.dtype=fp32 mesh.zero=1"),
    ("grouped", 2, "train.micro_batches=1 train.dtype=fp32 mesh.ep=2"),
    ("grouped", 2, "train.micro_batches=8 train.dtype=fp32 mesh.ep=2"),
    ("grouped", 2, "train.micro_batches=2 mesh.ep=2 mesh.zero=1"),
    ("grouped", 2, "train.micro_batches=2 train.dtype=fp32 mesh.tp=2"),
    ("grouped", 2, "train.micro_batches=2 train.dtype=fp32 mesh.tp=2 mesh.ep=2"),
    ("grouped", 2, "train.micro_batches=2 train.dtype=fp32 mesh.tp=2 moe.tp_mode=ted"),
    ("grouped", 2, "train.micro_batches=4 train.dtype=fp32 mesh.pp=2"),
    ("grouped", 2, "train.micro_batches=4 train.dtype=fp32 mesh.pp=2 mesh.schedule=gpipe memory.recompute=full"),
    ("grouped", 2, "train.micro_batches=4 train.dtype=fp32 mesh.pp=2 mesh.schedule=interleaved mesh.chunks=3"),
    ("grouped", 2, "train.micro_batches=8 train.dtype=fp32 mesh.pp=2 mesh.schedule=zb_h1"),
    ("grouped", 2, "train.micro_batches=8 mesh.pp=2 mesh.schedule=zb_v"),
    ("latent", 2, "train.micro_batches=2 train.dtype=fp32 mesh.ep=2"),
    ("latent", 2, "train.micro_batches=2 mesh.ep=2 memory.recompute=moe"),
    ("latent", 2, "train.micro_batches=2 train.dtype=fp32 mesh.tp=2 mesh.ep=2"),
    ("latent", 2, "train.micro_batches=4 train.dtype=fp32 mesh.pp=2 mesh.schedule=zb_h1"),
    ("latent", 2, "train.micro_batches=4 train.dtype=fp32 mesh.zero=1"),
    ("grouped", 4, "train.micro_batches=2 train.dtype=fp32 mesh.ep=4"),
    ("grouped", 4, "train.micro_batches=2 train.dtype=fp32 mesh.ep=2 mesh.zero=1"),
    ("grouped", 4, "train.micro_batches=4 train.dtype=fp32 mesh.pp=2 mesh.ep=2"),
    ("grouped", 4, "train.micro_batches=2 mesh.tp=2 mesh.ep=4 mesh.zero=1"),
    ("latent", 4, "train.micro_batches=2 train.dtype=fp32 mesh.tp=2 moe.tp_mode=ted mesh.ep=2"),
    ("latent", 4, "train.micro_batches=4 train.dtype=fp32 mesh.pp=2 mesh.ep=2 mesh.placement=dp_first"),
    ("grouped", 8, "train.micro_batches=2 train.dtype=fp32 mesh.ep=8"),
    ("grouped", 8, "train.micro_batches=4 train.dtype=fp32 mesh.pp=2 mesh.tp=2 mesh.ep=4"),
    ("latent", 8, "train.micro_batches=2 mesh.ep=4 mesh.zero=1"),
]


def call(arguments, environment=None):
    done = subprocess.run([str(part) for part in arguments], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def launcher(ranks):
    return [] if ranks == 1 else ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", ranks]


def write_tokens(count=1 << 18, vocab=8192):
    """A shard of random tokens: routing is as uneven as a router without training makes it."""
    generator = random.Random(7)
    header = struct.pack("<256i", 20240520, 1, count, *[0] * 253)
    pathlib.Path("tokens.bin").write_bytes(header + struct.pack(f"<{count}H", *(generator.randrange(vocab) for _ in range(count))))


def medians(profiles):
    """Of each number of profiles that are of one form."""
    first = profiles[0]
    if isinstance(first, dict):
        return {key: medians([profile[key] for profile in profiles]) for key in first}
    if isinstance(first, list):
        return [medians(list(values)) for values in zip(*profiles)]
    if isinstance(first, (int, float)) and not isinstance(first, bool):
        return type(first)(statistics.median(profiles))
    return first


def probe(binary, ranks, budget, path):
    call([*launcher(ranks), binary, "probe", "-o", path, "--threads", 1, "--budget", budget])
    return json.loads(pathlib.Path(path).read_text())


def predict(binary, model, ranks, overrides):
    text = call([binary, "plan", f"{model}.toml", "--platform", f"profile_{ranks}.json", "--ranks", ranks, "--json",
                 "--why", "", *overrides])
    plan = json.loads(text)
    libraries = json.loads(pathlib.Path(f"profile_{ranks}.json").read_text())["libraries"]
    taken = sum(library["bytes"] for library in libraries if library["name"] == "libraries in use")
    plan["growth"] = max(stage["fixed"] + stage["rows_fullest"] for stage in plan["stages"]) + taken
    return plan


def measure(binary, model, ranks, overrides):
    path = pathlib.Path("metrics.jsonl")
    path.unlink(missing_ok=True)
    call([*launcher(ranks), binary, "train", f"{model}.toml", *overrides],
         {**os.environ, "OMP_WAIT_POLICY": "passive"})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {"step_ms": [line["step_ms"] for line in lines[1:]], "grew": lines[-1]["mem_peak_bytes"],
            "table": lines[-1]["mem_predicted_bytes"]}


def machine():
    names = [line.split(": ", 1)[1] for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{names[0] if names else 'a CPU without a name'}, {len(os.sched_getaffinity(0))} cores"


def judge_memory(rows):
    errors = [row["memory_error_percent"] for row in rows]
    return {"layouts": len(errors), "mean_percent": statistics.mean(map(abs, errors)), "worst_percent": max(map(abs, errors)),
            "most_under_percent": max(0.0, -min(errors))}


def judge_order(rows):
    pairs = right = 0
    for a, b in itertools.combinations([row for row in rows if row["ranks"] <= 2], 2):
        if a["model"] != b["model"] or max(a["measured_ms"], b["measured_ms"]) < 1.1 * min(a["measured_ms"], b["measured_ms"]):
            continue
        pairs += 1
        right += (a["measured_ms"] < b["measured_ms"]) == (a["planned_ms"] < b["planned_ms"])
    return {"pairs": pairs, "right": right, "right_percent": 100 * right / max(pairs, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", help="moewright, of any build")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each layout")
    parser.add_argument("--budget", default="10s", help="of each profile")
    parser.add_argument("--only", default="", help="layouts whose overrides or model contain this")
    parser.add_argument("--json")
    options = parser.parse_args()
    binary = str(pathlib.Path(options.binary).resolve())
    write_tokens()
    for name, text in MODELS.items():
        pathlib.Path(f"{name}.toml").write_text(text + COMMON)
    layouts = [layout for layout in LAYOUTS if options.only in " ".join(map(str, layout))]
    profiles = {ranks: [] for _, ranks, _ in layouts}
    runs, loads = [[] for _ in layouts], []
    for i in range(options.rounds):
        for ranks, into in profiles.items():
            into.append(probe(binary, ranks, options.budget, f"profile_{ranks}_{i + 1}.json"))
        for (model, ranks, overrides), into in zip(layouts, runs):
            loads.append(os.getloadavg()[0])
            into.append(measure(binary, model, ranks, overrides.split()))
            print(f"round {i + 1}: {model} {ranks} {overrides}: {statistics.median(into[-1]['step_ms']):.0f} ms", file=sys.stderr)
    for ranks, measured in profiles.items():
        pathlib.Path(f"profile_{ranks}.json").write_text(json.dumps(medians(measured)))
    plans = [predict(binary, model, ranks, overrides.split()) for model, ranks, overrides in layouts]
    rows = []
    for (model, ranks, overrides), plan, taken in zip(layouts, plans, runs):
        grew = max(run["grew"] for run in taken)
        measured = statistics.median(ms for run in taken for ms in run["step_ms"])
        rows.append({"model": model, "ranks": ranks, "overrides": overrides, "grew_bytes": grew,
                     "planned_bytes": plan["growth"], "memory_error_percent": 100 * plan["growth"] / grew - 100,
                     "table_bytes": taken[0]["table"], "measured_ms": measured, "planned_ms": 1e3 * plan["step_s"],
                     "time_error_percent": 1e5 * plan["step_s"] / measured - 100,
                     "step_ms": [[round(ms, 2) for ms in run["step_ms"]] for run in taken]})
        row = rows[-1]
        print(f"{model:8} {ranks} {overrides:92} {grew / 2**20:8.1f} MiB {row['memory_error_percent']:+6.2f} %"
              f" {measured:9.1f} ms {row['time_error_percent']:+7.1f} %")
    memory, order = judge_memory(rows), judge_order(rows)
    print(f"memory of {memory['layouts']} layouts: mean error {memory['mean_percent']:.2f} %, worst {memory['worst_percent']:.2f} %,"
          f" at most {memory['most_under_percent']:.2f} % under")
    print(f"order at 1 and 2 ranks: {order['right']} of {order['pairs']} pairs right ({order['right_percent']:.1f} %)")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(
            {"benchmark": "plan_errors_cpu", "machine": machine(), "load_average_before_runs": round(statistics.median(loads), 1),
             "command": "bench/plan_errors_cpu.py build/release/moewright " + " ".join(sys.argv[2:]), "memory": memory, "order": order, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
