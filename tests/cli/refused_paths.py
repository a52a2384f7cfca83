"""Paths that the file system refuses end with the exit code of what was asked for and a hint, never as a bug of ours."""

import os
import pathlib
import shutil
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, SOURCE, run, write_corpus, write_run_file  # noqa: E402

checks = Checks()
LONG = "x" * 300


def refused(label, code, *arguments):
    result = run(1, *arguments)
    checks.expect(result.code == code and "hint:" in result.output, f"{label}: exit {result.code}, expected {code}",
                  result.output)


write_corpus("text", files=2)
RUN = write_run_file()
refused("init", 4, "init", LONG)
for suffix in ("", ".safetensors", ".idx", ".bin"):
    refused(f"inspect {suffix}", 4, "inspect", LONG + suffix)
refused("inspect of nothing", 4, "inspect", "absent")
refused("checkpoint.resume", 5, "train", RUN, f"checkpoint.resume={LONG}")
refused("checkpoint.dir", 5, "train", RUN, f"checkpoint.dir={LONG}")
refused("log.jsonl", 4, "train", RUN, "train.steps=1", f"log.jsonl={LONG}")
refused("log.trace", 4, "train", RUN, "train.steps=1", f"log.trace={LONG}")
# A trace that the last step cannot write costs no more than itself; its folder is made.
result = run(1, "train", RUN, "train.steps=2", "log.trace=traces/new/trace.json", "checkpoint.dir=traced")
checks.expect(result.code == 0 and pathlib.Path("traces/new/trace.json").stat().st_size > 0,
              f"a trace in a new folder: exit {result.code}", result.output)
checks.expect([p.name for p in pathlib.Path("traces/new").iterdir()] == ["trace.json"], "the trace left more than itself")
result = run(1, "train", RUN, "train.steps=2", "log.trace=/dev/full", "checkpoint.dir=untraced")
checks.expect(result.code == 0 and "there is no trace" in result.output and
              pathlib.Path("untraced/step-00000002/DONE").exists(), f"no room for a trace: exit {result.code}",
              result.output)
# A folder in place of a file is refused before the work, and not when its result is to be written.
pathlib.Path("folder").mkdir()
for key in ("log.trace", "log.jsonl"):
    for option in ([], ["--dry-run"]):
        for folder in ("folder", "absent/"):
            refused(f"{key}={folder} {option}", 4, "train", RUN, "train.steps=1", f"{key}={folder}", *option)
result = run(1, "probe", "--budget", "1s", "-o", "folder")
checks.expect(result.code == 4 and "cannot write folder: it is a folder" in result.output and "[1/" not in result.output,
              f"probe: exit {result.code}", result.output)
result = run(1, "probe", "--budget", "1s", "-o", RUN)
checks.expect(result.code == 2 and f"{RUN} exists and is no profile" in result.output, f"probe over a run file: exit {result.code}",
              result.output)
refused("validation without data", 3, "train", RUN, "train.val_every=2", "train.val_batches=1", "data.val_fraction=0")
refused("import", 3, "import", LONG, "out")
for path, what in (("absent", "absent does not exist"), ("text", "text is no Hugging Face model folder: it has no config.json"), (RUN, "is a file"),
                   ("untraced", "is a run folder"), ("untraced/step-00000002", "is a checkpoint")):
    result = run(1, "import", path, "out")
    checks.expect(result.code == 3 and what in result.output and "hint:" in result.output and "hf:" not in result.output,
                  f"import {path}: exit {result.code}", result.output)
checks.expect(not pathlib.Path("out").exists(), "a refused import leaves a folder")
refused("export of nothing", 5, "export", LONG, "out")

# An export that cannot copy the tokenizer: something of that name is in the way.
shutil.copytree(SOURCE / "tests/golden/models/mixtral_top1", "model")
pathlib.Path("model/tokenizer.json").write_text("{}")
result = run(1, "import", "model", "imported")
checks.expect(result.code == 0, f"import: exit {result.code}", result.output)
pathlib.Path("exported/tokenizer.json").mkdir(parents=True)
refused("export", 4, "export", "imported/step-00000000", "exported")
refused("export to a long path", 4, "export", "imported/step-00000000", LONG)
checks.finish()
