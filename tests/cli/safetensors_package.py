"""The safetensors package reads every file that we write, and we read every file that it writes: through the commands
that people use. Values are compared as bytes."""

import ctypes
import itertools
import json
import os
import pathlib
import re
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
import _packages  # noqa: E402
from _jobs import BIN, SOURCE, Checks, outputs, run, write_corpus, write_run_file  # noqa: E402

_packages.require("safetensors")
import safetensors  # noqa: E402

MODELS = SOURCE / "tests/golden/models"
# Every element type of the format, under the package's name for it where that differs, and its bits.
DTYPES = {"F64": ("float64", 64), "F32": ("float32", 32), "F16": ("float16", 16), "BF16": ("bfloat16", 16),
          "F8_E4M3": ("float8_e4m3fn", 8), "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8), "F8_E5M2": ("float8_e5m2", 8),
          "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8), "F8_E8M0": ("float8_e8m0fnu", 8), "F4": ("float4_e2m1fn_x2", 4),
          "C64": ("complex64", 64), "I64": ("int64", 64), "I32": ("int32", 32), "I16": ("int16", 16), "I8": ("int8", 8),
          "U64": ("uint64", 64), "U32": ("uint32", 32), "U16": ("uint16", 16), "U8": ("uint8", 8), "BOOL": ("bool", 8)}
checks = Checks()


def read(path):
    """What the package finds: name -> (dtype, shape, bytes)."""
    found = safetensors.deserialize(pathlib.Path(path).read_bytes())
    return {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in found}


def parse(path):
    """The same, by the format's own words."""
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    checks.expect((8 + length) % 8 == 0, f"{path}: the buffer begins at {8 + length}")
    at = 8 + length
    return {name: (e["dtype"], e["shape"], content[at + e["data_offsets"][0]:at + e["data_offsets"][1]])
            for name, e in header.items()}


