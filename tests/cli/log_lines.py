"""Lines on stdout have at most 120 columns, in header, steps, validation and end; log.format = "long" breaks none."""

import os
import pathlib
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import BIN, Checks, command, outputs, write_corpus, write_run_file  # noqa: E402
import subprocess  # noqa: E402

checks = Checks()
write_corpus("text")
write_run_file()


def train(ranks, *overrides):
    done = subprocess.run(command(ranks, ["train", "run.toml", "train.steps=4", *overrides]), capture_output=True, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, timeout=300)
    checks.expect(done.returncode == 0, f"train {overrides}: exit {done.returncode}", done.stdout + done.stderr)
    return done.stdout.splitlines()


long_runs = (
    (1, [*outputs("run"), "train.val_batches=1", "train.val_every=2", "train.byte_baseline=true", "checkpoint.every=2"]),
    (1, [*outputs("run"), "train.val_batches=1", "checkpoint.resume=auto", "train.steps=6", "train.lr=1e-2", "train.seed=5",
         "moe.z_loss_coef=0.01", "train.weight_decay=0.2", "data.val_fraction=0.3"]),
    (2, ["mesh.ep=2", "moe.row_headroom=1", "train.dtype=bf16", 'data.blend=["0.7 text", "0.3 text"]', "data.path="]),
    (1, ["--profile", "moe.transport=padded", "moe.capacity_factor=1", "sample.tokens=5"]),
)
for ranks, overrides in long_runs:
    for line in train(ranks, *overrides):
        checks.expect(len(line) <= 120, f"{overrides}: {len(line)} columns: {line}")
lines = train(1, "log.format=long")
steps = [line for line in lines if line.startswith("step ")]
checks.expect(len(steps) == 4 and all("TF/s per rank" in line and " aux " in line for line in steps), f"long: {steps}")
checks.expect(any(len(line) > 120 for line in lines), "long: lines are broken", "\n".join(lines))
steps = [line for line in train(1) if line.startswith("step ")]
checks.expect(len(steps) == 4 and all(word in steps[-1] for word in (" loss ", " bpb ", " gnorm ", " lr ", " ms ", " tok/s", " bal ", " mem ")),
              f"short: {steps}")
checks.finish()
