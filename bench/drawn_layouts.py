#!/usr/bin/env python3
"""Layouts drawn by chance, planned before anything is measured: how right a plan is on layouts that nobody chose.

    bench/drawn_layouts.py draw build/release/moewright --ranks 8 > bench/drawn_layouts_8.json    # committed, then
    bench/drawn_layouts.py measure build/cuda/moewright bench/drawn_layouts_8.json --json FILE

For each of three shapes (Qwen3-30B, X-MoE Small and Medium, with fewer layers on fewer GPUs) `draw` takes the layout that
the plan puts first and, by a fixed seed, one of the faster half of all that fit and two of the slower half, none of them
over four times as slow as the first. `measure` trains each for some steps and prints the errors of step time and memory,
and how far the first layout of a shape is from the fastest that was measured. It keeps what it has after every layout.
"""
import argparse
import json
import pathlib
import random
import statistics

from layout_table import measure_all
from plan_errors_cpu import call

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEED = 20261122
ROOM = 0.95       # of a GPU's memory, at most
SLOWEST = 4       # times the first layout's step
QWEN = "examples/bench/qwen3_30b_8_layers.toml"
MEDIUM = ("model.width=5120 model.heads=40 model.kv_heads=40 model.head_dim=128 model.qk_norm=none model.experts=128 "
          "model.top_k=6 model.expert_width=1536 model.activation=gelu model.vocab=32000 train.seq_len=2048").split()
SHAPES = {  # by ranks: layers and sequences of a step
    "Qwen3-30B": {"run": QWEN, "overrides": [], "vocab": 151936, 2: (8, 16), 4: (16, 32), 8: (24, 64)},
    "X-MoE Small": {"run": "examples/bench/xmoe_small.toml", "overrides": ["moe.aux_loss_coef=0"], "vocab": 50304,
                    2: (14, 32), 4: (28, 64), 8: (28, 128)},
    "X-MoE Medium": {"run": QWEN, "overrides": MEDIUM, "vocab": 32000, 2: (3, 32), 4: (8, 64), 8: (14, 128)},
}
KEYS = {"pp": "mesh.pp", "tp": "mesh.tp", "ep": "mesh.ep", "zero": "mesh.zero", "schedule": "mesh.schedule",
        "chunks": "mesh.chunks", "placement": "mesh.placement", "micro_batches": "train.micro_batches",
        "recompute": "memory.recompute", "transport": "moe.transport"}


def to_overrides(layout):
    return [f"{KEYS[key]}={value}" for key, value in (choice.split("=") for choice in layout.split())]


def plan(binary, shape, ranks, overrides, *more):
    return call([binary, "plan", ROOT / shape["run"], "--platform", ROOT / "profiles/h200x8.json", "--ranks", ranks,
                 "plan.balance=1", *overrides, *more])


def draw_from(binary, name, ranks, chance):
    shape = SHAPES[name]
    if ranks not in shape:
        raise SystemExit(f"--ranks {ranks}: expected 2, 4 or 8")
    layers, sequences = shape[ranks]
    overrides = [*shape["overrides"], f"model.layers={layers}", f"train.global_batch={sequences}"]
    memory = json.loads(plan(binary, shape, ranks, overrides, "--json", "--top", "1"))["memory_bytes"]
    listed = [line.split("\t") for line in plan(binary, shape, ranks, overrides, "--list-all").splitlines()]
    fitting = [(float(seconds), layout) for seconds, needed, fits, layout in listed if fits == "fits" and int(needed) <= ROOM * memory]
    fitting = [(seconds, layout) for seconds, layout in sorted(fitting) if seconds <= SLOWEST * fitting[0][0]]
    half = len(fitting) // 2
    chosen = [fitting[0], *chance.sample(fitting[1:half], 1), *chance.sample(fitting[half:], 2)]
    for i, (_, layout) in enumerate(chosen):
        exact = json.loads(plan(binary, shape, ranks, [*overrides, *to_overrides(layout)], "--json", "--why", ""))
        yield {"shape": name, "drawn_from": "first" if i == 0 else "faster half" if i == 1 else "slower half",
               "of": len(fitting), "layout": layout, "overrides": [*overrides, *to_overrides(layout)],
               "planned_ms": 1e3 * exact["step_s"], "planned_bytes": exact["needed_bytes"]}


def draw(options):
    chance = random.Random(SEED)
    rows = [row for name in SHAPES for row in draw_from(options.binary, name, options.ranks, chance)]
    print(json.dumps({"seed": SEED, "ranks": options.ranks, "rows": rows}, indent=1))


def report(rows):
    if not rows:
        return
    times = [row["error_percent"] for row in rows]
    memory = [row["memory_error_percent"] for row in rows]
    print(f"{len(rows)} layouts: step time {statistics.mean(map(abs, times)):.1f} % on average, {max(map(abs, times)):.1f} % "
          f"at worst; memory {statistics.mean(map(abs, memory)):.1f} % and {max(map(abs, memory)):.1f} %")
    for name in SHAPES:
        measured = {row["drawn_from"]: row["measured_ms"] for row in rows if row["shape"] == name}
        fastest = min((row["measured_ms"] for row in rows if row["shape"] == name), default=0)
        if "first" in measured:
            print(f"{name}: the first layout is {100 * measured['first'] / fastest - 100:.1f} % slower than the fastest measured")


def measure(options):
    drawn = json.loads(pathlib.Path(options.drawn).read_text())
    rows = [{"run": SHAPES[row["shape"]]["run"], "vocab": SHAPES[row["shape"]]["vocab"], **row} for row in drawn["rows"]]
    rows = measure_all(options.binary, {**drawn, "benchmark": "drawn_layouts", "rows": rows}, options.steps, options.json)
    report([row for row in rows if "measured_ms" in row])
    if any("failed" in row for row in rows):
        raise SystemExit("not all layouts could be measured")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("draw")
    first.add_argument("binary", help="moewright, of any build")
    first.add_argument("--ranks", type=int, default=8, help="GPUs: 2, 4 or 8")
    first.set_defaults(act=draw)
    second = commands.add_parser("measure")
    second.add_argument("binary", help="moewright, built for the GPUs")
    second.add_argument("drawn", help="what draw printed")
    second.add_argument("--steps", type=int, default=7, help="of each layout, of which three do not count")
    second.add_argument("--json")
    second.set_defaults(act=measure)
    options = parser.parse_args()
    options.act(options)


if __name__ == "__main__":
    main()
