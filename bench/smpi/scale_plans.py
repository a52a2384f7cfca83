#!/usr/bin/env python3
"""Plans the papers' largest models on 1,024 GCDs of Frontier, with the exchange times of the simulation:

    bench/smpi/scale_plans.py build/release/moewright      # prints docs/scale.md's table, writes --json

A platform is profiles/frontier.json, where the way between nodes of one rack costs what simulated groups of ranks need
(bench/results/exchange_smpi.json), by the bytes that a rank sends.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NODE, RANKS, NO_LATENCY = 8, 1024, 1e-9
MODELS = ("x-moe-super", "piper-m10b-256")
TRANSPORTS = ("flat", "halo", "bypass")
GROUPS = {(128, 1), (64, 1), (32, 8), (16, 8), (8, 8)}  # ranks and distance of those that are simulated
# The fastest of all, and of those without a pipeline, whose expert-parallel groups span nodes, as X-MoE's do; these are
# neighbours, as in the simulation.
LAYOUTS = {"any": lambda layout: True,
           "no pipeline": lambda layout: layout["pp"] == "1" and 64 <= int(layout["ep"]) <= 256 and "placement" not in layout}



def simulated(platform):
    """The profile, and the groups that its rack level gets."""
    profile = json.loads((ROOT / "profiles/frontier.json").read_text())
    if platform == "profile":
        return profile
    rows = json.loads((ROOT / "bench/results/exchange_smpi.json").read_text())
    groups = {}
    for row in rows:
        shape = (row["ep"], row["stride"])
        if row["platform"] == platform and row["ranks"] == 256 and row["transport"] == "flat" and shape in GROUPS \
                and row["kib_per_pair"] >= 64 and row["zipf"] is None and not row["forward"]:
            near = NODE if row["stride"] == 1 else 1
            sent = row["tokens"] * row["top_k"] * row["row_bytes"] * (row["ep"] - near) / row["ep"]
            groups.setdefault(shape, []).append([sent, sent / (row["rows_us"] * 1e-6)])
    rack = profile["levels"][1]
    rack["groups"] = [{"ranks": ranks, "stride": stride, "all_to_all": [NO_LATENCY, sorted(rates)], "ring": rack["ring"]}
                      for (ranks, stride), rates in sorted(groups.items())]
    profile["name"] += f", exchanges between nodes simulated ({platform})"
    return profile


def plan(program, folder, model, profile, transport, *options):
    run, platform = folder / "run.toml", folder / "profile.json"
    run.write_text(f'[model]\npreset = "{model}"\n[train]\nseq_len = 4096\nglobal_batch = 1024\n'
                   f'[plan]\nplatform = "{platform}"\nranks = {RANKS}\n')
    platform.write_text(json.dumps(profile))
    done = subprocess.run([program, "plan", run, *options, f"moe.transport={transport}"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout


def best(program, folder, model, profile, transport):
    """By name of LAYOUTS, the estimate of the fastest layout that fits."""
    lines = [line.split("\t") for line in plan(program, folder, model, profile, transport, "--list-all").splitlines()]
    found = {}
    for name, wanted in LAYOUTS.items():
        fitting = [words for seconds, size, fit, words in lines
                   if fit == "fits" and wanted(dict(word.split("=") for word in words.split()))]
        if fitting:
            found[name] = json.loads(plan(program, folder, model, profile, transport, "--json", "--why", fitting[0]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--links", nargs="+", default=["profile", "frontier_ideal", "dragonfly"])
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "bench/results/scale_plans.json")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as name:
        for links in args.links:
            profile = simulated(links)
            for model in MODELS:
                for transport in TRANSPORTS:
                    for layouts, estimate in best(args.program, pathlib.Path(name), model, profile, transport).items():
                        row = {"links": links, "model": model, "transport": transport, "layouts": layouts}
                        row |= {key: estimate[key] for key in ("layout", "step_s", "compute_s", "exchange_s", "bubble_s",
                                                               "tflops_per_rank", "mfu")}
                        results.append(row)
                        print(json.dumps(row), flush=True)
    args.json.write_text("[\n" + ",\n".join(json.dumps(row) for row in results) + "\n]\n")


if __name__ == "__main__":
    main()
