"""A run with a batch-size ramp computes what runs with batches of these sizes do that continue each other: bit for bit in
the same layout, to rounding in any other; and `verify` compares its steps."""

import os
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, largest_difference, outputs, read_metrics, run, same_bits, write_corpus, write_run_file  # noqa: E402

checks = Checks()
write_corpus("text")
RUN = write_run_file()
STEPS = 7
SAMPLES = {1: 4, 2: 4, 3: 12, 4: 12, 5: 16, 6: 16, 7: 16}
RAMP = ["train.micro_batches=4", 'train.batch_ramp=["2 4", "4 12"]']


def train(name, ranks, *overrides):
    result = run(ranks, "train", RUN, *outputs(name), f"train.steps={STEPS}", "train.schedule=constant", *overrides)
    checks.expect(result.code == 0, f"{name} -np {ranks} {overrides}: exit {result.code}", result.output)
    print(f"{result.seconds:5.1f} s  {name}: -np {ranks} {' '.join(overrides)}", flush=True)
    return result.output


# In one run, and in three that continue each other, with the batch and the number of micro-batches of their steps.
for name, ranks, overrides in [
    ("one", 1, []),
    ("pipeline", 2, ["mesh.pp=2", "mesh.schedule=zb_v", "model.layers=4"]),
    ("weights", 2, ["mesh.ep=2", "moe.transport=gather_weights", "train.dtype=bf16", "mesh.zero=1"]),
]:
    output = train(name, ranks, *overrides, *RAMP)
    checks.expect("step 3: the global batch is 12 samples from here on" in output, f"{name}: no word of step 3", output)
    got = read_metrics(name)
    samples = {step: int(line["samples"]) for step, line in got.items()}
    checks.expect(samples == SAMPLES, f"{name}: samples {samples}")
    for last, batch, seen in [(2, 4, None), (4, 12, "sees 32 samples in all, 0.667 of the epochs"),
                              (STEPS, 16, "sees 80 samples in all, 0.714 of the epochs")]:
        output = train(f"{name}-parts", ranks, *overrides, f"train.global_batch={batch}",
                       f"train.micro_batches={batch // 4}", f"train.steps={last}", "checkpoint.resume=auto")
        said = seen in " ".join(output.split()) if seen else "samples in all" not in output
        checks.expect(said, f"{name}: of samples before, until step {last}", output)
    same_bits(checks, name, read_metrics(f"{name}-parts"), got)

# The first step has fewer micro-batches than there are stages; ranks with unequal shares; a resume within the ramp.
for name, ranks, overrides in [
    ("stages", 3, ["mesh.pp=3"]),
    ("shares", 4, ["mesh.ep=2", "mesh.tp=2", 'mesh.shares="3,1"']),
    ("recompute", 2, ["mesh.ep=2", "memory.recompute=full"]),
]:
    train(name, ranks, *overrides, *RAMP, "train.steps=3")
    output = train(name, ranks, *overrides, *RAMP, "checkpoint.resume=auto")
    checks.expect("samples in all" not in output, f"{name}: the same ramp is taken for another", output)
    difference = largest_difference(read_metrics("one"), read_metrics(name))
    print(f"         {name}: largest relative difference {difference:.1e}")
    checks.expect(len(read_metrics(name)) == STEPS and difference < 1e-5, f"{name}: differs by {difference:.1e}")

result = run(2, "verify", RUN, *RAMP, "mesh.pp=2", "verify.steps=3")
checks.expect(result.code == 0 and "verify: passed" in result.output.lower(), f"verify: exit {result.code}", result.output)

result = run(1, "train", RUN, "train.micro_batches=2", 'train.batch_ramp=["2 4"]')
checks.expect(result.code == 3 and "set 8 samples, or raise train.micro_batches" in result.output,
              f"a batch that micro-batches do not divide: exit {result.code}", result.output)
checks.finish()
