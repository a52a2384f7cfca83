"""Hugging Face transformers and this program read each other's models, of all families.

Exported: a model that two ranks have trained, in several files, loads in transformers 5 without a tensor too many or too
few and computes what `parity` computes from it: logits, loss, every gradient and 20 steps of training. transformers 4
loads the same folder and gives the same logits. Imported: folders that transformers 5 and 4 have saved, bit for bit."""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
import _packages  # noqa: E402
from _families import TABLES, write_run, write_tokens  # noqa: E402
from _jobs import SOURCE, Checks, outputs, run  # noqa: E402

_packages.require("torch", "transformers")
os.environ["HF_HUB_OFFLINE"] = "1"
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

sys.path.insert(0, str(SOURCE / "tools"))
sys.dont_write_bytecode = True
import make_golden  # noqa: E402

make_golden.torch, make_golden.transformers = torch, transformers
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

V4 = ["transformers==4.57.6", "tokenizers==0.22.2", "huggingface-hub==0.36.2", "requests==2.32.5", "urllib3==2.5.0",
      "charset-normalizer==3.4.4"]
MODELS = SOURCE / "tests/golden/models"
# Folders to train further, in families whose tables above lack YaRN, clipping and the like.
FOLDERS = ["mixtral_odd", "qwen3_v4", "olmoe_clip", "deepseek_v2_groups", "deepseek_v3_groups", "dots1_bias", "dots1_window",
           "glm4_groups", "glm4_lite", "solar_open", "minimax_m2_v4", "qwen2_window", "ernie_range", "hunyuan_v1_moe",
           "hy_v3_types", "gpt_oss_tied"]
NOT_IN_V4 = ("minimax", "glm4_lite", "solar_open", "hy_v3")  # families of which version 4 knows nothing
checks = Checks()


def moewright(label, *arguments, ranks=1):
    result = run(ranks, *arguments)
    checks.expect(result.code == 0, f"{label}: {arguments[0]}: exit {result.code}", result.output)
    return result


def train_and_export(label, toml, dtype="fp32"):
    moewright(label, "train", toml, *outputs(label), "mesh.ep=2", ranks=2)
    out = pathlib.Path(label, "out")
    moewright(label, "export", f"{label}/checkpoints/step-00000004", out, "--dtype", dtype, "--shard-size", "30KB")
    files = list(out.glob("model-*-of-*.safetensors"))
    checks.expect(len(files) > 2, f"{label}: {len(files)} files")
    return out


def compare(label, out):
    """transformers computes a golden file from the folder; `parity` computes it again."""
    model = make_golden.load(out)  # refuses missing, unexpected and misshapen tensors
    rng = torch.Generator().manual_seed(1)

    def batches(_):
        for _ in range(make_golden.MAX_DRAWS):
            ids = torch.randint(0, model.config.vocab_size, (2, 14), generator=rng)
            yield ids, ids
        raise RuntimeError(f"{label}: no batch that keeps clear of choices which hang on rounding")

    golden, seen = make_golden.compute(model, batches, picky=True)
    safetensors.torch.save_file(golden, out.parent / "golden.safetensors")
    result = run(1, "parity", out, out.parent / "golden.safetensors")
    checks.expect(result.code == 0, f"{label}: parity: exit {result.code}", result.output)
    rows = {line.split()[0]: line.split()[1] for line in result.output.splitlines() if len(line.split()) > 2}
    print(f"{label}: logits within {rows.get('logits')}, losses of 20 steps within {rows.get('traj.loss')}; "
          f"smallest gap between experts {seen['score_gap']:.0e}", flush=True)
    return golden


READ_WITH_V4 = """
import sys, torch, transformers, safetensors.torch
assert transformers.__version__.startswith("4."), transformers.__version__
torch.set_num_threads(1)
for folder, golden, saved in zip(*[iter(sys.argv[1:])] * 3):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, torch_dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    bad = {k: v for k, v in info.items() if v}
    golden = safetensors.torch.load_file(golden)
    with torch.no_grad():
        logits = model(input_ids=golden["input_ids"]).logits
    error = ((logits - golden["logits"]).norm() / golden["logits"].norm()).item()
    print(folder, "logits", error, "info", bad)
    model.save_pretrained(saved, max_shard_size="30KB")
"""


