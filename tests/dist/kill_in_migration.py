"""A rank that dies at any message of a migration loses nothing: the job ends with the reason, and the run that resumes from
the newest checkpoint has the numbers and the weights of an uninterrupted one. Of the second migration of a run, all messages in
one layout and every third in another, in turn every rank's; one commit tries one in each layout, this line all 31:

    MOEWRIGHT_TEST_ALL=1 ctest --preset cpu-release -R kill_in_migration -V
"""

import os
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import (Checks, Job, checkpoints, expect_killed, in_turn, outputs, read_metrics, run, same_bits,  # noqa: E402
                   same_folders, write_corpus, write_run_file)

# A model that `export` knows as GLM-4.5.
KEYS = ["train.steps=5", "checkpoint.every=1", "checkpoint.resume=auto", "debug.migrate=true", "model.score=sigmoid",
        "model.selection_bias=true"]
LAYOUTS = {  # and the messages, counted from the start of the run: a checkpoint is there
    "by-node": (["mesh.ep=4", "moe.transport=halo", "mesh.ranks_per_node=2"], range(37, 71, 3)),
    "sharded": (["mesh.ep=2", "mesh.zero=1", "train.dtype=bf16"], range(19, 38))}
checks = Checks()
write_corpus("text")
RUN = write_run_file()


def finish(name, *keys):
    result = run(4, "train", RUN, *outputs(name), *KEYS, *keys)
    checks.expect(result.code == 0, f"{name}: exit {result.code}", result.output)
    result = run(1, "export", f"{name}/checkpoints/step-00000005", f"{name}/out")
    checks.expect(result.code == 0, f"{name}: export: exit {result.code}", result.output)


for layout, (keys, messages) in LAYOUTS.items():
    whole = f"{layout}-whole"
    finish(whole, *keys)
    for message in in_turn(messages, len(messages)):
        name = f"{layout}-{message}"
        expect_killed(checks, name, Job(4, "train", RUN, *outputs(name), *KEYS, *keys, f"debug.kill={message}"))
        saved, reached = max(checkpoints(name), default=0), max(read_metrics(name), default=0)
        print(f"{name}: rank {message % 4} died in the migration after step {reached + 1}; checkpoint {saved}", flush=True)
        checks.expect(saved > 0, f"{name}: died before the first checkpoint")
        finish(name, *keys)
        same_bits(checks, name, read_metrics(whole), read_metrics(name))
        same_folders(checks, name, f"{whole}/out", f"{name}/out")
checks.finish()
