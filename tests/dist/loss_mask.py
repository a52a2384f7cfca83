"""A loss mask beside token files: the loss is the mean over the tokens that count, over all ranks and micro-batches, also
where a micro-batch has none. Two masks that share the tokens between them add up to the loss of all."""

import os
import pathlib
import random
import struct
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _jobs import Checks, largest_difference, outputs, read_metrics, run, write_run_file  # noqa: E402

checks = Checks()
SAMPLES, LENGTH = 16, 32  # of one step, which reads all of them


def write_tokens(prefix, counts, lengths=(SAMPLES * LENGTH + 1,)):
    """A Megatron dataset of random bytes in documents of these lengths; counts(i): whether token i counts, None: there is
    no mask."""
    n, tokens = len(lengths), random.Random(5).randbytes(sum(lengths))
    offsets = [sum(lengths[:i]) for i in range(n)]
    pathlib.Path(prefix + ".bin").write_bytes(tokens)
    pathlib.Path(prefix + ".idx").write_bytes(b"MMIDIDX\0\0" + struct.pack(
        f"<QBQQ{n}i{n}q{n + 1}q", 1, 1, n, n + 1, *lengths, *offsets, *range(n + 1)))
    if counts:
        pathlib.Path(prefix + ".mask").write_bytes(bytes(bool(counts(i)) for i in range(len(tokens))))


def few(i):
    return 0 < i <= 40 or 100 < i < 110  # in three samples at most, so that most micro-batches have none


write_run_file()
write_tokens("all", None)
write_tokens("few", few)
write_tokens("rest", lambda i: not few(i))
write_tokens("none", lambda i: False)
# The auxiliary loss, which counts all tokens, is one of micro-batches.
COMMON = ["data.kind=megatron", "train.dtype=fp32", "train.steps=3", "train.val_batches=1", "moe.aux_loss_coef=0"]


def train(name, data, ranks, *overrides):
    settings = [*COMMON, f"data.path={data}", f"data.val_path={data}", *outputs(name), *overrides]
    result = run(ranks, "train", "run.toml", *settings)
    checks.expect(result.code == 0, f"{name}: exit {result.code}", result.output)
    found = [word for line in result.output.splitlines() if line.startswith("validation after step 3") for word in line.split()]
    return float(found[5]) if found else 0, int(found[7]) if found else 0


def steps(name):
    return {step: entry for step, entry in read_metrics(name).items() if step < 3}  # the last one is that of validation


def labels_and_loss(name):
    step = steps(name).get(1, {"valid_labels": "0", "loss": "0"})
    return int(step["valid_labels"]), float(step["loss"])


expected = [train(data, data, 1, "train.micro_batches=1") for data in ("all", "few", "rest")][1]
(n, loss), (n_few, loss_few), (n_rest, loss_rest) = map(labels_and_loss, ("all", "few", "rest"))
checks.expect((n, n_few, n_rest) == (512, 49, 463), f"labels: {n}, {n_few}, {n_rest}")
checks.expect(abs(loss_few * n_few + loss_rest * n_rest - loss * n) < 1e-5 * loss * n,
              f"{loss_few} x {n_few} + {loss_rest} x {n_rest} is not {loss} x {n}")

checks.expect(expected[1] == 49, f"validation counts {expected[1]} labels")
result = run(1, "train", "run.toml", *COMMON, "data.path=all", "data.val_path=none", *outputs("unlabelled"))
checks.expect(result.code == 0 and "validation after step 3: no loss: none of the labels counts" in result.output,
              f"validation without labels: exit {result.code}", result.output)
for name, ranks, *overrides in (("micro", 1, "train.micro_batches=8"), ("dp", 2, "train.micro_batches=8"),
                                ("ep", 2, "mesh.ep=2", "train.micro_batches=4"), ("tp", 2, "mesh.tp=2", "train.micro_batches=4"),
                                ("pp", 2, "mesh.pp=2", "train.micro_batches=8", "mesh.zero=0")):
    found = train(name, "few", ranks, *overrides)
    difference = largest_difference(steps("few"), steps(name), ("loss", "grad_norm", "valid_labels"))
    checks.expect(difference < 1e-5, f"{name}: differs by {difference}")
    checks.expect(abs(found[0] - expected[0]) < 2e-4 and found[1] == 49, f"{name}: validation {found}, expected {expected}")

for said, data, *overrides in ((True, "few"), (False, "few", "data.document_mask=true"), (False, "all")):
    result = run(1, "train", "run.toml", *COMMON, f"data.path={data}", "train.val_batches=0", "train.steps=1", *overrides)
    checks.expect(result.code == 0 and ("conversations of a sample see those before them" in result.output) == said,
                  f"{data} {overrides}: the note", result.output)

for said, data, *overrides in ((True, "few"), (False, "few", "data.whole_documents=true"), (False, "all")):
    result = run(1, "train", "run.toml", *COMMON, f"data.path={data}", "train.val_batches=0", "train.steps=1", *overrides)
    checks.expect(result.code == 0 and ("conversations are cut where a sample ends" in result.output) == said,
                  f"{data} {overrides}: the note on cuts", result.output)

# Whole documents, in every layout: each of their tokens but the last of each is a label, once an epoch.
lengths = [5, 20, 31, 32, 1, 10, 32, 14, 27, 16, 8, 30, 12, 16, 2]  # they fill 8 samples
write_tokens("whole", None, lengths)
WHOLE = ["data.whole_documents=true", "data.document_mask=true"]
train("whole", "whole", 1, *WHOLE, "train.micro_batches=1")
first = steps("whole").get(1, {"valid_labels": "0"})
checks.expect(int(first["valid_labels"]) == 2 * (sum(lengths) - len(lengths)), f"whole: {first['valid_labels']} labels")
for name, ranks, *overrides in (("whole_ep", 2, "mesh.ep=2", "train.micro_batches=4"), ("whole_pp", 2, "mesh.pp=2", "train.micro_batches=4", "mesh.zero=0")):
    train(name, "whole", ranks, *WHOLE, *overrides)
    difference = largest_difference(steps("whole"), steps(name), ("loss", "grad_norm", "valid_labels"))
    checks.expect(difference < 1e-5, f"{name}: differs by {difference}")

result = run(1, "train", "run.toml", *COMMON, "data.path=none", "train.val_batches=0")
checks.expect(result.code == 4 and all(part in result.output for part in ("no label of this step is valid", "train.global_batch",
                                                                          "(.mask)")), f"none: exit {result.code}", result.output)
checks.finish()
