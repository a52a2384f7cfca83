#!/usr/bin/env python3
"""DeepSeek folders there and back: an exported model gives the same numbers, multi-token prediction is left out with a
line that says so, and what belongs to no layer is refused."""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.dont_write_bytecode = True
from _safetensors import Tensors  # noqa: E402

BINARY = os.environ["MOEWRIGHT_BIN"]
MODELS = pathlib.Path(os.environ["MOEWRIGHT_SOURCE"]) / "tests/golden/models"
DATA = 4


def run(*arguments):
    process = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    return process.returncode, process.stdout + process.stderr


def expect(code, says, *arguments):
    got, output = run(*arguments)
    assert got == code and says in output, f"{arguments}: exit {got}, expected {code} and {says!r}\n{output}"
    return output


def header(path):
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + length])


def round_trip(model):
    for dtype in ("fp32", "bf16"):
        home = pathlib.Path(f"{model.name}-{dtype}")
        expect(0, "wrote", "import", model, home / "checkpoint")
        expect(0, "wrote", "export", home / "checkpoint/step-00000000", home / "out", "--dtype", dtype)
        tensors = header(home / "out/model.safetensors")
        for name, entry in tensors.items():
            if name != "__metadata__":
                wide = dtype == "fp32" or name.endswith("e_score_correction_bias")
                assert entry["dtype"] == ("F32" if wide else "BF16"), (name, entry)
        assert tensors.keys() - {"__metadata__"} == set(Tensors(model / "model.safetensors").entries), model
    expect(0, "agree", "parity", f"{model.name}-fp32/out", model / "golden.safetensors")
    # What was rounded once stays as it is.
    expect(0, "wrote", "import", f"{model.name}-bf16/out", f"{model.name}-again")
    expect(0, "wrote", "export", f"{model.name}-again/step-00000000", f"{model.name}-again/out")
    first, second = (pathlib.Path(f"{model.name}-{x}/out/model.safetensors").read_bytes() for x in ("bf16", "again"))
    assert first == second, f"{model.name}: a second export differs"


def extra_layers(model):
    """Layer L is multi-token prediction if config.json says that there is one; nothing else is passed over."""
    layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    golden = model / "golden.safetensors"

    def folder(name, layer, count):
        path = pathlib.Path(name)
        shutil.copytree(model, path)
        config = json.loads((path / "config.json").read_text())
        config["num_nextn_predict_layers"] = count
        (path / "config.json").chmod(0o644)
        (path / "config.json").write_text(json.dumps(config))
        tensors = Tensors(path / "model.safetensors")
        tensors.set(f"model.layers.{layer}.eh_proj.weight", [0.5] * 8, [2, 4])
        tensors.set(f"model.layers.{layer}.enorm.weight", [1.0] * 4)
        (path / "model.safetensors").unlink()
        tensors.write(path / "model.safetensors")
        return path

    mtp = folder("mtp", layers, 1)
    expect(0, "2 tensors of multi-token prediction", "import", mtp, "mtp-checkpoint")
    expect(0, "agree", "parity", mtp, golden)
    expect(DATA, "does not belong to this model", "import", folder("unsaid", layers, 0), "none")
    expect(DATA, "does not belong to this model", "import", folder("too-many", layers + 1, 1), "none")


for name in ("deepseek_v2_groups", "deepseek_v3_groups", "deepseek_v3_halves"):
    round_trip(MODELS / name)
extra_layers(MODELS / "deepseek_v3")
print("ok")
