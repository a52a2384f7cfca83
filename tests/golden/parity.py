#!/usr/bin/env python3
"""`moewright parity` on every golden model: it agrees to the last gradient; one weight or one golden value changed by
1e-2 makes it exit 1; a broken file makes it exit with the code of the file's kind and a hint. One commit changes values of a
sixth of the models, or of all with MOEWRIGHT_TEST_ALL=1."""

import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1] / "support")]
sys.dont_write_bytecode = True
from _jobs import in_turn  # noqa: E402
from _safetensors import Tensors  # noqa: E402

BINARY = os.environ["MOEWRIGHT_BIN"]
ON_GPU = os.environ.get("MOEWRIGHT_TEST_DEVICE") == "gpu"
MODELS = pathlib.Path(os.environ["MOEWRIGHT_SOURCE"]) / "tests/golden/models"
DIFFERENT, USAGE, CONFIG, DATA, CHECKPOINT, UNSUPPORTED = 1, 2, 3, 4, 5, 9  # exit codes of docs/troubleshooting.md
STEP = 1e-2


class Model:
    def __init__(self, path):
        self.path = path
        self.name = path.name
        self.config = json.loads((path / "config.json").read_text())
        self.random = random.Random(self.name)

    def weights(self):
        return Tensors(self.path / "model.safetensors")

    def golden(self):
        return Tensors(self.path / "golden.safetensors")


def strongest_expert(golden, block):
    """The expert of a block (its name in the model) with the largest gradient."""
    name = f"grad.{block.replace('block_sparse_moe', 'mlp')}experts.down_proj"
    values, experts = golden.values(name), golden.shape(name)[0]
    size = len(values) // experts
    return max(range(experts), key=lambda e: sum(map(abs, values[e * size : (e + 1) * size])))


def busiest_expert(model, golden, layer):
    """The expert that most tokens of the first batch choose in an MoE layer."""
    experts = golden.shape(f"router_logits.{layer}")[1]
    logits = golden.values(f"router_logits.{layer}")
    load = [0] * experts
    for begin in range(0, len(logits), experts):
        row = logits[begin : begin + experts]
        for expert in sorted(range(experts), key=lambda e: -row[e])[: model.config["num_experts_per_tok"]]:
            load[expert] += 1
    return load.index(max(load))


def weights_that_matter(model, weights, golden):
    """(tensor, element): one element of each kind of tensor that the first batch reads, at random places."""
    routers = weights.names(".gate.weight") + weights.names(".gate.wg.weight") + weights.names(".router.weight")
    chosen, fused = [], []
    for layer, router in ((0, routers[0]), (len(routers) - 1, routers[-1])):
        chosen.append(router)
        block = router.partition("gate.")[0].partition("router.")[0]
        # In other families groups and biases have a say in what is chosen.
        by_logits = model.config["model_type"] in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss")
        expert = busiest_expert(model, golden, layer) if by_logits else strongest_expert(golden, block)
        chosen += weights.names(f"{block}experts.{expert}.")
        for name in weights.names(f"{block}experts.gate_up") + weights.names(f"{block}experts.down"):  # of all experts
            size = len(weights.values(name)) // weights.shape(name)[0]
            fused.append((name, expert * size + model.random.randrange(size)))
    kinds = ["q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight", "q_norm", "k_norm"]
    # A bias of keys is not among them: a softmax takes no notice of what it adds to unrotated elements.
    kinds += ["q_proj.bias", "v_proj.bias", "o_proj.bias", "query_layernorm", "key_layernorm", "sinks", "router.bias"]
    kinds += ["shared_expert.up_proj", "shared_expert_gate", "shared_mlp.down_proj"]
    kinds += ["q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"]
    kinds += ["shared_experts.gate_proj", "shared_experts.up_proj", "shared_experts.down_proj"]
    kinds += ["input_layernorm", "post_attention_layernorm", "model.norm"]
    if not model.config["tie_word_embeddings"]:
        kinds.append("lm_head")
    chosen += [names[model.random.randrange(len(names))] for names in (weights.names(kind) for kind in kinds) if names]
    dense = [name for name in weights.names(".mlp.up_proj") + weights.names(".mlp.down_proj")]
    picks = [(name, model.random.randrange(len(weights.values(name)))) for name in chosen + dense[:2]] + fused
    width = weights.shape("model.embed_tokens.weight")[1]
    token = golden.values("input_ids")[0]  # a row that is looked up
    return picks + [("model.embed_tokens.weight", token * width + model.random.randrange(width))]


