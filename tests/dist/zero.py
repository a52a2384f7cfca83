"""ZeRO cuts optimizer states over replicas and changes nothing else: the same weights and moments, to the bit where sums
have one order (two replicas), from checkpoints of any layout; and memory as the table of bytes says."""

import json
import math
import os
import pathlib
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import (EVEN, SMALL, SOURCE, Checks, largest_difference, outputs, read_metrics, run, same_bits,  # noqa: E402
                   write_corpus, write_run_file)

checks = Checks()
write_corpus("text")
RUN = write_run_file()
# Without clipping, the rounding of the norm does not enter the weights.
COMMON = ["train.schedule=constant", "train.clip=0"]
UNIT = {"B": 1, "KiB": 2**10, "MiB": 2**20}


def train(name, ranks, *overrides, file=RUN):
    result = run(ranks, "train", file, *outputs(name), *COMMON, *overrides)
    checks.expect(result.code == 0, f"{name} -np {ranks} {overrides}: exit {result.code}", result.output)
    checks.expect("equal to the byte on every rank" in result.output, f"{name}: arenas and table differ", result.output)
    print(f"{result.seconds:5.1f} s  {name}: -np {ranks} {' '.join(overrides)}", flush=True)
    return result.output


def states(name, step):
    """The bytes of every tensor of a checkpoint, put together from its slices; none of them is cut along another axis
    than the first."""
    folder = pathlib.Path(name, "checkpoints", f"step-{step:08}")
    index, files, tensors = json.loads((folder / "index.json").read_text()), {}, {}
    for s in index["slices"]:
        if s["file"] not in files:
            data = (folder / s["file"]).read_bytes()
            length = int.from_bytes(data[:8], "little")
            files[s["file"]] = (json.loads(data[8:8 + length]), data[8 + length:])
        header, data = files[s["file"]]
        begin, end = header[s["key"]]["data_offsets"]
        entry = 1
        for extent in index["tensors"][s["tensor"]][1:]:
            entry *= extent
        at = s["begin"] * entry + s["first"]
        tensors.setdefault(s["tensor"], []).append((at, data[begin:end]))
    return {tensor: b"".join(data for _, data in sorted(parts)) for tensor, parts in tensors.items()}


def same_states(label, a, b, step=12):
    left, right = states(a, step), states(b, step)
    differ = [name for name in left if left[name] != right.get(name)]
    checks.expect(sorted(left) == sorted(right) and not differ, f"{label}: {len(differ)} tensors differ, {differ[:3]}")
    curves = [[(n, entry.get("loss")) for n, entry in read_metrics(name).items()] for name in (a, b)]
    checks.expect(curves[0] == curves[1] and curves[0], f"{label}: losses differ")


def optimizer_bytes(output):
    found = re.search(r"memory per rank: .*?optimizer\s+([\d.]+)\s+(B|KiB|MiB)", output, re.S)
    return float(found[1]) * UNIT[found[2]]


moments = {}
MUON = ["train.optimizer=muon", "train.muon_router=true"]
# Two replicas: a sum of two has one order. Experts too: two replicas of each, or one.
for name, overrides in [
    ("fp32", []),
    ("bf16", ["train.dtype=bf16"]),
    ("tied", ["train.dtype=bf16", "model.tie_embeddings=true", "model.width=28", "model.heads=2"]),
    ("tied-even", ["model.tie_embeddings=true", *EVEN]),
    ("ep", ["mesh.ep=2", "train.dtype=bf16"]),
    ("muon", MUON),
]:
    whole = train(f"{name}-0", 2, *overrides)
    cut = train(f"{name}-1", 2, *overrides, "mesh.zero=1")
    same_states(name, f"{name}-0", f"{name}-1")
    kept = optimizer_bytes(cut) / optimizer_bytes(whole)
    checks.expect(kept < (0.9 if "mesh.ep=2" in overrides else 0.52), f"{name}: {kept:.2f} of the moments stay")
    moments[name] = optimizer_bytes(whole)

