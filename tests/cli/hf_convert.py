"""Import and export: the same bytes from a checkpoint of any layout and through any number of ranks, back again without
a changed bit, in memory that does not grow with the model; and what is broken is refused, with nothing left behind."""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _families import TABLES, write_run, write_tokens  # noqa: E402
from _jobs import BIN, SOURCE, Checks, outputs, read_metrics, run, same_bits, same_folders  # noqa: E402

sys.path.insert(0, str(SOURCE / "tests/golden"))
sys.dont_write_bytecode = True
from _safetensors import Tensors  # noqa: E402

CONFIG, DATA, CHECKPOINT, NUMERIC, UNSUPPORTED = 3, 4, 5, 7, 9
MODELS = SOURCE / "tests/golden/models"
checks = Checks()


def expect(code, says, *arguments, ranks=1):
    result = run(ranks, *arguments)
    good = result.code == code and says in result.output and (code == 0 or "hint:" in result.output)
    checks.expect(good, f"{arguments}: exit {result.code}, expected {code} and {says!r}", result.output)
    return result.output


def check_layouts():
    """A step without learning rate changes nothing, and writes the same weights in another layout."""
    layouts = ["mesh.ep=2 mesh.zero=1", "mesh.pp=2", "mesh.tp=2 mesh.ep=2", "mesh.tp=2 moe.tp_mode=ted",
               "mesh.ep=2 moe.transport=gather_tokens mesh.width_shares=1,2",
               "mesh.ep=2 train.dtype=bf16 mesh.zero=1"]
    for family in TABLES:
        toml = write_run(family)
        expect(0, "", "train", toml, *outputs(family), "mesh.ep=2", ranks=2)
        step = f"{family}/checkpoints/step-00000004"
        expect(0, f"{family} in float32", "export", step, f"{family}/whole", "--shard-size", "20KB")
        for i, layout in enumerate(layouts):
            other = f"{family}/{i}"
            expect(0, "", "train", toml, *outputs(other), *layout.split(), f"checkpoint.resume={step}", "train.steps=5",
                   "train.lr=0", "moe.bias_rate=0", ranks=2)
            expect(0, "wrote", "export", f"{other}/checkpoints/step-00000005", f"{other}/out", "--shard-size", "20KB",
                   "--dtype", "fp32", ranks=3 if i == 0 else 1)
            same_folders(checks, f"{family}: {layout}", f"{family}/whole", f"{other}/out")


def check_round_trips():
    for family in TABLES:
        step, home = f"{family}/checkpoints/step-00000004", pathlib.Path(family)
        for dtype in ("bf16", "fp32"):
            first, again, back = home / dtype, home / f"{dtype}-again", home / f"{dtype}-checkpoint"
            expect(0, "wrote", "export", step, first, "--dtype", dtype, "--shard-size", "1MB")
            expect(0, "wrote", "import", first, back, ranks=2 if dtype == "bf16" else 1)
            expect(0, "wrote", "export", back / "step-00000000", again, "--shard-size", "1MB")
            same_folders(checks, f"{family}: import(export) in {dtype}", first, again)
        trained, imported = (checkpoint_values(p) for p in (step, home / "fp32-checkpoint/step-00000000"))
        checks.expect(trained == imported, f"{family}: the imported checkpoint has other values")


def checkpoint_values(folder):
    """The parameters of a checkpoint of slices along axis 0, whatever ranks wrote them."""
    index = json.loads(pathlib.Path(folder, "index.json").read_text())
    parts = {}
    for s in index["slices"]:
        if s["tensor"].startswith("param."):
            values = Tensors(pathlib.Path(folder, s["file"])).values(s["key"])
            parts.setdefault(s["tensor"], []).append((s["axis"], s["begin"], s["first"], values))
    return {name: [x for p in sorted(list_, key=lambda p: p[:3]) for x in p[3]] for name, list_ in parts.items()}


