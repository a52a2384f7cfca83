"""`finished` tells a job script whether to start a run again: by its newest complete checkpoint, whatever ended it."""

import os
import pathlib
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, run, write_corpus, write_run_file  # noqa: E402

checks = Checks()
write_corpus("text", files=1)
write_run_file()


def finished(code, words, *overrides):
    result = run(1, "finished", "run.toml", *overrides)
    checks.expect(result.code == code and words in result.output, f"{overrides}: exit {result.code}, not {code}",
                  result.output)


RUN = ["checkpoint.dir=run", "train.steps=6"]
finished(1, f"0 of 6 steps are saved: run does not exist (relative to {os.getcwd()})", *RUN)
finished(1, "0 of 6 steps are saved: /absent/run does not exist\n", "checkpoint.dir=/absent/run", "train.steps=6")
checks.expect(not pathlib.Path("run").exists(), "finished makes no folder")
trained = run(1, "train", "run.toml", "checkpoint.dir=run", "train.steps=4")
checks.expect(trained.code == 0, f"train: exit {trained.code}", trained.output)
finished(1, "4 of 6 steps", *RUN)
finished(0, "4 of 4 steps", "checkpoint.dir=run", "train.steps=4")
finished(0, "all 3 steps are saved in run, which goes on to step 4", "checkpoint.dir=run", "train.steps=3")
pathlib.Path("run", "step-00000006").mkdir()  # half-written: no DONE
finished(1, "4 of 6 steps", *RUN)
finished(3, "checkpoint.dir is empty", "train.steps=4")
finished(3, "unknown key", *RUN, "train.stepz=4")

# A run whose newest checkpoint cannot be read is not complete.
weights = next(pathlib.Path("run", "step-00000004").glob("*.safetensors"))
whole = weights.read_bytes()
for damage in (b"", whole[:-100]):
    weights.write_bytes(damage)
    finished(5, "is refused", "checkpoint.dir=run", "train.steps=4")
    inspected = run(1, "inspect", "run")
    checks.expect(inspected.code == 5 and weights.name in inspected.output, f"inspect: exit {inspected.code}", inspected.output)
weights.unlink()
finished(5, "1 of its files is missing", "checkpoint.dir=run", "train.steps=4")
weights.write_bytes(whole)
finished(0, "4 of 4 steps", "checkpoint.dir=run", "train.steps=4")
pathlib.Path("run", "step-00000004", "index.json").write_text("{}")
finished(5, "is refused", "checkpoint.dir=run", "train.steps=4")
checks.finish()
