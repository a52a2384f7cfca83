"""What ends a job early ends it for all ranks, at once, with the reason: a rank killed, a mistake on every rank, and a
value that is not finite on one."""

import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, Job, last_step, outputs, run, write_corpus, write_run_file  # noqa: E402

checks = Checks()
write_corpus("text")
RUN = write_run_file()

job = Job(2, "train", RUN, *outputs("killed"), "mesh.ep=2", "train.steps=5000")
job.wait_until(lambda: last_step("killed") >= 3)
pids = job.rank_pids()
if checks.expect(len(pids) == 2, f"{len(pids)} ranks to kill", job.output()):
    os.kill(pids[1], signal.SIGKILL)
killed = time.monotonic()
code = job.wait(60)
print(f"killed: code {code} after {time.monotonic() - killed:.1f} s")
checks.expect(code > 0 and time.monotonic() - killed < 15, f"killed: code {code}", job.output())
# Told by the launcher, or by UCX, when the other rank was about to read the memory of the lost one.
checks.expect(re.search(r"signal 9|Killed|KILLED|No such process", job.output()), "killed: no reason given", job.output())

for overrides, code, part in [
    (["mesh.ep=2", "debug.fault=nan_gradient"], 7, "first bad gradient on rank"),
    (["mesh.ep=2", "data.path=absent"], 4, "absent"),
    (["mesh.ep=3"], 3, "mesh.ep = 3"),
] + 10 * [(["mesh.ep=2", "data.path=absent"], 4, "absent")]:  # a launcher may lose the last words, but not each time
    result = run(2, "train", RUN, *overrides)
    print(f"{overrides}: code {result.code}, {result.seconds:.1f} s")
    checks.expect(result.code == code and part in result.output and "hint:" in result.output,
                  f"{overrides}: exit {result.code}, expected {code} and \"{part}\"", result.output)
checks.finish()
