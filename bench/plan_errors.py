#!/usr/bin/env python3
"""Compares what `moewright plan` predicts with measured training steps: step time and bytes of tensors of each row of
bench/results/train_step_h200.json, but those that runs of today do otherwise ("outdated"). Groups of rows without
"logit_gradient_rows" were measured when each chunk of logits had its gradients multiplied by itself, those without
"split_masters" when master weights were kept whole beside those in bf16, those without "logit_elements" when chunks of
logits were smaller, those without "squares_when_stored" when the norm read all gradients, those without
"attention_backward" when cuDNN computed attention's backward pass, and are planned so.
Prints a table; --json FILE keeps it."""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUN = ROOT / "examples/bench/qwen3_30b_8_layers.toml"
CALIBRATION = {"one GPU", "ep 2", "pp 2, 1f1b, 16 micro-batches",  # the profile was fitted to these
               "ep 2, optimizer states on the host"}


def rows_of(results):
    """(name, ranks, overrides, step in ms, predicted bytes of tensors, bytes taken), then what was otherwise then, as
    fields of the profile"""
    smaller = {"logit_elements": 1 << 27, "squares_when_stored": False,
               "attention_backward": [[512, 150e12], [1024, 240e12], [2048, 320e12], [4096, 375e12], [16384, 400e12]]}
    then = {"logit_gradient_rows": None, "split_masters": False, **smaller}
    one = results["one_gpu"]["ours"]
    yield "one GPU", 1, [], one["step_ms"], one["mem_predicted_bytes"], one["mem_peak_bytes"], smaller
    four = results["four_gpus"]
    yield ("four GPUs, ep 4, 24 layers", 4, ["model.layers=24", "mesh.ep=4", "train.global_batch=16"],
           four[0]["step_ms"], four[0]["mem_predicted_bytes"], four[0]["mem_peak_bytes"], then)
    yield ("four GPUs, ep 4, 8 layers", 4, ["mesh.ep=4", "train.global_batch=16"],
           statistics.median(four[1]["step_ms"]), None, None, then)
    for shape, ranks, prefix in (("two_gpus_by_layout", 2, ""), ("offload_on_two_gpus", 2, ""),
                                 ("four_gpus_by_layout", 4, "24 layers, "), ("medium_on_four_gpus", 4, "Medium, "),
                                 ("one_gpu_by_batch", 1, "one GPU, ")):
        for row in results[shape]["rows"]:
            if "outdated" in row:
                continue
            fields = {field: results[shape].get(field, otherwise) for field, otherwise in then.items()}
            yield (prefix + row["layout"], ranks, row["overrides"], row["step_ms"], row["mem_predicted_bytes"],
                   row["mem_peak_bytes"], fields)


def predict(binary, profile, balance, ranks, overrides):
    command = [binary, "plan", RUN, "--platform", profile, "--ranks", str(ranks), "--json", "--why", "",
               f"plan.balance={balance}", *overrides]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", help="moewright, of any build")
    parser.add_argument("--profile", default=ROOT / "profiles/h200x8.json")
    parser.add_argument("--balance", default=1, help="plan.balance: random tokens and no balancing loss")
    parser.add_argument("--json")
    options = parser.parse_args()
    results = json.loads((ROOT / "bench/results/train_step_h200.json").read_text())
    known = json.loads(pathlib.Path(options.profile).read_text())
    table, errors = [], []
    print(f"{'layout':40} {'measured':>9} {'planned':>9} {'error':>7}   {'taken GiB':>9} {'planned':>8} {'error':>7}")
    for name, ranks, overrides, step_ms, tensors, taken, fields in rows_of(results):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as profile:
            as_measured = {**known, **fields}
            json.dump({field: value for field, value in as_measured.items() if value is not None}, profile)
            profile.flush()
            plan = predict(options.binary, profile.name, options.balance, ranks, overrides)
        error = 1e5 * plan["step_s"] / step_ms - 100
        row = {"layout": name, "ranks": ranks, "calibration": name in CALIBRATION, "measured_ms": step_ms,
               "planned_ms": 1e3 * plan["step_s"], "error_percent": error}
        memory = ""
        if taken:
            row.update(taken_bytes=taken, planned_bytes=plan["needed_bytes"],
                       memory_error_percent=100 * plan["needed_bytes"] / taken - 100)
            memory = (f"{taken / 2**30:9.2f} {plan['needed_bytes'] / 2**30:8.2f} {row['memory_error_percent']:+6.1f} %"
                      f"   tensors {(plan['needed_bytes'] - plan['stages'][0]['libraries'] - tensors) / 2**30:+.2f}")
        print(f"{name + (' *' if row['calibration'] else ''):40} {step_ms:9.1f} {row['planned_ms']:9.1f} {error:+6.1f} %"
              f"   {memory}")
        table.append(row)
        if not row["calibration"]:
            errors.append(abs(error))
    print(f"* used for calibration; the others: mean {statistics.mean(errors):.1f} %, worst {max(errors):.1f} %")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"benchmark": "plan_errors", "rows": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