class Cases:
    """Folders with one thing changed, and the exit code that each must give."""

    def __init__(self, root):
        self.root = root
        self.cases = []

    def folder(self, model, label):
        path = self.root / f"{len(self.cases):04d}"
        path.mkdir()
        for name in ("config.json", "model.safetensors", "golden.safetensors"):
            os.symlink(model.path / name, path / name)
        self.cases.append([f"{model.name}: {label}", path, None, None])
        return path

    def expect(self, code, says=""):
        self.cases[-1][2:] = [code, says]

    def weights(self, model, label, edit, code, says=""):
        self.tensors(model, label, "model.safetensors", edit, code, says)

    def golden(self, model, label, edit, code, says=""):
        self.tensors(model, label, "golden.safetensors", edit, code, says)

    def tensors(self, model, label, file, edit, code, says):
        path = self.folder(model, label)
        tensors = Tensors(model.path / file)
        edit(tensors)
        (path / file).unlink()
        tensors.write(path / file)
        self.expect(code, says)

    def file(self, model, label, name, content, code, says=""):
        """`content`: bytes, or None for no file."""
        path = self.folder(model, label)
        (path / name).unlink()
        if content is not None:
            (path / name).write_bytes(content)
        self.expect(code, says)


def add(name, index, delta):
    def edit(tensors):
        values = tensors.values(name)
        values[index] += delta

    return edit


def numeric_cases(cases, model):
    weights, golden = model.weights(), model.golden()
    for name, index in weights_that_matter(model, weights, golden):
        cases.weights(model, f"{name}[{index}] += {STEP}", add(name, index, STEP), DIFFERENT, "differ beyond tolerance")
    for name in golden.names():
        if name.endswith("input_ids") or name == "labels":
            continue
        values = golden.values(name)
        index = model.random.randrange(len(values))
        cases.golden(model, f"{name}[{index}] += {STEP}", add(name, index, STEP), DIFFERENT, name)
        # The largest value of a tensor, wrong by one percent.
        index = max(range(len(values)), key=lambda i: abs(values[i]))
        cases.golden(model, f"{name}[{index}] *= {1 + STEP}", add(name, index, STEP * values[index]), DIFFERENT, name)


