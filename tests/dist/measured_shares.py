"""Shares by measured speeds: a slow rank gets less, at the start and when it becomes slow; a resumed run keeps its shares; and
the numbers are those of equal shares to rounding."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import SOURCE, Checks, largest_difference, outputs, read_metrics, run, unwrapped, write_corpus, write_run_file  # noqa: E402

checks = Checks()
write_corpus("text")
RUN = write_run_file()
KEYS = ["mesh.ep=2", "train.schedule=constant", "train.micro_batches=1", "model.expert_width=64", "log.every=1000"]
MEASURED = "mesh.shares=measured"


def train(name, *overrides):
    result = run(2, "train", RUN, *outputs(name), *KEYS, *overrides)
    checks.expect(result.code == 0, f"{name} {overrides}: exit {result.code}", result.output)
    print(f"{result.seconds:5.1f} s  {name}: {' '.join(overrides)}", flush=True)
    return unwrapped(result.output)


def shares_in(output, key="mesh.shares", what="by"):
    """Those that the start lines tell."""
    found = re.search(rf'{re.escape(key)} = "measured": ([\d,]+), {what}', output)
    return tuple(map(int, found[1].split(","))) if checks.expect(found, f"no line tells {key}", output) else (0, 0)


train("equal", "moe.transport=gather_weights", "mesh.shares=")
for transport, width in (("gather_weights", []), ("gather_tokens", ["mesh.width_shares=measured"]), ("flat", [])):
    output = train(transport, MEASURED, f"moe.transport={transport}", "debug.slow=1:0.02", "train.steps=6", *width)
    shares = shares_in(output)
    checks.expect(sum(shares) == 16 and shares[0] > 10, f"{transport}: shares {shares} with a rank of a fiftieth of the speed")
    if width:
        widths = shares_in(output, "mesh.width_shares")
        checks.expect(widths[0] > widths[1], f"{transport}: the width is shared {widths}")
    output = train(transport, MEASURED, f"moe.transport={transport}", "checkpoint.resume=auto", *width)
    checks.expect(shares_in(output, what="as in the checkpoint") == shares, f"{transport}: other shares after a resume", output)
    checks.expect("mesh.shares:" not in output, f"{transport}: the resumed run takes its shares for changed", output)
    difference = largest_difference(read_metrics("equal"), read_metrics(transport))
    checks.expect(difference < 1e-5, f"{transport}: differs from equal shares by {difference}")

# Experts of ranks and layers of stages.
for key, total, keys in (("mesh.expert_shares", 8, ["mesh.ep=2", "moe.transport=flat"]),
                         ("mesh.stage_layers", 3, ["mesh.ep=1", "mesh.pp=2"])):
    output = train(key, f"{key}=measured", "debug.slow=1:0.02", "train.steps=6", *keys)
    shares = shares_in(output, key)
    checks.expect(sum(shares) == total and shares[0] > shares[1], f"{key}: {shares} with a rank of a fiftieth of the speed")
    output = train(key, f"{key}=measured", "checkpoint.resume=auto", *keys)
    checks.expect(shares_in(output, key, "as in the checkpoint") == shares, f"{key}: other shares after a resume", output)
    difference = largest_difference(read_metrics("equal"), read_metrics(key))
    checks.expect(difference < 1e-5, f"{key}: differs from equal shares by {difference}")

# Rank 1 becomes ten times slower after step 100. Of four samples only such a change moves one.
output = train("drift", MEASURED, "moe.transport=gather_weights", "mesh.adapt_every=10", "debug.slow=1:0.1@101", "train.steps=165",
               "train.global_batch=4", f"plan.platform={SOURCE}/profiles/xeon_amx_2_cores.json")
checks.expect("no time is predicted" not in output, "a profile that does not hold for the measured shares", output)
changes = [(0, shares_in(output)[0])]
changes += [(int(step), int(share)) for step, share in
            re.findall(r'step (\d+): mesh.shares = "measured": (\d+),\d+ in place of', output)]
print(f"         samples of rank 0 after steps: {changes}")
checks.expect([share for step, share in changes if step <= 160][-1] == 3, "not shared again by step 160", output)
checks.finish()
