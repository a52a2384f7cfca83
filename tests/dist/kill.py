"""kill -9 of one rank at a random moment: the job ends at once with the reason, and a restart continues from the newest
complete checkpoint with the very same numbers."""

import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import (Checks, Job, checkpoints, expect_killed, outputs, read_metrics, run, same_bits,  # noqa: E402
                   write_corpus, write_run_file)

STEPS = 200  # more than three kills and their delays can take
seed = int(os.environ.get("KILL_SEED", time.time_ns() % 1_000_000))
print(f"KILL_SEED={seed}", flush=True)  # repeats this run's choices
choose = random.Random(seed)
checks = Checks()
write_corpus("text")
RUN = write_run_file()
# As if four ranks were on two nodes, each of them is a gateway of others' rows.
LAYOUTS = {2: ["mesh.ep=2"], 4: ["mesh.ep=4", "mesh.ranks_per_node=2", "moe.transport=bypass"]}


def arguments(name, ranks):
    return ["train", RUN, *outputs(name), f"train.steps={STEPS}", "checkpoint.every=2", "checkpoint.resume=auto",
            *LAYOUTS[ranks]]


def kill_one(name, ranks):
    """At the step after those that are saved plus a few, or, now and then, anywhere in the start."""
    saved = max(checkpoints(name), default=0)
    step, delay = saved + choose.randrange(0, 15), choose.uniform(0, 0.1)
    job = Job(ranks, *arguments(name, ranks))
    if step > saved:
        began = job.wait_until(lambda: f"\nstep {step}/" in job.output())
    else:
        delay *= 5
        began = job.wait_until(lambda: len(job.rank_pids()) == ranks)
    time.sleep(delay)
    pids = job.rank_pids()
    if not checks.expect(began and len(pids) == ranks and job.running(), f"{name}: ended before step {step}",
                         job.output()):
        job.end()
        return
    victim = choose.randrange(ranks)
    os.kill(pids[victim], signal.SIGKILL)
    killed = time.monotonic()
    code = expect_killed(checks, name, job)
    seconds = time.monotonic() - killed
    moment = f"{delay * 1e3:.0f} ms after {f'step {step}' if step > saved else 'its start'}"
    print(f"{name}: killed process {victim} of {ranks} {moment}; the job ended after {seconds:.1f} s with "
          f"code {code}; complete checkpoints {checkpoints(name)}", flush=True)
    checks.expect(seconds < 15, f"{name}: the job took {seconds:.0f} s to end", job.output())
    if step > saved and victim > 0:  # rank 0 watches the others from the first step on
        checks.expect(f"the connection to rank {victim}" in job.output(), f"{name}: rank 0 does not name rank {victim}",
                      job.output())


for ranks, times in ((2, 3), (4, 1)):
    whole = f"whole-{ranks}"
    result = run(ranks, *arguments(whole, ranks))
    checks.expect(result.code == 0, f"{whole}: exit {result.code}", result.output)
    name = f"killed-{ranks}"
    for _ in range(times):
        kill_one(name, ranks)
    result = run(ranks, *arguments(name, ranks))
    checks.expect(result.code == 0, f"{name} resumed: exit {result.code}", result.output)
    same_bits(checks, f"-np {ranks}: killed and resumed", read_metrics(whole), read_metrics(name))
checks.finish()
