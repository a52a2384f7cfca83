"""Mistakes on the command line: what is wrong, the usage of the command, what may have been meant; `help`; folders of
outputs are created."""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import BIN, Checks, run, write_corpus, write_run_file  # noqa: E402

checks = Checks()


def refused(code, words, *arguments):
    result = run(1, *arguments)
    missing = [word for word in ("moewright: error: ", "hint: ", *words) if word not in result.output]
    checks.expect(result.code == code and not missing, f"{arguments}: exit {result.code}, expected {code}; missing {missing}",
                  result.output)


refused(2, ["no command given", "train", "plan"])
refused(2, ["unknown command \"trian\"", "did you mean \"train\"?"], "trian")
refused(2, ["train: RUN is missing", "usage: moewright train RUN [OVERRIDES...]", "moewright train --help"], "train")
refused(2, ["export: CHECKPOINT, HF_DIR are missing"], "export")
refused(2, ["tokenize: INPUT, --tokenizer, --output are missing", "INPUT... --tokenizer VALUE"], "tokenize")
refused(2, ["unknown option \"--profiel\"", "did you mean \"--profile\"?"], "train", "run.toml", "--profiel")
refused(2, ["unexpected argument \"extra\""], "inspect", "run", "extra")
refused(2, ["unknown option \"--versoin\"", "did you mean \"--version\"?"], "--versoin")
for size in ("0", "5", "-1", "lots", "5XB", "1.5GB", "", "2EiB", "99999999999999999999GB"):
    refused(2, [f'--shard-size: expected 1000 to {2**60} bytes, for example 5GB or 500MiB, got "{size}"'],
            "export", "a", "b", "--shard-size", size)
refused(2, ["--threads"], "doctor", "--threads", "many")
refused(2, ["--dtype"], "export", "a", "b", "--dtype", "fp8")

for arguments in (["help"], ["--help"]):
    result = run(1, *arguments)
    checks.expect(result.code == 0 and "verify" in result.output, f"{arguments}: exit {result.code}", result.output)
for arguments in (["help", "train"], ["train", "--help"]):
    result = run(1, *arguments)
    checks.expect(result.code == 0 and "OVERRIDES" in result.output, f"{arguments}: exit {result.code}", result.output)
refused(2, ["unknown command \"trian\""], "help", "trian")

# Of the many .json files beside models and runs, a trace is the one that is described alone.
pathlib.Path("config.json").write_text("{}")
refused(4, ["config.json: the field \"traceEvents\" is missing", "of a checkpoint or a model, name the folder"], "inspect",
        "config.json")

# Options in place of keys, and what else is no run file.
refused(2, ["unknown option \"--steps\"", "did you mean train.steps=VALUE"], "train", "run.toml", "--steps", "5")
refused(2, ["did you mean train.steps=7"], "train", "run.toml", "--steps=7")
refused(2, ["did you mean \"--profile\"?"], "train", "run.toml", "--profil")
pathlib.Path("runs/b/step-00000002").mkdir(parents=True)
refused(3, ["runs/b is a run or checkpoint folder, not a run file", "`moewright inspect runs/b --run-file` prints"], "train",
        "runs/b")
pathlib.Path("runs/c").mkdir()
refused(3, ["runs/c is a folder, not a run file", "moewright init"], "train", "runs/c")
for text, words in (("[data]\npath = text\n", ["bad.toml:2: not valid TOML", "put text in double quotes"]),
                    ("[train]\nsteps = 3 4\n", ["bad.toml:2: not valid TOML", "correct this line"]),
                    ("[model]\npreset = \"mixtral-8x7b\"\nwidth = 64\n",
                     ["bad.toml:3: model.width = 64, but model.preset = \"mixtral-8x7b\"", "remove model.width"]),
                    ("[model]\npreset = \"mixtral-8x7b\"\n[train]\nepochs = 3\n",
                     ["bad.toml:4: unknown key \"train.epochs\"", "train.steps sets the length"])):
    pathlib.Path("bad.toml").write_text(text)
    refused(3, words, "train", "bad.toml")
pathlib.Path("bad.toml").write_text("[model]\npreset = \"mixtral-8x7b\"\n")
refused(3, ["command line: model.layers = 2, but model.preset"], "train", "bad.toml", "model.layers=2")