def check_training_goes_on():
    """From an imported checkpoint as from the folder itself."""
    model = MODELS / "qwen3_v4"
    run_file = pathlib.Path("hf.toml")
    run_file.write_text(write_run("mixtral").read_text().split("[data]")[1].join([f'model = "hf:{model}"\n[data]', ""]))
    expect(0, "wrote", "import", model, "started")
    expect(0, "", "train", run_file, *outputs("from-folder"), "train.steps=3")
    expect(0, "after step 0", "train", run_file, *outputs("from-import"), "train.steps=3", "mesh.ep=1",
           "checkpoint.resume=started/step-00000000")
    same_bits(checks, "from an imported checkpoint", read_metrics("from-folder"), read_metrics("from-import"))
    index = json.loads(pathlib.Path("started/step-00000000/index.json").read_text())
    checks.expect(all(name.startswith("param.") for name in index["tensors"]), "an imported checkpoint has moments")
    # A rank that holds one expert verifies no other.
    counts = {s["count"] for s in index["slices"] if ".moe.w_" in s["tensor"]}
    checks.expect(counts == {1}, f"an imported checkpoint has slices of {counts} experts")


def check_other_files():
    """What goes along, and what config.json keeps of the source's."""
    model = pathlib.Path("tokenized")
    shutil.copytree(MODELS / "deepseek_v3_groups", model)
    for path in model.iterdir():
        path.chmod(0o644)
    config = json.loads((model / "config.json").read_text())
    config.update(eos_token_id=7, auto_map={"AutoConfig": "x.Y"}, transformers_version="1", dtype="bfloat16")
    (model / "config.json").write_text(json.dumps(config))
    along = ["tokenizer.json", "tokenizer_config.json", "tokenizer.model", "generation_config.json", "chat.jinja", "LICENSE"]
    for name in [*along, "pytorch_model.bin", ".hidden"]:
        (model / name).write_text(name)
    expect(0, "wrote", "import", f"{model}/", "tokenized-checkpoint/")
    expect(0, "deepseek_v3 in bfloat16, 1 file", "export", "tokenized-checkpoint/step-00000000/", "tokenized-out/")
    found = {p.name for p in pathlib.Path("tokenized-out").iterdir()}
    wanted = {*along, "config.json", "model.safetensors"}
    checks.expect(found == wanted, f"copied: {sorted(found ^ wanted)}")
    written = json.loads(pathlib.Path("tokenized-out/config.json").read_text())
    for key, value in (("eos_token_id", 7), ("auto_map", {"AutoConfig": "x.Y"}), ("torch_dtype", "bfloat16")):
        checks.expect(written.get(key) == value, f"config.json: {key} = {written.get(key)}")
    for key in ("transformers_version", "dtype", "rope_parameters", "quantization_config"):
        checks.expect(key not in written, f"config.json keeps {key}")
    model.rename("moved")
    expect(CONFIG, "--source", "export", "tokenized-checkpoint/step-00000000", "none")
    expect(0, "wrote", "export", "tokenized-checkpoint/step-00000000", "moved-out", "--source", "moved")
    same_folders(checks, "--source", "tokenized-out", "moved-out")


def check_tokenizer():
    """A run of a [model] table brings what sample.tokenizer names, and says so where that has gone."""
    pathlib.Path("words.json").write_text("words")
    expect(0, "", "train", "mixtral.toml", *outputs("words"), "train.steps=1", "sample.tokens=0",
           "sample.tokenizer=words.json")
    step = "words/checkpoints/step-00000001"
    expect(0, "with the tokenizer words.json", "export", step, "words/out")
    checks.expect(pathlib.Path("words/out/tokenizer.json").read_text() == "words", "tokenizer.json")
    pathlib.Path("words.json").unlink()
    expect(0, "without the tokenizer words.json, which is not there", "export", step, "words/again")


