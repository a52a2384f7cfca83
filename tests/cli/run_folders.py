"""Commands take a run folder for its newest complete checkpoint and say which one; of any other path they say what it is
and what to name instead. `inspect` sums up a checkpoint and a model folder; another model is named by its keys."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import BIN, SMALL, SOURCE, Checks, run, write_corpus, write_run_file  # noqa: E402

CHECKPOINT, USAGE = 5, 2
checks = Checks()
QWEN = SOURCE / "tests/golden/models/qwen3_moe"


def expect(code, says, *arguments, never=()):
    result = run(1, *arguments)
    says = [says] if isinstance(says, str) else says
    good = result.code == code and all(s in result.output for s in says) and (code == 0 or "hint:" in result.output)
    checks.expect(good and not any(s in result.output for s in never),
                  f"{arguments}: exit {result.code}, expected {code} and {says}", result.output)
    return result.output


def text_of(*arguments):
    """What goes to stdout alone: `sample` says on stderr where its weights come from."""
    result = subprocess.run([BIN, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    checks.expect(result.returncode == 0, f"{arguments}: exit {result.returncode}", result.stderr.decode(errors="replace"))
    return result.stdout


write_corpus("text", files=2)
RUN = write_run_file(text=SMALL.replace("shared_experts = 1\n", "") + '[checkpoint]\ndir = "run"\nevery = 2\nkeep = 5\n')
expect(0, "", "train", RUN, "train.steps=6")
NEWEST, CHOICE = pathlib.Path("run/step-00000006"), "using run/step-00000006, the newest of 3 complete checkpoints"

# The same text from the folder, the checkpoint, and the run file; the layout of the training does not matter alone.
PROMPT = ["sample.prompt=eta", "sample.tokens=20"]
expect(0, CHOICE, "sample", "run", *PROMPT)
expect(0, CHOICE, "sample", RUN, *PROMPT)
reference = text_of("sample", NEWEST, *PROMPT)
checks.expect(reference.startswith(b"eta") and len(reference) > 10, f"sample: {reference!r}")
for other in (["run"], ["run/"], [RUN], [RUN, "mesh.ep=2", "mesh.tp=2", "mesh.pp=3", "moe.transport=flat"],
              [RUN, "--checkpoint", "run"], ["run", "--checkpoint", NEWEST]):
    checks.expect(text_of("sample", *other, *PROMPT) == reference, f"sample {other} draws another text")
checks.expect(text_of("sample", "run", "--checkpoint", "run/step-00000002", *PROMPT) != reference,
              "--checkpoint takes the older one")
reference.decode()  # UTF-8, whatever bytes a model draws
text_of("sample", "run", "sample.tokens=60", "sample.temperature=100", "sample.top_k=0").decode()
expect(0, "", "sample", QWEN, "sample.tokens=4", "sample.prompt=ab")  # the folder says all that is needed

expect(0, [CHOICE, "qwen3_moe"], "export", "run", "exported")
expect(0, "wrote", "export", NEWEST, "exported-by-name", never=["using"])
expect(0, "", "import", QWEN, "imported")
expect(0, ["step        0: an imported model", "no moments"], "inspect", "imported", never=["of 100"])
expect(0, ["using imported/step-00000000", "tensors agree"], "parity", "imported", QWEN / "golden.safetensors", "--threads", 1)

# An imported model computes as its folder does, and keeps the values of one that does not tell their type.
EVALUATE = ["data.val_path=text", "train.val_batches=2", "--json"]
checks.expect(text_of("evaluate", "imported", *EVALUATE) == text_of("evaluate", QWEN, *EVALUATE), "imported: another loss")
shutil.copytree(QWEN, "untyped")
config = json.loads((QWEN / "config.json").read_text())
pathlib.Path("untyped/config.json").chmod(0o644)
pathlib.Path("untyped/config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in ("torch_dtype", "dtype")}))
expect(0, "wrote", "import", "untyped", "untyped-run")
expect(0, "in float32", "export", "untyped-run", "untyped-out")

# Without data that is held out, `evaluate` says that it takes the training data.
ALL = ["train.val_batches=1", "data.val_fraction=0"]
expect(0, ["warning: there is no data to validate on: data.val_fraction = 0", "none of it held out: loss"], "evaluate", "run", *ALL)
checks.expect(json.loads(text_of("evaluate", "run", *ALL, "--json"))["held_out"] is False, "held_out of training data")
expect(0, '"held_out":true', "evaluate", "run", "train.val_batches=1", "--json", never=["warning"])

# A summary; tensors and the run file when they are asked for.
SUMMARY = [CHOICE, "[model] table; exports as qwen3_moe", "size        69.4k parameters", "3 layers, width 32", "8 experts x 24, top-2",
           "6 of 6; 96 samples, 3072 tokens", "loss        ", "1 rank, pp=1", "written     20", "moments in fp32"]
summary = expect(0, SUMMARY, "inspect", "run", never=["param."])
checks.expect(len(summary.splitlines()) < 12, "inspect is longer than a summary", summary)
loss = json.loads((NEWEST / "index.json").read_text())["loss"]
checks.expect(f"{loss:.4f}" in summary, f"inspect lacks the loss {loss}", summary)
expect(0, ["param.embed", "[256, 32]"], "inspect", NEWEST, "--tensors", never=["using"])
stored = text_of("inspect", "run", "--run-file")
pathlib.Path("stored.toml").write_bytes(stored)
expect(0, "resumed from", "train", "stored.toml", "train.steps=8", "checkpoint.dir=on", "checkpoint.resume=run")
expect(0, ["Hugging Face model folder", "qwen3_moe", "tensors", "tokenizer   none"], "inspect", QWEN)
expect(0, "model.layers.0.", "inspect", QWEN, "--tensors")
expect(USAGE, "init FILE --model", "inspect", QWEN, "--run-file")

# An index without a loss, as older versions wrote them too.
imported = json.loads(pathlib.Path("imported/step-00000000/index.json").read_text())
checks.expect("loss" not in imported, "an imported model has a loss")
expect(0, "weights alone", "inspect", "imported", never=["loss   "])

# What other paths are.
shutil.copytree("run", "broken")
(pathlib.Path("broken") / NEWEST.name / "DONE").unlink()
os.makedirs("empty/step-00000004")
os.makedirs("outer")
shutil.copytree("run", "outer/inner")
os.makedirs("nothing")
for command, *rest in (("export", "never"), ("inspect",), ("sample",), ("parity", QWEN / "golden.safetensors")):
    expect(CHECKPOINT, ["incomplete checkpoint: it has no DONE", "broken/step-00000004"], command,
           pathlib.Path("broken") / NEWEST.name, *rest, never=["checkpoint.resume"])
    expect(CHECKPOINT, "empty/step-00000004 is an incomplete checkpoint", command, "empty/step-00000004", *rest)
    expect(CHECKPOINT, "empty is a run folder without a complete checkpoint", command, "empty", *rest)
    expect(CHECKPOINT, "nothing is neither a run folder", command, "nothing", *rest)
    expect(CHECKPOINT, "outer/inner is a run folder: name that one", command, "outer", *rest)
    if command not in ("inspect", "parity", "sample"):
        expect(CHECKPOINT, [f"{QWEN} is a Hugging Face model folder", f"moewright import {QWEN}"], command, QWEN, *rest)
        expect(CHECKPOINT, "is a file", command, RUN, *rest)
        expect(CHECKPOINT, ["does not exist", "the newest complete checkpoint there is run/step-00000006"], command,
               "run/step-00000005", *rest)
expect(0, "using broken/step-00000004", "export", "broken", "from-broken")
expect(CHECKPOINT, "Hugging Face model folder", "train", RUN, f"checkpoint.resume={QWEN}", "checkpoint.dir=new")

# A new run in a folder without a complete checkpoint says so. A branch keeps the metrics of the run that it leaves, and
# other text is not taken for metrics.
shutil.copytree("run", "cut")
for done in pathlib.Path("cut").glob("*/DONE"):
    done.unlink()
expect(0, ["passed over cut/step-00000006", "cut holds no complete checkpoint: the run begins at step 1"], "train", RUN,
       "checkpoint.dir=cut", "checkpoint.resume=auto", "train.steps=1")
RESUMED = ["train.steps=6", "log.jsonl=lines.jsonl", "checkpoint.resume=run/step-00000004"]
expect(0, "", "train", RUN, "checkpoint.dir=first", "train.steps=6", "log.jsonl=lines.jsonl")
lines = pathlib.Path("lines.jsonl").read_bytes()
expect(0, "lines.jsonl of an earlier run is kept as lines.jsonl.1", "train", RUN, "checkpoint.dir=second", "train.lr=1e-2", *RESUMED)
checks.expect(pathlib.Path("lines.jsonl.1").read_bytes() == lines, "the branch changed the metrics of its parent")
checks.expect(len(pathlib.Path("lines.jsonl").read_bytes().splitlines()) == len(lines.splitlines()), "lines of the branch")
pathlib.Path("lines.jsonl").write_text("notes\nmore of them\n")
expect(4, "line 1 is no JSON object: notes", "train", RUN, "checkpoint.dir=third", *RESUMED)
checks.expect(pathlib.Path("lines.jsonl").read_text() == "notes\nmore of them\n", "the notes changed")
expect(CHECKPOINT, "run/step-00000006 is there already", "import", QWEN, "run")

# Metrics are where the checkpoints are, unless the run says otherwise.
ONE = ["data.path=text", "train.steps=1", "sample.tokens=0"]
for name, more, there in (("by-default", [], True), ("none", ["log.jsonl="], False), ("named", ["log.jsonl=named.jsonl"], False)):
    expect(0, "", "train", RUN, *ONE, f"checkpoint.dir={name}", *more)
    checks.expect(pathlib.Path(name, "metrics.jsonl").exists() == there, f"{name}: metrics.jsonl")
expect(0, "wrote by-default/report.html", "report", "by-default")
checks.expect(pathlib.Path("named.jsonl").exists(), "named.jsonl")

# The config.json of a run's Hugging Face folder, changed after the training.
shutil.copytree(QWEN, "source")
FAMILY = ["model=hf:source", "data.path=text", "train.seq_len=16", "train.global_batch=4", "checkpoint.dir=family", "sample.tokens=0"]
pathlib.Path("family.toml").write_text('[checkpoint]\ndir = "family"\n')
expect(0, "", "train", "family.toml", *FAMILY, "train.steps=2")
expect(0, "wrote", "export", "family", "as-trained")
config = json.loads(pathlib.Path("source/config.json").read_text())
pathlib.Path("source/config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
expect(CHECKPOINT, "source/config.json describes another model", "export", "family", "as-changed")
expect(0, "warning: source/config.json changed: the weights were trained as another model", "train", "family.toml", *FAMILY,
       "train.steps=3", "checkpoint.resume=auto")
expect(0, "wrote", "export", "family", "as-resumed")
pathlib.Path("source/config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-2}))
for command in (["evaluate", "family", "train.val_batches=1"], ["sample", "family", "sample.tokens=1"],
                ["train", "family.toml", *FAMILY, "train.steps=4", "checkpoint.resume=auto", "--dry-run"]):
    expect(0, "warning: source/config.json changed: the weights were trained as another model", *command)
# What changed is said before a job is sent.
expect(0, ["train.seed = 9 (was 1)", "warning: train.seed changed: of the samples"], "train", "family.toml",
       *FAMILY, "train.steps=4", "checkpoint.resume=auto", "train.seed=9", "--dry-run")
# The one that is named is the one that is used.
expect(0, "loss", "evaluate", "family", "--checkpoint", "family/step-00000002", "train.val_batches=1", never=["using"])

# Another model: what it was and what it is.
expect(CHECKPOINT, ["param.embed is [256, 32], the model's is [256, 48]", "model.width was 32 in the checkpoint, is 48 now"],
       "train", RUN, "model.width=48", "checkpoint.resume=auto")
expect(CHECKPOINT, ["is missing", "model.layers was 3 in the checkpoint, is 4 now"], "train", RUN, "model.layers=4",
       "checkpoint.resume=auto")
checks.finish()
