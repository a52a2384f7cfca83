"""`moewright plan --calibrate`: a profile that meets the measured step of a run, written beside the old one; metrics of other
runs, and what is no metrics, are refused."""

import json
import os
import pathlib
import statistics
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _jobs import Checks, outputs, run, write_corpus, write_run_file  # noqa: E402

checks = Checks()
write_corpus("text")
write_run_file()
# A named transport: `auto` may be another one by the calibrated profile.
KEYS = ["train.steps=14", "train.seq_len=128", "model.width=64", "plan.platform=probed.json", "moe.transport=flat"]


def plan(*arguments):
    return run(1, "plan", "run.toml", *KEYS, *map(str, arguments))


def refused(label, code, texts, *arguments):
    result = plan(*arguments)
    for text in (*texts, "hint:"):
        checks.expect(result.code == code and text in result.output,
                      f"{label}: exit {result.code}, expected {code} and {text!r}", result.output)
    checks.expect(not pathlib.Path("refused.json").exists(), f"{label}: wrote a profile")


result = run(2, "probe", "-o", "probed.json", "--budget", "2s", "--threads", "1")
checks.expect(result.code == 0, "probe", result.output)

# After a run in each layout, the plan of that layout meets the median of its steps, and other numbers stay.
for ranks, layout in ((1, ["train.micro_batches=4"]), (2, ["mesh.ep=2"]), (2, ["mesh.pp=2", "train.micro_batches=4"])):
    name = f"run-{ranks}-{layout[0]}"
    result = run(ranks, "train", "run.toml", *KEYS, *outputs(name), *layout)
    checks.expect(result.code == 0 and "ms predicted" in result.output and "computing" in result.output, f"train {name}",
                  result.output)
    steps = [json.loads(line) for line in pathlib.Path(name, "metrics.jsonl").read_text().splitlines()]
    for step in steps:
        parts = step["measured_ms"]
        checks.expect(step["ranks"] == ranks and step["dtype"] == "fp32" and layout[0].split(".")[1] in step["layout"],
                      f"{name}: {step['ranks']} ranks, {step['layout']}")
        checks.expect(all(value >= 0 for value in parts.values()) and parts["compute"] > 0 and parts["optimizer"] > 0
                      and 0.99 < sum(parts.values()) / step["step_ms"] < 1.5, f"{name}: parts {parts} of {step['step_ms']}")
        checks.expect(0 < step["mfu"] < 2, f"{name}: mfu {step['mfu']}")
    median = statistics.median(step["step_ms"] for step in steps[3:])
    calibrated = f"{name}.json"
    result = plan(*layout, "--ranks", ranks, "--calibrate", f"{name}/metrics.jsonl", "-o", calibrated)
    checks.expect(result.code == 0 and f"wrote {calibrated}" in result.output and "rates of compute x" in result.output,
                  f"calibrate {name}: exit {result.code}", result.output)
    why = plan(*layout, "--ranks", ranks, "--why", "", "--json", f"plan.platform={calibrated}")
    predicted = 1e3 * json.loads(why.output)["step_s"] if why.code == 0 else 0
    checks.expect(abs(predicted / median - 1) < 1e-3, f"{name}: {predicted} ms planned, {median} ms measured", result.output)
    before, after = (json.loads(pathlib.Path(path).read_text()) for path in ("probed.json", calibrated))
    checks.expect(after["sources"][:-1] == before["sources"] and after["sources"][-1].startswith("calibrated on 11 steps of"),
                  f"{name}: sources {after['sources']}")
    for field in ("name", "memory_bytes", "peak_flops_per_s", "scratch_bytes", "libraries"):
        checks.expect(before[field] == after[field], f"{name}: {field} changed")
    checks.expect((before["levels"] == after["levels"]) == (ranks == 1) or "links as before" in result.output,
                  f"{name}: links", result.output)

# Nothing is overwritten unasked; without --ranks those of the metrics count.
METRICS = "run-2-mesh.ep=2/metrics.jsonl"
refused("an existing file", 2, ["run-1-train.micro_batches=4.json already exists", "--force"], "mesh.ep=2", "--calibrate", METRICS,
        "-o", "run-1-train.micro_batches=4.json")
refused("no output", 2, ["needs a file"], "mesh.ep=2", "--calibrate", METRICS)
result = plan("mesh.ep=2", "--calibrate", METRICS, "-o", "run-1-train.micro_batches=4.json", "--force")
checks.expect(result.code == 0, "--force", result.output)

# Steps of another run.
for label, arguments in (("layout", ["mesh.ep=1"]), ("recompute", ["mesh.ep=2", "memory.recompute=moe"]),
                         ("dtype", ["mesh.ep=2", "train.dtype=bf16"]), ("batch", ["mesh.ep=2", "train.global_batch=32"]),
                         ("model", ["mesh.ep=2", "model.experts=16", "model.top_k=3"]), ("ranks", ["--ranks", "1"])):
    refused(label, 3, ["is of another run"], *arguments, "--calibrate", METRICS, "-o", "refused.json")

# What is no metrics of a run.
lines = pathlib.Path(METRICS).read_text().splitlines(keepends=True)


def hostile(label, text, code, *texts):
    pathlib.Path("bad.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(label, code, texts, "mesh.ep=2", "--ranks", "2", "--calibrate", "bad.jsonl", "-o", "refused.json")


hostile("empty", "", 4, "has no step after the first 3")
hostile("the first steps only", "".join(lines[:3]), 4, "has no step after the first 3")
hostile("few steps", "".join(lines[:7]), 3, "has 4 measured steps of this run, expected at least 5")
hostile("broken in the middle", "".join(lines[:5]) + lines[5][:40] + "\n" + "".join(lines[6:]), 4, "bad.jsonl, line 6")
hostile("binary", bytes(range(256)) * 40, 4, "bad.jsonl")
hostile("a profile", pathlib.Path("probed.json").read_text(), 4, "bad.jsonl, line 4")
hostile("an older version", "".join(line.replace('"layout"', '"plan"') for line in lines), 4, '"layout" is missing or not a string')
for factor, text in ((1e-3, "of another machine"), (1e4, "of another machine"), (-1, '"step_ms" is -')):
    changed = [json.loads(line) for line in lines]
    for step in changed:
        step["step_ms"] *= factor
        step["measured_ms"] = {name: abs(ms * factor) for name, ms in step["measured_ms"].items()}
    hostile(f"times {factor}", "".join(json.dumps(step) + "\n" for step in changed), 4 if factor < 0 else 3, text)
changed = [json.loads(line) for line in lines]
for step in changed:
    step["step_ms"] = None
hostile("no times", "".join(json.dumps(step) + "\n" for step in changed), 4, '"step_ms" is missing or not a number')
refused("absent", 4, ["absent.jsonl"], "mesh.ep=2", "--calibrate", "absent.jsonl", "-o", "refused.json")
# A run that was killed while it wrote its last line.
pathlib.Path("killed.jsonl").write_text("".join(lines[:-1]) + lines[-1][:40])
result = plan("mesh.ep=2", "--calibrate", "killed.jsonl", "-o", "killed.json")
checks.expect(result.code == 0 and "10 steps of" in result.output, "a killed run", result.output)
checks.finish()