def check_auxiliary_loss():
    """config.json tells the coefficient of the run, where the family's can tell its scope."""
    for family, scope, key, value in (("mixtral", "sequence", "router_aux_loss_coef", 0.25),
                                      ("qwen3_moe", "model", "router_aux_loss_coef", 0.25),
                                      ("deepseek_v2", "sequence", "aux_loss_alpha", 0.25),
                                      ("deepseek_v3", "layer", "aux_loss_alpha", 0.0)):
        name = f"aux-{family}"
        expect(0, "", "train", f"{family}.toml", *outputs(name), "train.steps=1", "moe.aux_loss_coef=0.25",
               f"moe.aux_scope={scope}")
        expect(0, "wrote", "export", f"{name}/checkpoints/step-00000001", f"{name}/out")
        config = json.loads(pathlib.Path(name, "out/config.json").read_text())
        checks.expect(config[key] == value, f"{name}: {key} = {config[key]}")


def check_memory():
    """A model of 300 MB and tensors of 100 MB within 80 MB of memory of the process's own."""
    model = pathlib.Path("large")
    model.mkdir()
    config = json.loads((MODELS / "qwen3_v4/config.json").read_text())
    experts, layers, width = 8, 1, config["hidden_size"]
    config.update(vocab_size=600_000, num_experts=experts, num_hidden_layers=layers, moe_intermediate_size=70_000)
    (model / "config.json").write_text(json.dumps(config))
    small = Tensors(MODELS / "qwen3_v4/model.safetensors")
    shapes = {name: small.shape(name) for name in small.names() if ".layers." not in name or ".layers.0." in name}
    expert = {name.rsplit(".", 2)[1]: shape for name, shape in shapes.items() if ".experts.0." in name}
    shapes = {name: shape for name, shape in shapes.items() if ".experts." not in name}
    for e in range(experts):
        for name, shape in expert.items():
            shapes[f"model.layers.0.mlp.experts.{e}.{name}.weight"] = [70_000 if n == 12 else n for n in shape]
    shapes["model.layers.0.mlp.gate.weight"] = [experts, width]
    shapes["model.embed_tokens.weight"] = shapes["lm_head.weight"] = [600_000, width]
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(model / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)  # zeros, which take no space
    checks.expect(at > 300e6, f"{at} bytes")
    limit = 80 << 20
    for arguments in (("import", model, "large-checkpoint"), ("export", "large-checkpoint/step-00000000", "large-out")):
        result = subprocess.run([BIN, *map(str, arguments)], capture_output=True, text=True,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
        checks.expect(result.returncode == 0, f"{arguments[0]} in {limit} bytes: exit {result.returncode}", result.stderr)
    for path in ("large-checkpoint", "large-out"):
        shutil.rmtree(path, ignore_errors=True)


def check_refusals():
    step = "mixtral/checkpoints/step-00000004"

    # A family for every feature, or the names of those that fit none.
    for overrides, parts in ((["model.activation=gelu"], ["activation"]),
                             (["model.score=sigmoid"], ["selection_bias"]),
                             (["model.renormalise=false"], ["mixtral does not support renormalise = false", "qwen3_moe", "olmoe"]),
                             (["model.shared_experts=1"], ["mixtral does not support shared_experts"]),
                             (["model.dense_layers=3"], ["no MoE layers"]),
                             (["model.attention=latent"], ["deepseek_v2 does not support renormalise", "deepseek_v3 does not support score"])):
        name = "-".join(overrides).replace("=", "-")
        expect(0, "", "train", "mixtral.toml", *outputs(name), "train.steps=1", "model.kv_heads=0", *overrides)
        output = expect(UNSUPPORTED, "fits no Hugging Face family", "export", f"{name}/checkpoints/step-00000001", "none")
        for part in parts:
            checks.expect(part in output, f"{name}: no {part!r}", output)

    # Places that are taken.
    for path in ("mixtral/whole", "taken"):
        pathlib.Path(path).mkdir(exist_ok=True)
        expect(DATA, "is there already", "export", step, path)
    pathlib.Path("broken-off.tmp").mkdir()
    expect(DATA, "broken-off.tmp is there already", "export", step, "broken-off")
    expect(CHECKPOINT, "is there already", "import", "mixtral/bf16", "mixtral/bf16-checkpoint")
    for size in ("0", "-1", "5XB", "lots"):
        checks.expect(run(1, "export", step, "none", "--shard-size", size).code == 2, f"--shard-size {size}")

    # A damaged checkpoint leaves nothing behind.
    shutil.copytree(step, "damaged/step-00000004")
    shard = pathlib.Path("damaged/step-00000004/rank-00001.safetensors")
    content = bytearray(shard.read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + length])
    begin = next(e["data_offsets"][0] for n, e in header.items() if n.startswith("param.layers"))
    content[8 + length + begin] ^= 1
    shard.write_bytes(content)
    expect(CHECKPOINT, "is corrupt", "export", "damaged/step-00000004", "none")
    shard.unlink()
    expect(CHECKPOINT, "rank-00001", "export", "damaged/step-00000004", "none")

    # Damaged folders: of several shards.
    whole = pathlib.Path("mixtral/whole")
    shards = sorted(p.name for p in whole.glob("*.safetensors"))

    def damaged(label, code, says, damage):
        path = pathlib.Path("folder")
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        damage(path)
        expect(code, says, "import", path, f"checkpoint-of-{re.sub('[^a-z]', '', label)}")

    def edit(path, name, change):
        file = path / json.loads((path / "model.safetensors.index.json").read_text())["weight_map"][name]
        tensors = Tensors(file)
        change(tensors)
        tensors.write(file)

    def edit_map(path, change):
        index = json.loads((path / "model.safetensors.index.json").read_text())
        change(index["weight_map"])
        (path / "model.safetensors.index.json").write_text(json.dumps(index))

    gate, norm = "model.layers.1.block_sparse_moe.gate.weight", "model.norm.weight"
    damaged("no shard", DATA, shards[1], lambda p: (p / shards[1]).unlink())
    damaged("a cut shard", DATA, shards[2], lambda p: os.truncate(p / shards[2], (p / shards[2]).stat().st_size - 1))
    damaged("an empty shard", DATA, shards[2], lambda p: os.truncate(p / shards[2], 0))
    damaged("another shape", DATA, gate, lambda p: edit(p, gate, lambda t: t.set(gate, shape=[32, 8])))
    damaged("a tensor twice", DATA, "is in two files",
            lambda p: edit(p, gate, lambda t: t.set(norm, [1.0] * 32)))
    damaged("a tensor less", DATA, gate, lambda p: (edit(p, gate, lambda t: t.drop(gate)), edit_map(p, lambda m: m.pop(gate))))
    damaged("a name less in the map", DATA, gate, lambda p: edit(p, gate, lambda t: t.drop(gate)))
    damaged("a wrong place in the map", DATA, "is not in", lambda p: edit_map(p, lambda m: m.update({gate: shards[0]})))
    damaged("a path in the map", DATA, "file name", lambda p: edit_map(p, lambda m: m.update({gate: "../x.safetensors"})))
    damaged("a tensor more", DATA, "does not belong", lambda p: edit(p, gate, lambda t: t.set("extra.weight", [1.0])))
    damaged("a value that is not finite", NUMERIC, norm,
            lambda p: edit(p, norm, lambda t: t.set(norm, [float("inf")] + [1.0] * 31)))
    left = [p for p in ("none", "none.tmp", "taken.tmp", "broken-off") if pathlib.Path(p).exists()]
    left += [str(p) for p in pathlib.Path(".").glob("checkpoint-of-*/step-*/DONE")]
    checks.expect(not left, f"left behind: {left}")


write_tokens()
check_layouts()
check_round_trips()
check_training_goes_on()
check_other_files()
check_tokenizer()
check_auxiliary_loss()
check_memory()
check_refusals()
checks.finish()