def check_v4(labels):
    """transformers 4 reads the same folders, and what it saves is imported bit for bit."""
    environment = {**os.environ, "PYTHONPATH": str(_packages.folder_with(*V4))}
    arguments = [f"{label}/{name}" for label in labels for name in ("out", "golden.safetensors", "saved-by-v4")]
    result = subprocess.run([sys.executable, "-c", READ_WITH_V4, *arguments], env=environment, capture_output=True,
                            text=True)
    if not checks.expect(result.returncode == 0, "transformers 4", result.stdout + result.stderr):
        return
    rows = [line.split(maxsplit=4) for line in result.stdout.splitlines() if " logits " in line]
    checks.expect(len(rows) == len(labels), "transformers 4: some folders were not read", result.stdout)
    for folder, _, error, _, info in rows:
        # With YaRN its DeepSeek-V2 leaves out the scale of scores, which 5.17 has; all layers of its Qwen2-MoE have the
        # window.
        known = folder in ("folder-deepseek_v2_groups/out", "folder-qwen2_window/out")
        checks.expect(info == "{}" and (known or float(error) < 1e-4), f"{folder} in transformers 4: {error} {info}")
    for label in labels:
        comes_back(f"{label}/saved-by-v4")


def tensors_of(folder):
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        tensors.update(safetensors.torch.load_file(path))
    return tensors


def same_tensor(name, before, after):
    if name.endswith(("e_score_correction_bias", "expert_bias")):  # always written in fp32
        before = before.float()
    bits = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[before.dtype]
    return before.dtype == after.dtype and torch.equal(before.view(bits), after.view(bits))


def comes_back(folder, says=""):
    """import, then export: the tensors of the folder, bit for bit."""
    folder = pathlib.Path(folder)
    moewright(folder, "import", folder, f"{folder}-checkpoint")
    output = moewright(folder, "export", f"{folder}-checkpoint/step-00000000", f"{folder}-out").output
    checks.expect(says in output, f"{folder}: exported otherwise than in {says}", output)
    before, after = tensors_of(folder), tensors_of(f"{folder}-out")
    checks.expect(before.keys() == after.keys(), f"{folder}: {sorted(before.keys() ^ after.keys())[:5]}")
    different = [name for name in before if name in after and not same_tensor(name, before[name], after[name])]
    checks.expect(not different, f"{folder}: {len(different)} tensors changed: {different[:3]}")


def check_saved_by_v5(name):
    """A new model of a golden model's config, saved in fp32 and bf16, in one file and several, and in either dialect."""
    for dtype, size in ((torch.float32, "5GB"), (torch.bfloat16, "10KB")):
        config = transformers.AutoConfig.from_pretrained(MODELS / name)
        torch.manual_seed(5)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        kind = str(dtype).removeprefix("torch.")
        folder = pathlib.Path(f"v5-{name}-{kind}")
        model.save_pretrained(folder, max_shard_size=size)
        checks.expect((folder / "model.safetensors").exists() == (size == "5GB"), f"{folder}: files of another size")
        comes_back(folder, kind)
        saved = json.loads((folder / "config.json").read_text())
        checks.expect("rope_parameters" in saved and "dtype" in saved, f"{folder}: not the newer dialect: {saved}")
        old = pathlib.Path(f"v4-{name}-{kind}")
        old.mkdir()
        for path in folder.iterdir():
            (old / path.name).symlink_to(path.resolve())
        (old / "config.json").unlink()
        (old / "config.json").write_text(json.dumps(make_golden.to_v4(saved)))
        comes_back(old, kind)


write_tokens()
labels = []
for family in TABLES:
    labels.append(f"table-{family}")
    compare(labels[-1], train_and_export(labels[-1], write_run(family)))
for name in FOLDERS:
    labels.append(f"folder-{name}")
    toml = pathlib.Path(f"{name}.toml")
    settings = "[data]" + write_run("mixtral").read_text().split("[data]")[1]
    toml.write_text(f'model = "hf:{MODELS / name}"\n{settings}')
    compare(labels[-1], train_and_export(labels[-1], toml))
check_v4([label for label in labels if not any(name in label for name in NOT_IN_V4)])
for name in FOLDERS:
    check_saved_by_v5(name)
checks.finish()