def write(path, tensors, metadata=None):
    """`tensors`: name -> (dtype, shape, bytes), as read() gives them."""
    buffers = {name: ctypes.create_string_buffer(t[2], max(len(t[2]), 1)) for name, t in tensors.items()}
    specs = {}
    for name, (dtype, shape, data) in tensors.items():
        stored = [*shape[:-1], shape[-1] // 2] if dtype == "F4" else shape  # two values in a byte
        specs[name] = safetensors.TensorSpec(dtype=DTYPES[dtype][0], shape=stored,
                                             data_ptr=ctypes.addressof(buffers[name]), data_len=len(data))
    safetensors.serialize_file(specs, str(path), metadata)


def expect_ok(label, *arguments, ranks=1):
    result = run(ranks, *arguments)
    checks.expect(result.code == 0, f"{label}: exit {result.code}", result.output)
    return result.output


def read_all(label, folder):
    """Every safetensors file of a folder, through the package and by hand."""
    tensors = {}
    paths = sorted(pathlib.Path(folder).glob("*.safetensors"))
    checks.expect(paths, f"{label}: no file in {folder}")
    for path in paths:
        found = read(path)
        checks.expect(found == parse(path), f"{label}: the package reads {path} otherwise")
        tensors.update(found)
    return tensors


def widen(dtype, data):
    """Weights as the fp32 values that they stand for, as bytes."""
    if dtype == "BF16":
        return b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    if dtype == "F16":
        values = struct.unpack(f"<{len(data) // 2}e", data)
        return struct.pack(f"<{len(values)}f", *values)
    return data


# What we write: checkpoints of training and of import, exports of every element type and number of files.
write_corpus("text")
RUN = write_run_file()
layout = ["mesh.ep=2", "mesh.zero=1", "train.steps=2"]
for name, dtype in (("fp32", "fp32"), ("bf16", "bf16")):
    expect_ok(name, "train", RUN, *outputs(name), *layout, "model.shared_experts=0", f"train.dtype={dtype}", ranks=2)
    trained = read_all(name, f"{name}/checkpoints/step-00000002")
    checks.expect(any(t.startswith("adam_v.") for t in trained), f"{name}: no moments in {sorted(trained)[:3]}")
for family in ("mixtral_odd", "qwen3_dense", "olmoe_clip", "deepseek_v2", "deepseek_v3"):
    source = read(MODELS / family / "model.safetensors")
    expect_ok(family, "import", MODELS / family, family)
    read_all(family, f"{family}/step-00000000")
    for dtype, size in (("fp32", "5GB"), ("bf16", "30KB")):
        out = f"{family}/{dtype}"
        expect_ok(out, "export", f"{family}/step-00000000", out, "--dtype", dtype, "--shard-size", size)
        exported = read_all(out, out)
        checks.expect(exported.keys() == source.keys(), f"{out}: {exported.keys() ^ source.keys()}")
        files = len(list(pathlib.Path(out).glob("model*.safetensors")))
        checks.expect((files > 1) == (dtype == "bf16"), f"{out}: {files} files")
        if dtype == "fp32":
            checks.expect(exported == source, f"{out}: the weights changed")

# What it writes: all element types, empty tensors, scalars, names and metadata of any script.
tensors = {}
for i, (dtype, (_, bits)) in enumerate(DTYPES.items()):
    for shape in ([], [0], [3, 0, 2], [2], [3, 2], [1, 1, 2]):
        if dtype == "F4" and (not shape or shape[-1] % 2):
            continue
        size = bits
        for extent in shape:
            size *= extent
        data = bytes((i + k) % 2 for k in range(size // 8))  # 0 and 1 are legal as BOOL too
        tensors[f"{'zyx'[i % 3]}.{dtype}.{'x'.join(map(str, shape)) or 'scalar'}"] = (dtype, shape, data)
tensors["naïve \"quoted\" \\ 名前 🙂"] = ("F32", [1], bytes(4))
for label, metadata in (("plain", None), ("metadata", {"format": "pt", "note": "a \"b\" \n 漢字", "": ""})):
    path = f"all-{label}.safetensors"
    write(path, tensors, metadata)
    shown = subprocess.run([BIN, "inspect", path], capture_output=True, text=True)
    checks.expect(shown.returncode == 0, f"{path}: exit {shown.returncode}", shown.stderr)
    rows = [re.fullmatch(r"(.*?) +(\w+) +(\[.*\])", line) for line in shown.stdout.splitlines()[:-1]]
    got = {r[1]: (r[2], json.loads(r[3])) for r in rows if r}
    wanted = {name: t[:2] for name, t in tensors.items() if name.isascii()}
    missing = [name for name, t in wanted.items() if got.get(name) != tuple(t)]
    checks.expect(not missing, f"{path}: shown otherwise: {missing}", shown.stdout)
    checks.expect(len(rows) == len(tensors) and shown.stdout.splitlines()[-1].startswith(f"{len(tensors)} tensors"),
                  f"{path}: {len(rows)} of {len(tensors)} tensors", shown.stdout)
write("none.safetensors", {})
expect_ok("a file without tensors", "inspect", "none.safetensors")

# A model of mixed element types, whose tensors then lie in another order and at odd places, in three files.
source = read(MODELS / "qwen3_v4" / "model.safetensors")
mixed = {}
for i, (name, (dtype, shape, data)) in enumerate(sorted(source.items())):
    kind = ("F32", "BF16", "F16")[i % 3]
    values = struct.unpack(f"<{len(data) // 4}f", data)
    narrow = {"F32": data, "BF16": b"".join(data[k + 2:k + 4] for k in range(0, len(data), 4)),
              "F16": struct.pack(f"<{len(values)}e", *values)}[kind]
    mixed[name] = (kind, shape, narrow)
os.mkdir("mixed")
pathlib.Path("mixed/config.json").write_text((MODELS / "qwen3_v4/config.json").read_text())
weight_map = {}
names = list(mixed)
for part in range(3):
    file = f"model-{part + 1:05}-of-00003.safetensors"
    chosen = {name: mixed[name] for name in names[part::3]}
    chosen["model.layers.0.self_attn.rotary_emb.inv_freq" if part == 0 else f"model.layers.1.x{part}.rotary_emb.inv_freq"] = (
        "U8", [3], b"abc")  # passed over; makes what follows unaligned for sizes of two and four
    write(f"mixed/{file}", chosen, {"format": "pt"})
    weight_map.update({name: file for name in chosen})
pathlib.Path("mixed/model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
expect_ok("mixed", "import", "mixed", "mixed-checkpoint")
expect_ok("mixed", "export", "mixed-checkpoint/step-00000000", "mixed-out", "--dtype", "fp32")
exported = read("mixed-out/model.safetensors")
for name, (kind, shape, data) in mixed.items():
    checks.expect(exported[name] == ("F32", shape, widen(kind, data)), f"{name}: {kind} was read otherwise")
checks.finish()
