"""Training on two ranks, stopped by SIGTERM to one of them and resumed: the numbers of an uninterrupted run."""

import os
import signal
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import (Checks, Job, checkpoints, last_step, outputs, read_metrics, run, same_bits,  # noqa: E402
                   write_corpus, write_run_file)

checks = Checks()
write_corpus("text")
RUN = write_run_file()
COMMON = ["mesh.ep=2", "train.steps=30", "checkpoint.resume=auto", "train.dtype=bf16"]

result = run(2, "train", RUN, *outputs("whole"), *COMMON)
checks.expect(result.code == 0, f"whole: exit {result.code}", result.output)
job = Job(2, "train", RUN, *outputs("parts"), *COMMON)
job.wait_until(lambda: last_step("parts") >= 4)
pids = job.rank_pids()
if checks.expect(len(pids) == 2, f"{len(pids)} ranks to signal", job.output()):
    os.kill(pids[1], signal.SIGTERM)
code = job.wait()
checks.expect(code == 0 and "stopped on request" in job.output(), f"stopped: exit {code}", job.output())
print(f"stopped after step {last_step('parts')}, checkpoints {checkpoints('parts')}")
checks.expect(checkpoints("parts") == [last_step("parts")], "no checkpoint of the last step")
result = run(2, "train", RUN, *outputs("parts"), *COMMON)
checks.expect(result.code == 0, f"resumed: exit {result.code}", result.output)
same_bits(checks, "stopped and resumed", read_metrics("whole"), read_metrics("parts"))
checks.finish()
