"""Mistakes on the command line: what is wrong, the usage of the command, what may have been meant; `help`; folders of
outputs are created."""

import os
import pathlib
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, run, write_corpus, write_run_file  # noqa: E402

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
refused(2, ["unexpected argument \"extra\""], "report", "run", "extra")
refused(2, ["--threads"], "doctor", "--threads", "many")
refused(2, ["--dtype"], "export", "a", "b", "--dtype", "fp8")

for arguments in (["help"], ["--help"]):
    result = run(1, *arguments)
    checks.expect(result.code == 0 and "verify" in result.output, f"{arguments}: exit {result.code}", result.output)
for arguments in (["help", "train"], ["train", "--help"]):
    result = run(1, *arguments)
    checks.expect(result.code == 0 and "OVERRIDES" in result.output, f"{arguments}: exit {result.code}", result.output)
refused(2, ["unknown command \"trian\""], "help", "trian")

# Text that is not there: the key, and how to set it.
write_run_file()
refused(4, ["data.path = \"text\"", "there is no such file or folder", "data.path=FILE_OR_FOLDER"], "train", "run.toml")
write_corpus("text", files=1)
refused(4, ["data.val_path = \"absent\"", "data.val_path=FILE_OR_FOLDER"], "train", "run.toml", "data.val_path=absent",
        "train.val_batches=1")
refused(4, ["data.blend: "], "train", "run.toml", "data.path=", "data.kind=megatron", "data.blend=[\"1 absent\"]")

for path, arguments in [("new/a.toml", ["init", "new/a.toml"]),
                        ("drawn/here/s.svg", ["schedule", "1f1b", "--svg", "drawn/here/s.svg"])]:
    result = run(1, *arguments)
    checks.expect(result.code == 0 and pathlib.Path(path).exists(), f"{arguments}: exit {result.code}", result.output)
checks.finish()
