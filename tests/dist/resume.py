"""A run that was stopped and resumed computes what an uninterrupted one does: bit for bit in the same layout, to
rounding in any other."""

import os
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import (EVEN, Checks, checkpoints, largest_difference, outputs, read_metrics, run, same_bits,  # noqa: E402
                   write_corpus, write_run_file)

checks = Checks()
write_corpus("text")
RUN = write_run_file()
CONSTANT = "train.schedule=constant"  # the length of the run does not enter the learning rate


def train(name, ranks, *overrides):
    result = run(ranks, "train", RUN, *outputs(name), CONSTANT, *overrides)
    checks.expect(result.code == 0, f"{name} -np {ranks} {overrides}: exit {result.code}", result.output)
    print(f"{result.seconds:5.1f} s  {name}: -np {ranks} {' '.join(overrides)}", flush=True)
    return result.output


# Same layout: 12 steps at once against 6 + 6.
for name, ranks, overrides in [
    ("fp32", 2, ["mesh.ep=2"]),
    ("bf16", 2, ["mesh.ep=2", "train.dtype=bf16"]),
    ("chunks", 4, ["mesh.ep=2", "mesh.placement=dp_first", "moe.row_chunks=3", "model.score=sigmoid",
                   "model.selection_bias=true", "moe.capacity_factor=1.25"]),
    ("alone", 1, ["train.dtype=bf16"]),
    ("even", 2, ["mesh.ep=2", *EVEN]),
    ("even-cut", 2, ["mesh.zero=1", *EVEN]),
    ("moments", 2, ["mesh.zero=1", "train.dtype=bf16", "memory.moments=bf16"]),
    ("muon", 2, ["mesh.ep=2", "train.optimizer=muon"]),
    ("muon-cut", 4, ["mesh.tp=2", "mesh.zero=1", "train.optimizer=muon", "train.dtype=bf16", "memory.moments=bf16"]),
    ("ramp", 2, ["mesh.pp=2", 'train.batch_ramp=["8 8"]']),
    ("spikes", 2, ["mesh.ep=2", "train.lr=1e-4", "train.skip_spikes=0.5", "train.spike_window=6"]),
]:
    train(f"{name}-whole", ranks, *overrides)
    train(f"{name}-parts", ranks, *overrides, "train.steps=6")
    output = train(f"{name}-parts", ranks, *overrides, "checkpoint.resume=auto")
    checks.expect("after step 6" in output, f"{name}: did not resume after step 6", output)
    same_bits(checks, name, read_metrics(f"{name}-whole"), read_metrics(f"{name}-parts"))
    checks.expect(checkpoints(f"{name}-parts") == [6, 12], f"{name}: checkpoints {checkpoints(f'{name}-parts')}")

# What is skipped after the stop follows from steps before it.
skipped = [[int(line.get("skipped_steps", 0)) for line in read_metrics(f"spikes-{part}").values()]
           for part in ("whole", "parts")]
checks.expect(0 < skipped[0][-1] < 9 and skipped[0] == skipped[1], f"skipped steps {skipped}")

# Muon keeps one moment where AdamW keeps two.
refused = run(2, "train", RUN, *outputs("muon-parts"), "mesh.ep=2", "train.steps=13", "checkpoint.resume=auto")
checks.expect(refused.code == 5 and 'train.optimizer was "muon" in the checkpoint' in refused.output,
              f"AdamW from Muon's checkpoint: exit {refused.code}", refused.output)

# Other layouts, from the checkpoint of two ranks after step 6.
FROM = "checkpoint.resume=fp32-parts/checkpoints/step-00000006"
for name, ranks, overrides in [
    ("one process", 1, []),
    ("more replicas", 4, ["mesh.ep=2"]),
    ("more expert-parallel", 4, ["mesh.ep=4", "moe.transport=padded"]),
    ("dp first", 4, ["mesh.ep=2", "mesh.placement=dp_first"]),
]:
    folder = name.replace(" ", "-")
    train(folder, ranks, *overrides, FROM)
    got, whole = read_metrics(folder), read_metrics("fp32-whole")
    checks.expect(sorted(got) == list(range(7, 13)), f"{name}: steps {sorted(got)}")
    difference = largest_difference(whole, got, ["loss"])
    print(f"         {name}: largest relative difference of the loss {difference:.1e}")
    checks.expect(difference < 1e-5, f"{name}: losses differ by {difference:.1e}, more than 1e-5")

# What is computed again has the bits of what was kept.
for mode in ["moe", "full"]:
    train(mode, 2, "mesh.ep=2", f"memory.recompute={mode}", FROM)
    kept = {step: line for step, line in read_metrics("fp32-whole").items() if step > 6}
    same_bits(checks, f"memory.recompute={mode}", kept, read_metrics(mode))

# The newest complete checkpoints stay.
train("kept", 2, "mesh.ep=2", "checkpoint.every=2", "checkpoint.keep=2")
checks.expect(checkpoints("kept", complete=False) == [10, 12], f"keep=2 left {checkpoints('kept', complete=False)}")

# A finished run that is resumed has nothing to do, and says so without an error.
before = read_metrics("kept")
output = train("kept", 2, "mesh.ep=2", "checkpoint.resume=auto", "log.trace=kept/trace.json")
checks.expect("no trace is written" in output and not os.path.exists("kept/trace.json"), "a trace of no step", output)
same_bits(checks, "a finished run", before, read_metrics("kept"))
checks.finish()
