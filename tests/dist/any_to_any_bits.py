"""A checkpoint that other layouts write again, one after the other without a step between, keeps its tensors to the
bit: weights and both moments, put together from the slices of each."""

import json
import math
import os
import pathlib
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import EVEN, Checks, gpus, outputs, run, write_corpus, write_run_file  # noqa: E402

SIZES = {"F32": 4, "BF16": 2}
LATENT = ("model.attention=latent model.kv_heads=0 model.head_dim=0 model.qk_norm=none model.q_rank=20 "
          "model.kv_rank=12 model.nope_dim=6 model.rope_dim=4 model.value_dim=5")
CHAINS = {  # kind of model: overrides, then layouts, of which the first trains
    "grouped": ("", [
        (8, "mesh.pp=2 mesh.ep=2 mesh.zero=1"),
        (8, "mesh.pp=2 mesh.tp=2 mesh.ep=2 moe.tp_mode=ted mesh.schedule=zb_h1"),
        (8, "mesh.pp=2 mesh.tp=2 mesh.ep=4 mesh.zero=1 mesh.schedule=zb_v"),
        (1, ""),
        (8, "mesh.pp=4 mesh.tp=2 moe.tp_mode=ted mesh.zero=1"),
        (4, "mesh.ep=2 mesh.placement=dp_first mesh.zero=1")]),
    "latent": (f"{LATENT} model.score=sigmoid model.selection_bias=true moe.bias_rate=0.01", [
        (4, "mesh.tp=2 mesh.ep=4 mesh.zero=1"),
        (8, "mesh.pp=2 mesh.tp=4 mesh.ep=2"),
        (4, "mesh.pp=2 mesh.tp=2 moe.tp_mode=ted mesh.zero=1 mesh.schedule=interleaved"),
        (2, "mesh.pp=2 mesh.stage_layers=1,3")]),
    "tied, uneven": ("model.tie_embeddings=true model.vocab=259 model.heads=6 model.head_dim=8 model.experts=9", [
        (4, "mesh.pp=4"),
        (8, "mesh.pp=2 mesh.tp=4 mesh.zero=1"),
        (8, "mesh.tp=4 mesh.ep=8 mesh.zero=1"),
        (8, "mesh.tp=2 mesh.ep=2 moe.tp_mode=ted mesh.zero=1 mesh.placement=dp_first"),
        (1, "")]),
    "bf16": (" ".join([*EVEN, "memory.moments=bf16"]), [
        (8, "mesh.pp=2 mesh.tp=2 mesh.ep=2 mesh.zero=1"),
        (4, "mesh.tp=4 moe.tp_mode=ted"),
        (4, "mesh.ep=4 mesh.zero=1 memory.expert_gradients=bf16"),
        (2, "mesh.pp=2 mesh.schedule=zb_v")]),
}
if gpus():
    CHAINS["offload"] = (CHAINS["bf16"][0], [(2, "mesh.ep=2 memory.offload=optimizer"), (2, "mesh.zero=1"),
                                             (1, "memory.offload=optimizer")])
    possible = max(2, gpus())  # two ranks may share one GPU
    CHAINS = {kind: (model, layouts) for kind, (model, layouts) in CHAINS.items()
              if max(ranks for ranks, _ in layouts) <= possible}

checks = Checks()
write_corpus("text")
RUN = write_run_file()
STEPS = ["model.layers=4", "train.micro_batches=4", "train.schedule=constant", "train.seq_len=16"]


def write(name, ranks, *overrides, steps=2):
    """A run that ends with a checkpoint; its folder."""
    result = run(ranks, "train", RUN, *outputs(name), *STEPS, f"train.steps={steps}", *overrides)
    checks.expect(result.code == 0, f"{name}: -np {ranks} {overrides}: exit {result.code}", result.output)
    if 1 < ranks <= gpus():
        checks.expect(re.search("rows and gradients by N?R?CCL", result.output),
                      f"{name}: -np {ranks}: a GPU each, and no NCCL", result.output)
    return pathlib.Path(name, "checkpoints", f"step-{steps:08}")