# Muon has one moment of what it updates.
shapes = json.loads(pathlib.Path("muon-0/checkpoints/step-00000012/index.json").read_text())["tensors"]
by_muon = sum(math.prod(shape) for tensor, shape in shapes.items()
              if tensor.startswith("adam_m.") and "adam_v." + tensor[7:] not in shapes)
saved = moments["fp32"] - moments["muon"]
checks.expect(by_muon > 0 and abs(saved / (4 * by_muon) - 1) < 0.01, f"Muon saves {saved} bytes of {by_muon} elements")

# Tied embeddings that two stages hold stand in a checkpoint once.
TIED = ["model.tie_embeddings=true", "mesh.pp=2"]
for zero in (0, 1):
    train(f"ends-{zero}", 4, *TIED, f"mesh.zero={zero}")
same_states("ends", "ends-0", "ends-1")
train("ends-back", 2, TIED[0], "train.steps=13", "checkpoint.resume=ends-1/checkpoints/step-00000012")

# A Hugging Face folder is read into what each rank holds; validation and sampling see whole weights.
head, rest = SMALL.split("[data]")
HF = write_run_file("hf.toml", f'model = "hf:{SOURCE / "tests" / "golden" / "models" / "qwen3_moe"}"\n[data]{rest}')
ENDS = ["train.dtype=bf16", "train.val_batches=2", "train.steps=4", "sample.tokens=16", "sample.prompt=abc"]
said = [train(f"hf-{zero}", 2, *ENDS, f"mesh.zero={zero}", file=HF) for zero in (0, 1)]
same_states("hf", "hf-0", "hf-1", step=4)
ends = [text[text.index("validation after step 4"):] for text in said]
checks.expect(ends[0] == ends[1], "validation and sample differ", "".join(ends))

# Stopped and resumed in the same layout; 2 x 2 replicas.
SPREAD = ["mesh.ep=2", "mesh.zero=1", "model.experts=7", "model.selection_bias=true", "model.score=sigmoid"]
for dtype in ("fp32", "bf16"):
    train(f"whole-{dtype}", 4, *SPREAD, f"train.dtype={dtype}")
    train(f"parts-{dtype}", 4, *SPREAD, f"train.dtype={dtype}", "train.steps=6")
    train(f"parts-{dtype}", 4, *SPREAD, f"train.dtype={dtype}", "checkpoint.resume=auto")
    same_bits(checks, dtype, read_metrics(f"whole-{dtype}"), read_metrics(f"parts-{dtype}"))

# Into other layouts: with and without ZeRO they go on alike.
MODEL = SPREAD[2:]
FROM = "checkpoint.resume=parts-fp32/checkpoints/step-00000006"
train("to-0", 2, *MODEL, FROM)
train("to-1", 2, *MODEL, FROM, "mesh.zero=1")
same_states("from four ranks with ZeRO", "to-0", "to-1")
for name, ranks, overrides in [("to-one", 1, []), ("to-eight", 8, ["mesh.ep=4", "mesh.zero=1"]),
                               ("to-stages", 8, ["mesh.pp=2", "mesh.ep=2", "mesh.zero=1"]),
                               ("to-dp-first", 4, ["mesh.ep=2", "mesh.placement=dp_first", "mesh.zero=1"])]:
    train(name, ranks, *MODEL, FROM, *overrides)
for name in ("to-0", "to-one", "to-eight", "to-stages", "to-dp-first"):
    difference = largest_difference(read_metrics("whole-fp32"), read_metrics(name), ["loss"])
    checks.expect(difference < 1e-5, f"{name}: losses differ by {difference:.1e}")
train("back-0", 2, *MODEL, "train.steps=6")
BACK = "checkpoint.resume=back-0/checkpoints/step-00000006"
train("back-2", 2, *MODEL, BACK)
train("back-4", 4, *MODEL, BACK, "mesh.zero=1")
difference = largest_difference(read_metrics("back-2"), read_metrics("back-4"), ["loss"])
checks.expect(difference < 1e-5, f"from two ranks without ZeRO: losses differ by {difference:.1e}")
checks.finish()
