"""A damaged checkpoint is refused by name with exit code 5 and an older complete one is offered; an incomplete one is
passed over."""

import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import (Checks, checkpoints, outputs, read_metrics, run, same_bits,  # noqa: E402
                   write_corpus, write_run_file)

checks = Checks()
write_corpus("text")
RUN = write_run_file()
COMMON = ["train.steps=6", "checkpoint.every=2"]
result = run(1, "train", RUN, *outputs("run"), *COMMON)
checks.expect(result.code == 0 and checkpoints("run") == [2, 4, 6], f"the run itself: exit {result.code}",
              result.output)
FOLDER = pathlib.Path("run/checkpoints")
shutil.rmtree(FOLDER / "step-00000006")
WHOLE = read_metrics("run")
NEWEST, OLDER, SAVED = FOLDER / "step-00000004", FOLDER / "step-00000002", pathlib.Path("saved")
shutil.copytree(NEWEST, SAVED)
RANK_FILE, INDEX, DONE = "rank-00000.safetensors", "index.json", "DONE"


def flip(path, offset, bit=1):
    data = bytearray(path.read_bytes())
    data[offset] ^= bit
    path.write_bytes(data)


def cut(path, size):
    with open(path, "r+b") as file:
        file.truncate(size)


def restore():
    shutil.rmtree(NEWEST)
    shutil.copytree(SAVED, NEWEST)


def refused(label, damage, *parts, resume=NEWEST, cure="(train: checkpoint.resume="):
    """Damages the newest checkpoint and expects its refusal, by the names in `parts`."""
    damage()
    damaged = run(1, "train", RUN, *COMMON, f"checkpoint.resume={resume}")
    checks.expect(damaged.code == 5, f"{label}: exit {damaged.code}, expected 5", damaged.output)
    for part in [*parts, "step-00000004", "hint:", f"{cure}{OLDER}"]:
        checks.expect(part in damaged.output, f"{label}: no \"{part}\"", damaged.output)
    restore()


def tensors():
    """Name and byte range in the file of every tensor of the rank's file."""
    data = (SAVED / RANK_FILE).read_bytes()
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:8 + length])
    return {name: [8 + length + at for at in entry["data_offsets"]] for name, entry in entries.items()
            if name != "__metadata__"}


