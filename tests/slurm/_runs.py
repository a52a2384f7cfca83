"""Runs of examples/slurm.sbatch that are compared with one another."""

import os
import pathlib
import re
import signal
import struct

from _cluster import wait_until
from _jobs import last_step, outputs, read_metrics, same_bits

STEPS, EVERY = 40, 10  # in all, and from one checkpoint to the next


def submit(slurm, name, *options, ranks_per_node=1, **environment):
    """On both nodes."""
    arguments = ["run.toml", *outputs(name), f"log.tensorboard={name}/tb", f"train.steps={STEPS}", "mesh.ep=2",
                 f"checkpoint.every={EVERY}"]
    return slurm.sbatch(name, [f"--ntasks-per-node={ranks_per_node}", *options], arguments, **environment)


def hold(checks, job, step):
    """Stops one rank once the run is past this step and between two checkpoints: the others wait for it, and the job
    cannot end. Its process id."""
    pids = []

    def is_there():
        nonlocal pids
        pids = [] if job.revive() else pids or job.ranks()  # before the step: looking for them takes a while
        return pids and last_step(job.name) >= step and 2 <= last_step(job.name) % EVERY <= 5

    reached = wait_until(is_there, poll=0.002)
    if not checks.expect(reached and os.path.exists(f"/proc/{pids[-1]}"),
                         f"{job.name}: step {step} is not reached, or the job is over", job.output()):
        checks.finish()
    os.kill(pids[-1], signal.SIGSTOP)
    return pids[-1]


def release(pid):
    os.kill(pid, signal.SIGCONT)


def event_steps(name):
    """Steps of each TensorBoard file of a run, oldest first: a record is a length, its checksum, an event, a checksum;
    an event begins with its time (9 bytes) and, after the tag 0x10, its step."""
    files = []
    for path in sorted(pathlib.Path(name, "tb").iterdir(), key=lambda path: path.stat().st_mtime):
        data, at, steps = path.read_bytes(), 0, set()
        while at < len(data):
            length, = struct.unpack_from("<Q", data, at)
            event, at = data[at + 12:at + 12 + length], at + 16 + length
            step = shift = 0
            for byte in event[10:] if event[9] == 0x10 else b"":
                step, shift = step | (byte & 0x7f) << shift, shift + 7
                if byte < 0x80:
                    steps.add(step)
                    break
        files.append(steps)
    return files


def check_complete(checks, job, whole, restarts):
    """The job has run to its end after so many restarts, with the loss curve and the final weights of the run `whole`,
    and each time went on where a checkpoint was."""
    name, state = job.name, job.wait()
    if not checks.expect(state == "COMPLETED", f"{name}: {state}, expected COMPLETED", job.output()):
        return
    checks.expect(job.restarts() == restarts, f"{name}: {job.restarts()} restarts, not {restarts}")
    same_bits(checks, name, read_metrics(whole), read_metrics(name))
    last = f"step-{STEPS:08}"
    files = [path.name for path in pathlib.Path(whole, "checkpoints", last).glob("rank-*")]
    checks.expect(files, f"{whole}: no weights")
    for file in files:
        mine, theirs = (pathlib.Path(run, "checkpoints", last, file) for run in (name, whole))
        checks.expect(mine.exists() and mine.read_bytes() == theirs.read_bytes(), f"{name}: {file} differs")
    output = job.output()
    resumed = [int(step) for step in re.findall(r"resumed from \S+ after step (\d+)", output)]
    checks.expect(len(resumed) == restarts and "\nstep 1/" in output,
                  f"{name}: the log is not of {restarts + 1} starts", output)
    events = event_steps(name)
    checks.expect(len(events) == restarts + 1, f"{name}: {len(events)} event files")
    for first, steps in zip(resumed, events[1:]):
        checks.expect(steps - {0} and min(steps - {0}) >= first, f"{name}: events from step {min(steps)}, resumed after {first}")
    print(f"{name}: {f'resumed after {resumed}' if resumed else 'at once'}", flush=True)