def read_file(path):
    """Of a safetensors file: name -> (dtype, bytes)."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    return {name: (entry["dtype"], content[slice(*(begin + offset for offset in entry["data_offsets"]))])
            for name, entry in header.items()}


def put(whole, shape, part, data, size):
    """The elements of one slice to their places in the tensor, which are runs of a box. size: bytes of an element."""
    inner = math.prod(shape[part["axis"] + 1:])
    length, stride = part["count"] * inner, shape[part["axis"]] * inner
    at, end = part["first"], part["first"] + part["size"]
    while at < end:
        row, within = divmod(at, length)
        count = min(length - within, end - at)
        to, source = (row * stride + part["begin"] * inner + within) * size, (at - part["first"]) * size
        whole[to:to + count * size] = data[source:source + count * size]
        at += count


def read_tensors(folder):
    """The whole tensors of a checkpoint: name -> (dtype, bytes)."""
    index = json.loads((folder / "index.json").read_text())
    files = {path.name: read_file(path) for path in folder.glob("*.safetensors")}
    tensors, elements = {}, dict.fromkeys(index["tensors"], 0)
    for part in index["slices"]:
        name, shape = part["tensor"], index["tensors"][part["tensor"]]
        dtype, data = files[part["file"]][part["key"]]
        whole = tensors.setdefault(name, (dtype, bytearray(math.prod(shape) * SIZES[dtype])))[1]
        put(whole, shape, part, data, SIZES[dtype])
        elements[name] += part["size"]
    wrong = [name for name, shape in index["tensors"].items() if elements[name] != math.prod(shape)]
    checks.expect(not wrong, f"{folder}: slices of {wrong} are not the whole")
    return tensors


def changed(expected, got):
    return sorted(name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name))


for kind, (model, layouts) in CHAINS.items():
    name, model = kind.replace(", ", "-"), model.split()
    folder = write(f"{name}-0", layouts[0][0], *model, *layouts[0][1].split())
    first = read_tensors(folder)
    for prefix in ("adam_m.", "adam_v."):
        values = [data for tensor, (_, data) in first.items() if tensor.startswith(prefix)]
        checks.expect(values and all(map(any, values)), f"{kind}: tensors {prefix}* are missing or zero")
    moments = {dtype for tensor, (dtype, _) in first.items() if tensor.startswith("adam_")}
    checks.expect(moments == {"BF16" if "memory.moments=bf16" in model else "F32"}, f"{kind}: moments are {moments}")
    for i, (ranks, layout) in enumerate(layouts[1:], 1):
        folder = write(f"{name}-{i}", ranks, *model, *layout.split(), f"checkpoint.resume={folder}")
        different = changed(first, read_tensors(folder))
        checks.expect(not different, f"{kind}: -np {ranks} {layout}: {len(different)} tensors changed: {different[:5]}")
        print(f"{kind}: {len(first)} tensors, {len(different)} changed by -np {ranks} {layout}", flush=True)

# A step of learning rate 0 changes moments, and no weight: the comparison sees one and not the other.
after = write("step", 2, *model, f"checkpoint.resume={folder}", "train.lr=0", steps=3)
different = changed(first, read_tensors(after))
checks.expect(different and not any(tensor.startswith("param.") for tensor in different), f"changed: {different[:5]}")

# What is saved already is not saved again, nor is anything that has no folder.
result = run(2, "train", RUN, *outputs("step"), *STEPS, *model, "train.steps=3", "checkpoint.resume=auto")
checks.expect(result.code == 0 and "nothing to train" in result.output and "written in" not in result.output,
              "saved again", result.output)
result = run(2, "train", RUN, *STEPS, *model, "train.steps=3", f"checkpoint.resume={after}")
checks.expect(result.code == 0 and "written in" not in result.output, "saved into nowhere", result.output)
checks.finish()
