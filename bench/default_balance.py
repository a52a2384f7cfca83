#!/usr/bin/env python3
"""Expert load of the default models: the fullest expert over the mean of its layer, after 100 steps, with three seeds.

bench/default_balance.py build/release/moewright --text /usr/include --json bench/results/default_balance.json
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 2.0
LAST = 10  # steps whose loads are added up


def worst_load(lines):
    """The largest ratio over MoE layers of the fullest expert to the mean, over the last steps."""
    steps = [json.loads(line) for line in lines]
    loads = [step["expert_load"] for step in steps if "expert_load" in step][-LAST:]
    worst = 0.0
    for layer in range(len(loads[0])):
        sums = [sum(step[layer][expert] for step in loads) for expert in range(len(loads[0][layer]))]
        worst = max(worst, max(sums) * len(sums) / sum(sums))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="moewright")
    parser.add_argument("--text", default="/usr/include", help="folder of text to train on")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", help="file to write")
    arguments = parser.parse_args()
    binary = str(pathlib.Path(arguments.binary).resolve())
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        default = pathlib.Path(scratch, "default.toml")
        subprocess.run([binary, "init", default], check=True, stdout=subprocess.DEVNULL)
        for name, run_file in [("init", default), ("examples/text.toml", SOURCE / "examples/text.toml"),
                               ("examples/demo.toml", SOURCE / "examples/demo.toml")]:
            for seed in arguments.seeds:
                metrics = pathlib.Path(scratch, f"{len(rows)}.jsonl")
                command = [binary, "train", run_file, f"data.path={arguments.text}", "data.suffixes=[\".h\", \"\"]",
                           f"train.steps={arguments.steps}", f"train.seed={seed}", "train.val_batches=0", "mesh.ep=1",
                           "train.byte_baseline=false", "checkpoint.dir=", "log.every=1", f"log.jsonl={metrics}",
                           "sample.tokens=0"]
                result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
                if result.returncode != 0:
                    sys.exit(result.stdout)
                rows.append({"model": name, "seed": seed, "steps": arguments.steps,
                             "fullest_over_mean": round(worst_load(metrics.read_text().splitlines()), 3),
                             "warnings": result.stdout.count("warning")})
                print(rows[-1], flush=True)
    commit = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"version": commit, "limit": LIMIT, "rows": rows}, indent=1) + "\n")
    sys.exit(any(row["fullest_over_mean"] >= LIMIT for row in rows))


if __name__ == "__main__":
    main()