def broken_weight_cases(cases, model):
    weights = model.weights()
    victim, expert = weights.names("q_proj")[-1], weights.names(".experts.")[-1]
    rows, columns = weights.shape(victim)
    for name in (victim, expert, weights.names(".gate.weight")[0], "model.norm.weight"):
        cases.weights(model, f"no {name}", lambda t, n=name: t.drop(n), DATA, name)

    def change(label, edit, says="", code=DATA):
        cases.weights(model, label, edit, code, says)

    another = expert.replace("experts.", "experts.9")
    change("an extra tensor", lambda t: t.set("model.layers.0.extra", [1.0]), "model.layers.0.extra")
    change("an expert too many", lambda t: t.set(another, t.values(expert), t.shape(expert)), another)
    change("a flat matrix", lambda t: t.set(victim, shape=[rows * columns]), victim)
    change("another shape", lambda t: t.set(victim, shape=[rows * 2, columns // 2]), victim)
    change("a row too few", lambda t: t.set(victim, t.values(victim)[columns:], [rows - 1, columns]), victim)
    change("integers", lambda t: t.set(victim, [0] * (rows * columns), dtype="I32"), victim)
    change("a NaN", add("model.norm.weight", 0, float("nan")), "logits", DIFFERENT)


def broken_golden_cases(cases, model):
    golden, vocab = model.golden(), model.config["vocab_size"]

    def change(label, edit, says="", code=DATA):
        cases.golden(model, f"golden with {label}", edit, code, says)

    grad = golden.names("grad.", "q_proj")[0]
    for name in ("input_ids", "labels", "logits", "loss", grad, "traj.loss", "traj.grad_norm", "traj.input_ids"):
        change(f"no {name}", lambda t, n=name: t.drop(n))
    for name in (grad, "logits", "input_ids"):
        change(f"a flat {name}", lambda t, n=name: t.set(n, shape=[len(t.values(n))]), name)
    change("an extra tensor", lambda t: t.set("grad.nothing", [1.0]), "grad.nothing")
    change("two losses", lambda t: t.set("loss", [1.0, 1.0], [2]), "loss")
    change("a short trajectory", lambda t: t.set("traj.loss", t.values("traj.loss")[1:], [19]), "traj.loss")
    change("a NaN", lambda t: t.set("loss", [float("nan")]), "loss", DIFFERENT)
    for token in (-1, -100, vocab, 2**31, 2**63 - 1):
        change(f"token {token}", lambda t, x=token: t.set("input_ids", [x] + t.values("input_ids")[1:]), "input_ids")
    change("label -99", lambda t: t.set("labels", t.values("labels")[:-1] + [-99]), "labels")


def broken_file_cases(cases, model):
    config = (model.path / "config.json").read_bytes()
    cases.file(model, "no config.json", "config.json", None, CHECKPOINT, "config.json")
    cases.file(model, "empty config.json", "config.json", b"", CONFIG, "config.json")
    for size in range(64, len(config.rstrip()), 64):
        cases.file(model, f"config.json cut after {size} bytes", "config.json", config[:size], CONFIG, "config.json")

    def edited(**fields):
        return json.dumps({**model.config, **fields}).encode()

    width, layers = model.config["hidden_size"], model.config["num_hidden_layers"]
    cases.file(model, "another width", "config.json", edited(hidden_size=width * 2), DATA, "shape")
    cases.file(model, "another number of layers", "config.json", edited(num_hidden_layers=layers + 1), DATA)
    cases.file(model, "an impossible model", "config.json", edited(num_key_value_heads=1000), CONFIG)
    cases.file(model, "a model that is not built", "config.json", edited(attention_bias=True), UNSUPPORTED)
    for name in ("model.safetensors", "golden.safetensors"):
        content = (model.path / name).read_bytes()
        header = 8 + int.from_bytes(content[:8], "little")
        cases.file(model, f"no {name}", name, None, DATA)
        for size in [*range(0, header, 64), header - 1, header, header + 1, len(content) // 2, len(content) - 1]:
            cases.file(model, f"{name} cut after {size} bytes", name, content[:size], DATA)
        cases.file(model, f"{name} with a byte too many", name, content + b"\0", DATA)
        cases.file(model, f"{name} with a huge header", name, b"\xff" * 8 + content[8:], DATA)


def run(arguments):
    command = [BINARY, *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300)
    return process.returncode, process.stdout, process.stderr


def check(case):
    """What is wrong with this case, or nothing."""
    label, path, code, says = case
    got, out, err = run(["parity", path, path / "golden.safetensors", "--threads", "1"])
    shutil.rmtree(path)
    problems = []
    if got != code:
        problems.append(f"exit {got}, expected {code}")
    if says not in (out if code == DIFFERENT else err):
        problems.append(f'does not say "{says}"')
    if code == DIFFERENT and "FAIL" not in out:
        problems.append("names no tensor")
    if code != DIFFERENT and ("hint: " not in err or "error: " not in err):
        problems.append("no hint")
    if len(err.strip().splitlines()) > 4:
        problems.append("a long message")
    output = (out[-2000:] if code == DIFFERENT else "") + err[-2000:]
    return f"{label}: {'; '.join(problems)}\n{output}" if problems else ""


def main():
    root = pathlib.Path("cases")
    root.mkdir()
    models = [Model(path) for path in sorted(MODELS.iterdir())]
    assert len(models) >= 15, models
    failures = []
    for model in models:
        code, out, err = run(["parity", model.path, model.path / "golden.safetensors",
                              "--device", "cuda" if ON_GPU else "auto"])
        print(f"{model.name}: {out.strip().splitlines()[-1] if out else err}")
        if code != 0:
            failures.append(f"{model.name}: exit {code}\n{out}{err}")
    if ON_GPU:  # what files are refused does not depend on the device
        print("\n".join(failures))
        return 1 if failures else 0
    code, _, _ = run(["parity", models[0].path])
    if code != USAGE:
        failures.append(f"without a golden file: exit {code}")
    code, _, _ = run(["parity", models[0].path, models[0].path / "golden.safetensors", "--threads", "-1"])
    if code != USAGE:
        failures.append(f"--threads -1: exit {code}")

    cases = Cases(root.resolve())
    for model in in_turn(models, 6):
        numeric_cases(cases, model)
    for name in ("mixtral_odd", "qwen3_v4", "olmoe_clip", "deepseek_v3_halves"):
        broken_weight_cases(cases, Model(MODELS / name))
        broken_golden_cases(cases, Model(MODELS / name))
    broken_file_cases(cases, Model(MODELS / "qwen3_v4"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failures += filter(None, pool.map(check, cases.cases))
    print("\n".join(failures))
    print(f"{len(cases.cases)} changed or broken models, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