size = (SAVED / RANK_FILE).stat().st_size
for length in (0, 7, 100, size // 2, size - 1):
    refused(f"{RANK_FILE} cut to {length} bytes", lambda: cut(NEWEST / RANK_FILE, length), RANK_FILE)
refused(f"{RANK_FILE} longer", lambda: open(NEWEST / RANK_FILE, "ab").write(b"x"), RANK_FILE)
refused(f"{RANK_FILE} gone", lambda: (NEWEST / RANK_FILE).unlink(), RANK_FILE)
(NEWEST / RANK_FILE).unlink()
result = run(1, "inspect", NEWEST)
checks.expect(result.code == 5 and f"is broken: 1 of its files is missing, the first is {RANK_FILE}" in result.output,
              f"inspect of a checkpoint without its file: exit {result.code}", result.output)
restore()

choose = random.Random(3)
places = tensors()
for kind in ("param.", "adam_m.", "adam_v."):
    names = sorted(name for name in places if name.startswith(kind))
    for name in {names[0], names[-1], choose.choice(names)}:
        begin, end = places[name]
        at = choose.choice([begin, end - 1, (begin + end) // 2])
        refused(f"a flipped bit in {name}", lambda: flip(NEWEST / RANK_FILE, at, 1 << choose.randrange(8)), RANK_FILE,
                f"\"{name}\" is corrupt")

index_size = (SAVED / INDEX).stat().st_size
for at in (0, index_size // 2, index_size - 2):
    refused(f"a flipped bit in {INDEX} at {at}", lambda: flip(NEWEST / INDEX, at), INDEX, "checksum")
refused(f"{INDEX} cut", lambda: cut(NEWEST / INDEX, index_size // 2), INDEX)
refused(f"{INDEX} gone", lambda: (NEWEST / INDEX).unlink(), INDEX)
refused("a flipped bit in DONE", lambda: flip(NEWEST / DONE, 3), INDEX)
refused("an empty DONE", lambda: cut(NEWEST / DONE, 0), INDEX)
refused("a trailing slash", lambda: cut(NEWEST / DONE, 0), INDEX, resume=f"{NEWEST}/")
refused("no DONE", lambda: (NEWEST / DONE).unlink(), DONE, cure="the newest complete checkpoint there is ")

# One that was not written to the end is passed over, and named.
(NEWEST / DONE).unlink()
passed = run(1, "train", RUN, *COMMON, *outputs("run"), "checkpoint.resume=auto", "train.steps=3", "checkpoint.every=0")
checks.expect(passed.code == 0 and f"passed over {NEWEST}: it was not written to the end" in passed.output
              and f"resumed from {OLDER}" in passed.output, f"an unfinished one: exit {passed.code}", passed.output)
shutil.rmtree(FOLDER / "step-00000003")
restore()

# A damaged but complete one is not passed over in silence: the user decides.
flip(NEWEST / RANK_FILE, size - 1)
damaged = run(1, "train", RUN, *COMMON, *outputs("run"), "checkpoint.resume=auto")
checks.expect(damaged.code == 5 and f"checkpoint.resume={OLDER}" in damaged.output, f"auto: exit {damaged.code}",
              damaged.output)
restore()

# Going back to an older one is refused while newer ones are in the way, and nothing of them is lost.
metrics = pathlib.Path("run/metrics.jsonl").read_bytes()
back = run(1, "train", RUN, *COMMON, *outputs("run"), "checkpoint.keep=1", f"checkpoint.resume={OLDER}")
checks.expect(back.code == 5 and "other checkpoints from there on: step-00000004" in back.output and "hint:" in back.output,
              f"back to an older one: exit {back.code}", back.output)
checks.expect(checkpoints("run") == [2, 4], f"back to an older one: {checkpoints('run')} are left")
checks.expect(pathlib.Path("run/metrics.jsonl").read_bytes() == metrics, "back to an older one: the metrics changed")
branch = run(1, "train", RUN, *COMMON, *outputs("branch"), f"checkpoint.resume={OLDER}")
checks.expect(branch.code == 0 and checkpoints("branch") == [4, 6] and "changed since" not in branch.output,
              f"a branch of its own: exit {branch.code}", branch.output)

# What makes the rest of the run another one is said.
other = run(1, "train", RUN, *COMMON, *outputs("other"), f"checkpoint.resume={OLDER}", "train.seed=99", "train.lr=1e-4")
checks.expect(other.code == 0 and "changed since the checkpoint: train.lr = 0.0001 (was 0.003), train.seed = 99 (was 1)" in other.output
              and "warning: train.seed changed: of the samples" in other.output, f"another seed: exit {other.code}",
              other.output)

# A checkpoint of the same step in the run's own folder is not the one that it was told to go on from.
foreign = run(1, "train", RUN, *COMMON, "train.steps=4", "checkpoint.dir=branch/checkpoints",
              f"checkpoint.resume={NEWEST}")
checks.expect(foreign.code == 5 and "other checkpoints from there on: step-00000004" in foreign.output,
              f"another run's folder: exit {foreign.code}", foreign.output)

# Two runs in one folder: the second says who is there.
with open("held", "w") as held:
    first = subprocess.Popen([os.environ["MOEWRIGHT_BIN"], "train", str(RUN), *COMMON, "checkpoint.dir=held-checkpoints",
                              "train.steps=100000", "train.threads=1"], stdout=held, stderr=held)
    until = time.time() + 60
    while not pathlib.Path("held-checkpoints/writer.lock").exists() and time.time() < until:
        time.sleep(0.05)
    second = run(1, "train", RUN, *COMMON, "checkpoint.dir=held-checkpoints")
    first.kill()
    first.wait()
checks.expect(second.code == 5 and f"is locked: process {first.pid} on" in second.output,
              f"a second run in one folder: exit {second.code}", second.output)

# Another model's checkpoint is named as such.
other = run(1, "train", RUN, *COMMON, f"checkpoint.resume={NEWEST}", "model.experts=6")
checks.expect(other.code == 5 and "model.experts was 8 in the checkpoint, is 6 now" in other.output and
              "away" not in other.output, f"another model: exit {other.code}", other.output)

# An incomplete newest one is passed over, and the run ends where the first did.
(NEWEST / DONE).unlink()
resumed = run(1, "train", RUN, *COMMON, *outputs("run"), "checkpoint.resume=auto")
checks.expect(resumed.code == 0 and re.search(r"resumed from \S*step-00000002 after step 2", resumed.output),
              f"an incomplete newest: exit {resumed.code}", resumed.output)
same_bits(checks, "from the older checkpoint", WHOLE, read_metrics("run"))
checks.finish()
