#!/usr/bin/env python3
"""Step times under forced loads and under a learned router, without balancing, with experts that move, and with
replicas, next to forced-even routing:

    bench/forced_loads.py build/cuda/moewright --device cuda --ranks 4 [--json FILE] [RUN.toml] [key=value ...]
    bench/forced_loads.py build/release/moewright --device cpu --ranks 8 --cores 0.2 --collapse 40 --rounds 2 \\
        --samples 64 --balance-every 10 --loads learned --arms none "0 slots" "2 slots" examples/bench/collapsing_bytes.toml

Loads are those of moe.forced_load (W0 to W7, docs/balance.md); W4 is `balanced` with uneven mesh.shares; `learned` is the
router's own choice, trained without auxiliary loss. `speed` is the mean step time of forced-even routing over that of the
arm: all steps count but the first SETTLE, which plan the first placement. For W4, forced-even routing has equal shares, and
the attention of the rank with most tokens alone makes the step slower. Forced-even routing runs first and last.

With --cores each rank has a CPU quota (bench/cpu_quotas.py), and the cores that ranks used are in the row; where a rank got
clearly less than its quota, the script stops. With --collapse the arms of the learned router go on from a checkpoint of so
many steps, whose experts are where they were at the start. With --rounds the learned arms take turns, and the last lines are
medians. `gain_predicted_ms` is what the run expected of its first move, `gain_measured_ms` the median of its steps before
that move less that of the steps until the next one; `all_moves_ms` and `all_steps_ms` include the steps left out elsewhere.
"""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

from cpu_quotas import Quotas
from train_step import write_random_tokens

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTLE = 10
STEADY, CHANGING, COLLAPSED = 40, 110, 30  # steps of a run
LOADS = {"W0": "balanced", "W1": "hot_experts", "W2": "hot_rank", "W3": "hot_spread", "W4": "balanced", "W5": "idle_experts",
         "W6": "moving", "W7": "burst", "learned": "none"}
ARMS = {"none": [], "0 slots": ["moe.balance=swap"], "1 slot": ["moe.balance=swap", "moe.replica_slots=1"],
        "2 slots": ["moe.balance=swap", "moe.replica_slots=2"]}


def launch(arguments, data, keys):
    """Runs `train`. Returns the cores that each rank used, where they have quotas."""
    words = [arguments.program, "train", arguments.run, "train.val_batches=0", "train.byte_baseline=false",
             "sample.tokens=0", "log.every=1", f"train.device={arguments.device}", f"mesh.ep={arguments.ranks}",
             "moe.aux_loss_coef=0", f"moe.balance_every={arguments.balance_every}",
             f"train.global_batch={arguments.samples}", *data, *arguments.overrides, *keys]
    if arguments.quotas:
        arguments.quotas.restart()
        command = arguments.quotas.command(words)
    else:
        command = ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", str(arguments.ranks), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}{done.stderr}exit {done.returncode}: {' '.join(keys)}")
    return arguments.quotas.used_cores() if arguments.quotas else []


def measure(arguments, data, load, arm):
    steps = CHANGING if load in ("W6", "W7", "learned") else STEADY
    keys = [f"moe.forced_load={'balanced' if arm == 'even' else LOADS[load]}", *ARMS.get(arm, [])]
    first = 0
    if load == "learned" and arguments.collapse:
        first, steps = arguments.collapse, COLLAPSED
        keys.append(f"checkpoint.resume={arguments.collapsed}")
    if load == "W4" and arm != "even":
        samples = arguments.samples // arguments.ranks
        keys.append("mesh.shares=" + ",".join(
            map(str, [samples + 1, *[samples] * (arguments.ranks - 2), samples - 1])))
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        cores = launch(arguments, data, [*keys, "checkpoint.dir=", f"train.steps={first + steps}",
                                         f"log.jsonl={metrics}"])
        every = [json.loads(line) for line in metrics.read_text().splitlines()]
    every = [line for line in every if line.get("step", 0) > first]
    lines = [line for line in every if line["step"] > first + SETTLE]
    times = [line["step_ms"] for line in lines]
    row = {"load": load, "arm": arm, "steps": len(lines), "mean_ms": round(statistics.mean(times), 2),
           "median_ms": round(statistics.median(times), 2),
           "rank_imbalance": round(statistics.mean(line["rank_imbalance"] for line in lines), 4),
           "imbalance": round(statistics.mean(line["imbalance"] for line in lines), 3),
           "moved_experts": sum(line.get("moved_experts", 0) for line in lines),
           "move_ms_per_step": round(sum(line.get("move_experts_ms", 0) for line in lines) / len(lines), 3)}
    if all("measured_ms" in line for line in lines):  # on GPUs of few steps
        for part in ("compute", "waiting"):
            row[f"{part}_ms"] = round(statistics.mean(line["measured_ms"][part] for line in lines), 2)
    if cores:
        row["least_cores"], row["most_cores"] = round(min(cores), 3), round(max(cores), 3)
    if load == "learned" and arm not in ("even", "none"):
        row |= gain_of_first_move(every)
    if load in ("W6", "W7"):
        row["late_steps"] = late_steps(load, lines)
    return row


