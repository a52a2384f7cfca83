"""A checkpoint that cannot be written between two steps costs a run nothing but that checkpoint: all ranks go on, also
where one of them fails alone, and what was written of it is removed. At the end of a run, or on a signal, it is an
error. A limit of the file size of one rank stands for a full disk; root also fills a small file system."""

import os
import pathlib
import re
import resource
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import (Checks, Job, checkpoints, last_step, outputs, read_metrics, run, same_bits,  # noqa: E402
                   unwrapped, write_corpus, write_run_file)

checks = Checks()
write_corpus("text")
RUN = write_run_file()
LONG = ["train.steps=100000", "train.schedule=constant", "train.global_batch=64", "mesh.ep=2"]
SAVES = ["checkpoint.every=5", "checkpoint.keep=2", "checkpoint.resume=auto"]
WARNING = re.compile(r"warning: no checkpoint of step (\d+) in (.*?); training goes on, the last complete checkpoint is "
                     r"of step (\d+), the next save is tried at step (\d+); ")


def limit(job, rank, size):
    """Limits files that a rank writes; the run ignores SIGXFSZ, so that its writes fail."""
    pid = job.rank_pids()[rank]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))


def warnings(job):
    return WARNING.findall(unwrapped(job.output()))


def remains(name):
    """What lies in folders of checkpoints that are not complete."""
    folder = pathlib.Path(name, "checkpoints")
    return [str(path) for step in folder.glob("step-*") if not (step / "DONE").exists() for path in step.iterdir()]


def fails_and_recovers(name, *overrides):
    """Rank 1 alone cannot write for a while."""
    job = Job(2, "train", RUN, *outputs(name), *LONG, *SAVES, *overrides)
    started = job.wait_until(lambda: checkpoints(name) and last_step(name) >= 6)
    if not checks.expect(started, f"{name}: no first checkpoint", job.output()):
        return job.end()
    limit(job, 1, 4096)
    if not checks.expect(job.wait_until(lambda: len(warnings(job)) >= 2), f"{name}: did not go on", job.output()):
        return job.end()
    failed = warnings(job)
    for step, reason, last, following in failed:
        checks.expect("rank-00001.safetensors" in reason and "File too large" in reason, f"{name}: reason {reason}")
        checks.expect(f"{name}/checkpoints/step-{int(step):08}" in reason, f"{name}: no folder in {reason}")
        checks.expect(int(following) == int(step) + 5, f"{name}: after {step} the next one is {following}")
    checks.expect(int(failed[0][2]) == int(failed[0][0]) - 5 and failed[1][2] == failed[0][2],
                  f"{name}: last complete steps of {failed}")
    gone = pathlib.Path(name, "checkpoints", f"step-{int(failed[0][0]):08}")
    checks.expect(not gone.exists(), f"{name}: {gone} is left")
    output = job.output()
    checks.expect(output.count(f"no checkpoint of step {failed[0][0]} ") == 1, f"{name}: warned more than once", output)
    limit(job, 1, resource.RLIM_INFINITY)
    last = int(warnings(job)[-1][0])
    if not checks.expect(job.wait_until(lambda: max(checkpoints(name), default=0) > last), f"{name}: no later checkpoint",
                         job.output()):
        return job.end()
    os.kill(job.rank_pids()[0], signal.SIGUSR1)
    code = job.wait(120)
    checks.expect(code == 0 and max(checkpoints(name)) == last_step(name), f"{name}: exit {code}", job.output())
    checks.expect(not remains(name), f"{name}: {remains(name)} are left")


def fails_at_last(name):
    """On a signal, while rank 1 cannot write."""
    job = Job(2, "train", RUN, *outputs(name), *LONG, *SAVES)
    if checks.expect(job.wait_until(lambda: last_step(name) >= 6), f"{name}: did not begin", job.output()):
        before = checkpoints(name)
        limit(job, 1, 4096)
        checks.expect(job.wait_until(lambda: len(warnings(job)) >= 1), f"{name}: no warning", job.output())
        os.kill(job.rank_pids()[0], signal.SIGUSR1)
        code = job.wait(120)
        checks.expect(code == 5 and "File too large" in job.output(), f"{name}: exit {code}", job.output())
        checks.expect("stopped on request" not in job.output(), f"{name}: says that it was saved", job.output())
        checks.expect(set(before) <= set(checkpoints(name)), f"{name}: {checkpoints(name)} of {before} are left")
    job.end()


for label, background in [("behind", "true"), ("at-once", "false")]:
    fails_and_recovers(label, f"checkpoint.background={background}")
whole = run(2, "train", RUN, *outputs("whole"), *LONG, f"train.steps={last_step('behind')}")
checks.expect(whole.code == 0, f"whole: exit {whole.code}", whole.output)
same_bits(checks, "behind", read_metrics("whole"), read_metrics("behind"))
fails_at_last("signal")

# A folder in the way of a file stands for a disk that fails; the last step's checkpoint is not between two steps.
for step in (2, 4):
    os.makedirs(f"end/checkpoints/step-{step:08}/rank-00000.safetensors.tmp/in the way")
result = run(1, "train", RUN, *outputs("end"), "train.steps=4", "checkpoint.every=2")
checks.expect(result.code == 5, f"end: exit {result.code}", result.output)
checks.expect("warning: no checkpoint of step 2 in end/checkpoints:" in unwrapped(result.output)
              and "no checkpoint is complete yet" in unwrapped(result.output), "end: no warning", result.output)
checks.expect("no checkpoint of step 4" not in result.output and last_step("end") == 4, "end: step 4", result.output)

# A file system that another program fills.
os.makedirs("small", exist_ok=True)
if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", "small"]).returncode == 0:
    try:
        job = Job(2, "train", RUN, *outputs("small"), "log.jsonl=small.jsonl", *LONG, *SAVES)
        checks.expect(job.wait_until(lambda: checkpoints("small")), "small: no first checkpoint", job.output())
        with open("small/ballast", "wb", buffering=0) as ballast:
            try:
                while ballast.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass
        checks.expect(job.wait_until(lambda: warnings(job)), "small: did not go on", job.output())
        os.unlink("small/ballast")
        last = int(warnings(job)[-1][0]) if warnings(job) else 0
        checks.expect(job.wait_until(lambda: max(checkpoints("small"), default=0) > last), "small: no later checkpoint",
                      job.output())
        checks.expect(job.running(), "small: ended", job.output())
        job.end()
    finally:
        subprocess.run(["umount", "-l", "small"])
else:
    print("no small file system could be mounted: that part was left out", flush=True)
checks.finish()
