"""`train --dry-run` meets what a run would meet before its first step and writes nothing; a disk that is too small for the
checkpoints of a run is refused before the first step, and no folder of a checkpoint stays."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import BIN, Checks, outputs, run, write_corpus, write_run_file  # noqa: E402

checks = Checks()
write_corpus("text")
write_run_file()


def names():
    return {str(path) for path in pathlib.Path(".").rglob("*") if not path.name.startswith("job-")}


def dry_run(ranks, code, texts, *overrides):
    before = names()
    result = run(ranks, "train", "run.toml", "--dry-run", *overrides)
    checks.expect(result.code == code, f"{overrides}: exit {result.code}, expected {code}", result.output)
    for text in texts:
        checks.expect(re.search(text, result.output), f"{overrides}: no {text!r}", result.output)
    checks.expect(names() == before, f"{overrides}: made {names() - before}")
    checks.expect("step 1/" not in result.output, f"{overrides}: trained", result.output)
    return result.output


everything = [*outputs("run"), "log.trace=trace/t.json", "log.tensorboard=tb", "checkpoint.every=5"]
for ranks in (1, 2):
    text = dry_run(ranks, 0, ["nothing was written", r"steps: 1 to 12, \d+ samples of \d+ tokens each, [\d.]+ k? ?tokens in all", "3 steps of warm-up to 0.003, then cosine",
                              r"the largest rank needs [\d.]+ MiB; the smallest share of free memory is", "drawn at random",
                              r"every 5 steps in run/checkpoints: up to 3 more of [\d.]+ KiB at a time, [\d.]+ (KiB|MiB) in all; [\d.]+ \wiB\s+free",
                              r"mesh \d rank"],
                   *everything, f"mesh.ep={ranks}")
    checks.expect(text.count("dry run:") == 1, f"{ranks} ranks: told more than once", text)
dry_run(1, 0, ["one at the end in run: up to 1 more"], "checkpoint.dir=run")
dry_run(1, 0, ["checkpoints: none"])
dry_run(1, 0, [r"warning: data\.val_fraction = 0\.05 asks for 5 % of data\.path = \"text\""], "data.val_fraction=0.05")

# What a run would refuse.
dry_run(1, 4, ["cannot read absent|absent"], "data.path=absent")
dry_run(1, 3, ["mesh.ep = 3 does not divide", "start more ranks: mpirun -np 3"], "mesh.ep=3")
dry_run(1, 3, ["the run has 1 rank", "start more ranks: mpirun -np 4"], "mesh.tp=2", "mesh.pp=2")
pathlib.Path("empty.txt").write_text("")
dry_run(1, 4, ["the file is empty", "name a file with text"], "data.path=empty.txt")
dry_run(1, 0, ["64 threads share the"], "train.threads=64")
dry_run(1, 6, ["free memory is"], "model.experts=60000", "model.expert_width=100000")
dry_run(1, 5, ["checkpoint.resume: absent does not exist"], "checkpoint.resume=absent")
dry_run(1, 5, ["run.toml is not a folder"], "checkpoint.dir=run.toml/a")
dry_run(1, 4, ["run.toml is not a folder"], "log.jsonl=run.toml/a/metrics.jsonl")
pathlib.Path("folder").mkdir()
dry_run(1, 4, ["log.jsonl: cannot write folder: it is a folder"], "log.jsonl=folder")
pathlib.Path("notes.txt").write_text("not metrics\n")
dry_run(1, 4, ['log.jsonl = "notes.txt": line 1 is no JSON object: not metrics'], "log.jsonl=notes.txt")
# Checkpoints and metrics that the next start would take for text; a hidden folder is not searched.
IN_TEXT = r"would write text/\S+ into data.path = \"text\", and the next start would read it as text"
dry_run(1, 3, ["checkpoint.dir " + IN_TEXT, "hint: set checkpoint.dir to a place outside"], "checkpoint.dir=text/runs/a")
dry_run(1, 3, ["checkpoint.dir " + IN_TEXT], "checkpoint.dir=text", "log.jsonl=lines.jsonl", 'data.suffixes=[".txt", ""]')
dry_run(1, 3, ["log.jsonl " + IN_TEXT], "log.jsonl=text/lines.txt", 'data.suffixes=[".txt"]')
dry_run(1, 3, [r"would write \./run/\S+ into data.val_path"], "checkpoint.dir=./run", "data.val_path=.")
for overrides in (["checkpoint.dir=text/run", 'data.suffixes=[".txt"]'], ["checkpoint.dir=text/.runs/a"], ["checkpoint.dir=text-run"],
                  ["checkpoint.dir=text/../run"]):
    dry_run(1, 0, ["nothing was written"], *overrides)
result = run(1, "train", "run.toml", *outputs("run"), "log.jsonl=folder")
checks.expect(result.code == 4 and "log.jsonl: cannot write folder" in result.output and "step 1/" not in result.output,
              f"log.jsonl: exit {result.code}", result.output)

# Lines of an earlier run are renamed, which their folder must allow, and continued by a run that resumes. Root may write
# anywhere: then another user tries.
with tempfile.TemporaryDirectory() as place:
    os.chmod(place, 0o755)
    program = shutil.copy(BIN, place)
    for name in ("run.toml", "text"):
        (shutil.copytree if os.path.isdir(name) else shutil.copy)(name, f"{place}/{name}")
    user = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    for folder_mode, file_mode, code in ((0o777, 0o444, 0), (0o555, 0o666, 4), (0o555, 0o444, 4)):
        folder = pathlib.Path(place, f"{folder_mode:o}-{file_mode:o}")
        folder.mkdir()
        (folder / "metrics.jsonl").write_text('{"step": 1}\n')
        os.chmod(folder / "metrics.jsonl", file_mode)
        os.chmod(folder, folder_mode)
        done = subprocess.run([*user, program, "train", "run.toml", "--dry-run", f"log.jsonl={folder}/metrics.jsonl"],
                              cwd=place, capture_output=True, text=True)
        told = done.stdout + done.stderr
        os.chmod(folder, 0o755)  # so that it can be removed
        checks.expect(done.returncode == code and (code == 0 or "log.jsonl: cannot write into" in told),
                      f"lines {file_mode:o} in a folder {folder_mode:o}: exit {done.returncode}", told)
dry_run(1, 4, [r"expected an id in \[0, 90\)"], "model.vocab=90")

# A run that goes on from a checkpoint, and one that may not begin beside it.
result = run(1, "train", "run.toml", *outputs("run"), "train.steps=4")
checks.expect(result.code == 0, "train", result.output)
dry_run(1, 0, ["resumed from run/checkpoints/step-00000004 after step 4, 64 samples", "steps: 5 to 12"], *everything, "checkpoint.resume=auto")
dry_run(1, 5, ["would start from scratch"], *everything)
dry_run(1, 5, [r"param.embed is \[256, 32\], the model's is \[256, 64\]", "model.width was 32"], *everything,
        "checkpoint.resume=auto", "model.width=64")
result = run(1, "train", "run.toml", "checkpoint.dir=muon", "train.steps=2", "train.optimizer=muon")
checks.expect(result.code == 0, "train with Muon", result.output)
dry_run(1, 5, [r"tensor adam_v\S+ is missing"], "checkpoint.dir=muon", "checkpoint.resume=auto")
shard = pathlib.Path("run/checkpoints/step-00000004/rank-00000.safetensors")
shard.rename("shard")
dry_run(1, 5, ["1 of its files is missing"], *everything, "checkpoint.resume=auto")
pathlib.Path("shard").rename(shard)

# More checkpoints than any disk holds: refused with the numbers before the first step, in a dry run and in a run.
huge = ["checkpoint.keep=1000000", "checkpoint.every=1", "train.steps=1000000000", "model.vocab=16384"]
told = [r"up to 1000001 more checkpoints of [\d.]+ MiB at a time", r"checkpoint.keep = 1000000", r"are free", r"hint: checkpoint.keep=\d+ fits|hint: free space"]
dry_run(1, 5, told, "checkpoint.dir=huge", *huge)
result = run(1, "train", "run.toml", "checkpoint.dir=huge", "log.jsonl=huge/metrics.jsonl", *huge)
for text in told:
    checks.expect(result.code == 5 and re.search(text, result.output), f"train: exit {result.code}, no {text!r}", result.output)
checks.expect("step 1/" not in result.output and not list(pathlib.Path("huge").glob("step-*")), "train: began", result.output)
checks.finish()