def gain_of_first_move(lines):
    """Of a run's lines, without its first step, which allocates memory. Nothing where no move was planned after others."""
    moves = [i for i, line in enumerate(lines) if "moved_experts" in line] + [len(lines)]
    if moves[0] < 2 or moves[0] >= len(lines) - 1 or "move_gain_predicted_ms" not in lines[moves[0]]:
        return {}
    before, after = lines[1:moves[0]], lines[moves[0] + 1:moves[1]]
    return {"gain_predicted_ms": round(lines[moves[0]]["move_gain_predicted_ms"], 1),
            "gain_measured_ms": round(statistics.median(line["step_ms"] for line in before) -
                                      statistics.median(line["step_ms"] for line in after), 1),
            "all_moves_ms": round(sum(line.get("move_experts_ms", 0) for line in lines), 1),
            "all_steps_ms": round(sum(line["step_ms"] for line in lines), 1)}


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
    parser.add_argument("--balance-every", type=int, default=1)
    parser.add_argument("--cores", type=float, help="CPU quota of each rank")
    parser.add_argument("--collapse", type=int, default=0, help="steps before those of the learned arms")
    parser.add_argument("--rounds", type=int, default=1, help="of the learned arms")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_intermixed_args()
    arguments.quotas = Quotas([arguments.cores] * arguments.ranks) if arguments.cores else None
    rows = []

    def add(load, arm, even_ms):
        row = measure(arguments, text if load == "learned" else random_tokens, load, arm)
        if even_ms is not None:
            row["speed"] = round(even_ms / row["mean_ms"], 3)
        rows.append(row)
        print(json.dumps(row), flush=True)
        if arguments.json:
            pathlib.Path(arguments.json).write_text(json.dumps(
                {"benchmark": "forced_loads", "ranks": arguments.ranks, "device": arguments.device,
                 "overrides": arguments.overrides, "cores": arguments.cores, "rows": rows}, indent=1) + "\n")
        return row["mean_ms"]

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as at_end:
        if arguments.quotas:
            at_end.callback(arguments.quotas.remove)
        tokens = pathlib.Path(folder) / "tokens.bin"
        write_random_tokens(tokens, arguments.vocab, 0)
        random_tokens = ["data.kind=shards", f"data.path={tokens}", f"model.vocab={arguments.vocab}"]
        text = ["data.kind=text", f"data.path={arguments.text}", "model.vocab=256"]
        forced = [load for load in arguments.loads if load not in ("W0", "learned")]
        even = add("W0", "even", None) if forced else None
        for load in forced:
            for arm in arguments.arms:
                add(load, arm, even)
        if forced:
            add("W0", "even", even)
        if "learned" in arguments.loads:
            if arguments.collapse:
                arguments.collapsed = f"{folder}/collapsed"
                launch(arguments, text, [f"train.steps={arguments.collapse}", f"checkpoint.dir={arguments.collapsed}"])
            for _ in range(arguments.rounds):
                even = add("learned", "even", None)
                for arm in arguments.arms:
                    add("learned", arm, even)
    if arguments.rounds > 1:
        print_medians(rows, ["even", *arguments.arms])


def print_medians(rows, arms):
    """Of the speed and the step time of the learned arms over their rounds."""
    for arm in arms:
        own = [row for row in rows if row["load"] == "learned" and row["arm"] == arm]
        print(json.dumps({"arm": arm} | {key: round(statistics.median(row[key] for row in own), 3)
                                         for key in ("mean_ms", "speed") if key in own[0]}))


if __name__ == "__main__":
    main()
