#!/usr/bin/env python3
"""Step times under forced loads and under a learned router, without balancing, with experts that move, and with
replicas, next to forced-even routing:

    bench/forced_loads.py build/cuda/moewright --device cuda --ranks 4 [--json FILE] [RUN.toml] [key=value ...]

Loads are those of moe.forced_load (W0 to W7, docs/balance.md); W4 is `balanced` with uneven mesh.shares; `learned` is the
router's own choice, trained without auxiliary loss. `speed` is the mean step time of forced-even routing over that of the
arm: all steps count but the first SETTLE, which plan the first placement. For W4, forced-even routing has equal shares, and
the attention of the rank with most tokens alone makes the step slower. Forced-even routing runs first and last.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

from train_step import write_random_tokens

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTLE = 10
STEADY, CHANGING = 40, 110  # steps of a run
LOADS = {"W0": "balanced", "W1": "hot_experts", "W2": "hot_rank", "W3": "hot_spread", "W4": "balanced", "W5": "idle_experts",
         "W6": "moving", "W7": "burst", "learned": "none"}
ARMS = {"none": [], "0 slots": ["moe.balance=swap"], "1 slot": ["moe.balance=swap", "moe.replica_slots=1"],
        "2 slots": ["moe.balance=swap", "moe.replica_slots=2"]}


def train(arguments, data, steps, keys):
    """The lines of metrics.jsonl of the steps after SETTLE."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        done = subprocess.run(
            ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", str(arguments.ranks), arguments.program, "train",
             arguments.run, f"train.steps={steps}", "train.val_batches=0", "train.byte_baseline=false",
             "sample.tokens=0", "checkpoint.dir=", "log.every=1", f"log.jsonl={metrics}",
             f"train.device={arguments.device}", f"mesh.ep={arguments.ranks}", "moe.aux_loss_coef=0",
             "moe.balance_every=1", *data, *arguments.overrides, *keys],
            capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        if done.returncode != 0:
            raise SystemExit(f"{done.stdout}{done.stderr}exit {done.returncode}: {' '.join(keys)}")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line for line in lines if line.get("step", 0) > SETTLE]


def measure(arguments, data, load, arm):
    steps = CHANGING if load in ("W6", "W7", "learned") else STEADY
    keys = [f"moe.forced_load={'balanced' if arm == 'even' else LOADS[load]}", *ARMS.get(arm, [])]
    if load == "W4" and arm != "even":
        samples = arguments.samples // arguments.ranks
        keys.append("mesh.shares=" + ",".join(
            map(str, [samples + 1, *[samples] * (arguments.ranks - 2), samples - 1])))
    lines = train(arguments, data, steps, keys)
    times = [line["step_ms"] for line in lines]
    row = {"load": load, "arm": arm, "steps": len(lines), "mean_ms": round(statistics.mean(times), 2),
           "median_ms": round(statistics.median(times), 2),
           "rank_imbalance": round(statistics.mean(line["rank_imbalance"] for line in lines), 4),
           "imbalance": round(statistics.mean(line["imbalance"] for line in lines), 3),
           "moved_experts": sum(line.get("moved_experts", 0) for line in lines),
           "move_ms_per_step": round(sum(line.get("move_experts_ms", 0) for line in lines) / len(lines), 3)}
    if load in ("W6", "W7"):
        row["late_steps"] = late_steps(load, lines)
    return row


def late_steps(load, lines):
    """The most steps that it took after a change of the load until ranks were within 5 % of their mean."""
    period = 10 if load == "W6" else 50
    worst = 0
    for first in range(len(lines)):
        if (lines[first]["step"] - 1) % period == (45 if load == "W7" else 0):
            after = next((i for i, line in enumerate(lines[first:]) if line["rank_imbalance"] <= 1.05), None)
            worst = max(worst, len(lines) - first if after is None else after)
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("run", nargs="?", default=str(ROOT / "examples/bench/qwen3_30b_8_layers.toml"))
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=32768, help="of the random tokens of forced loads")
    parser.add_argument("--samples", type=int, default=16, help="of a step, on all ranks")
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--text", default=str(ROOT / "docs"), help="bytes that the learned router trains on")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_intermixed_args()
    common = [f"train.global_batch={arguments.samples}"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tokens = pathlib.Path(folder) / "tokens.bin"
        write_random_tokens(tokens, arguments.vocab, 0)
        random_tokens = [*common, "data.kind=shards", f"data.path={tokens}", f"model.vocab={arguments.vocab}"]
        text = [*common, "data.kind=text", f"data.path={arguments.text}", "model.vocab=256"]

        def add(load, arm, even_ms):
            row = measure(arguments, text if load == "learned" else random_tokens, load, arm)
            if even_ms is not None:
                row["speed"] = round(even_ms / row["mean_ms"], 3)
            rows.append(row)
            print(json.dumps(row), flush=True)
            if arguments.json:
                pathlib.Path(arguments.json).write_text(json.dumps(
                    {"benchmark": "forced_loads", "ranks": arguments.ranks, "device": arguments.device,
                     "overrides": arguments.overrides, "rows": rows}, indent=1) + "\n")
            return row["mean_ms"]

        forced = [load for load in arguments.loads if load not in ("W0", "learned")]
        even = add("W0", "even", None) if forced else None
        for load in forced:
            for arm in arguments.arms:
                add(load, arm, even)
        if forced:
            add("W0", "even", even)
        if "learned" in arguments.loads:
            even = add("learned", "even", None)
            for arm in arguments.arms:
                add("learned", arm, even)


if __name__ == "__main__":
    main()
