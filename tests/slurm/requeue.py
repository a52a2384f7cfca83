"""examples/slurm.sbatch under a real Slurm with two nodes. A job that is stopped before its time limit saves, requeues
itself and ends with the numbers of a run that was never stopped, bit for bit; so do jobs that the administrator
requeues, or that are requeued by hand after a time-out or a crash. Nothing else comes back."""

import os
import pathlib
import signal
import sys

sys.path.insert(0, os.path.dirname(__file__))
from _cluster import Cluster, is_pending, wait_until  # noqa: E402
from _jobs import Checks, checkpoints, last_step, write_corpus, write_run_file  # noqa: E402
from _runs import EVERY, check_complete, hold, release, submit  # noqa: E402

checks = Checks()
write_corpus("text")
write_run_file()


def check_ended(job, *expected):
    """The job has ended in this state, perhaps also with this exit code, and was not started again."""
    found = (job.wait(), job.show("ExitCode"))
    checks.expect(found[:len(expected)] == expected, f"{job.name}: {found}, expected {expected}", job.output())
    checks.expect(job.restarts() == 0, f"{job.name}: {job.restarts()} restarts", job.output())


with Cluster() as slurm:
    check_complete(checks, submit(slurm, "whole-4", ranks_per_node=2), "whole-4", 0)
    check_complete(checks, submit(slurm, "whole-2"), "whole-2", 0)

    # Slurm's shortest limit is a minute, and it looks twice a minute: these two are held while others run.
    limit = submit(slurm, "limit", "--time=1", "--signal=B:USR1@20", ranks_per_node=2)
    held = hold(checks, limit, 3)
    timeout = submit(slurm, "timeout", "--time=1", "--signal=B:USR1@1")
    hold(checks, timeout, 3)

    # SIGKILL: the job fails and stays so. By hand it goes on from the last checkpoint, past a half-written one.
    killed = submit(slurm, "killed")
    os.kill(hold(checks, killed, 14), signal.SIGKILL)
    check_ended(killed, "FAILED", "137:0")
    saved = max(checkpoints("killed"))
    checks.expect(last_step("killed") > saved, f"killed: metrics end at {last_step('killed')}, checkpoint {saved}")
    half_written = pathlib.Path("killed", "checkpoints", f"step-{saved + EVERY:08}")
    half_written.mkdir(exist_ok=True)
    (half_written / "rank-00000.safetensors").write_bytes(b"half")
    slurm.ask("scontrol", "requeue", str(killed.number))

    # The administrator requeues a job that trains.
    moved = submit(slurm, "moved")
    hold(checks, moved, 14)
    slurm.ask("scontrol", "requeue", str(moved.number))
    check_complete(checks, killed, "whole-2", 1)
    check_complete(checks, moved, "whole-2", 1)

    # A cancelled job does not bring itself back, although its ranks save and end well.
    cancelled = submit(slurm, "cancelled")
    hold(checks, cancelled, 3)
    slurm.ask("scancel", str(cancelled.number))

    # Nor does one that has used up its restarts: it ends with an error.
    bounded = submit(slurm, "bounded", MAX_RESTARTS="0")
    pid = hold(checks, bounded, 3)
    slurm.ask("scancel", "--batch", "--signal=USR1", str(bounded.number))
    wait_until(lambda: is_pending(pid, signal.SIGUSR1))
    release(pid)
    check_ended(bounded, "FAILED", "1:0")
    checks.expect("MAX_RESTARTS=0" in bounded.output(), "bounded: no reason given", bounded.output())

    # Before its limit a job saves and requeues itself.
    checks.expect(wait_until(lambda: is_pending(held, signal.SIGUSR1), 70), "limit: no SIGUSR1", limit.output())
    release(held)
    check_complete(checks, limit, "whole-4", 1)
    checks.expect("stopped on request" in limit.output(), "limit: did not stop on request", limit.output())

    # Beyond it, it is killed. That does not requeue it; a person can.
    check_ended(timeout, "TIMEOUT")
    slurm.ask("scontrol", "requeue", str(timeout.number))
    check_complete(checks, timeout, "whole-2", 1)
    check_ended(cancelled, "CANCELLED")
checks.finish()