# Text that is not there: the key, and how to set it.
write_run_file()
refused(4, ["data.path = \"text\"", "there is no such file or folder", "data.path=FILE_OR_FOLDER"], "train", "run.toml")
write_corpus("text", files=1)
refused(4, ["data.val_path = \"absent\"", "data.val_path=FILE_OR_FOLDER"], "train", "run.toml", "data.val_path=absent",
        "train.val_batches=1")
refused(4, ["data.blend: "], "train", "run.toml", "data.path=", "data.kind=megatron", "data.blend=[\"1 absent\"]")

refused(5, ["checkpoint.resume: yes does not exist", "use auto", "none (start from scratch)"], "train", "run.toml",
        "checkpoint.resume=yes")
refused(4, ["log.jsonl = \"/proc/x/m.jsonl\": "], "train", "run.toml", "log.jsonl=/proc/x/m.jsonl")

for path, arguments in [("new/a.toml", ["init", "new/a.toml"]),
                        ("drawn/here/s.svg", ["schedule", "1f1b", "--svg", "drawn/here/s.svg"])]:
    result = run(1, *arguments)
    checks.expect(result.code == 0 and pathlib.Path(path).exists(), f"{arguments}: exit {result.code}", result.output)

# Editors on Windows begin files with a byte order mark.
pathlib.Path("mark.toml").write_bytes(b"\xef\xbb\xbf" + pathlib.Path("run.toml").read_bytes())
for name in ("run.toml", "mark.toml"):
    result = run(1, "finished", name, "checkpoint.dir=none")
    checks.expect(result.code == 1 and "0 of" in result.output, f"finished {name}: exit {result.code}", result.output)

# A full disk: no command that prints its result succeeds.
for arguments in (["init"], ["--help"], ["schedule", "1f1b"]):
    with open("/dev/full", "w") as full:
        done = subprocess.run([BIN, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    checks.expect(done.returncode == 4 and "standard output cannot be written" in done.stderr,
                  f"{arguments} to a full disk: exit {done.returncode}", done.stderr)
# What was meant by a wrong word, and which kind the data that is there has.
RUN = write_run_file("meant.toml")
pathlib.Path("tokens.idx").write_text("an index")
pathlib.Path("plain.txt").write_text("some text")
refused(3, ["did you mean \"cuda\"?"], "train", RUN, "train.device=gpu")
for key, word in (("train.device", "GPU"), ("train.device", "CPU"), ("train.dtype", "BF16"), ("mesh.schedule", "ZB_H1"),
                  ("model.preset", "Mixtral-8x7B"), ("moe.transport", "GATHER_WEIGHTS")):
    refused(3, [f'did you mean "{"cuda" if word == "GPU" else word.lower()}"?'], "train", RUN, f"{key}={word}")
refused(3, ["before the first [table]"], "train", RUN, "data.model=hf:x")
refused(4, ["tokens.idx is there: set data.kind=megatron"], "train", RUN, "data.path=tokens")
refused(4, ["is no prefix of .bin and .idx", "set data.kind=text"], "train", RUN, "data.kind=megatron", "data.path=plain.txt")
refused(3, ["empty one of them, with data.path= or data.blend=[]"], "train", RUN, "data.path=plain.txt", 'data.blend=["1 plain.txt"]')
pathlib.Path("lines.jsonl").write_text("{}" * 4000)
for path, doubted in (("lines.jsonl", True), ("plain.txt", False)):
    pathlib.Path("plain.txt").write_text("some text " * 800)
    result = run(1, "train", RUN, f"data.path={path}", "data.val_fraction=0", "train.val_batches=0", "--dry-run")
    checks.expect(result.code == 0 and ("is no plain text by its name" in result.output) == doubted, f"{path}: the doubt",
                  result.output)
pathlib.Path("plain.txt").write_bytes(b"\0binary" * 800)
result = run(1, "train", RUN, "data.path=plain.txt", "data.val_fraction=0", "train.val_batches=0", "--dry-run")
checks.expect(result.code == 0 and "plain.txt holds NUL bytes" in result.output, "NUL bytes: the doubt", result.output)
checks.finish()
