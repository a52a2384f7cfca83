"""srun and mpirun under a real Slurm with two nodes: both form one world of four ranks. Without PMI each rank would be
a world of its own, which is refused, unless RANK and its like say how they meet. A job of mpirun, too, saves on
SIGUSR1, requeues itself and ends bit-exact."""

import os
import secrets
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
from _cluster import Cluster, free_ports, is_pending, wait_until  # noqa: E402
from _jobs import BIN, MPIRUN, SOURCE, Checks, write_corpus, write_run_file  # noqa: E402
from _runs import check_complete, hold, release, submit  # noqa: E402

VERIFY = [BIN, "verify", SOURCE / "examples" / "verify.toml", "verify.steps=1", "train.threads=1", "mesh.ep=4"]
checks = Checks()
write_corpus("text")
write_run_file()


JOIN = ["env", f"MASTER_PORT={free_ports(1)[0]}", "MASTER_ADDR=127.0.0.1", "WORLD_SIZE=4",
        f"MOEWRIGHT_JOIN_SECRET={secrets.token_hex(32)}", "sh", "-c",
        'RANK=$SLURM_PROCID exec "$@"', "sh"]


def launch(*command):
    result = subprocess.run([str(part) for part in (*command, *VERIFY)], capture_output=True, text=True, timeout=120)
    return result.returncode, result.stdout + result.stderr


with Cluster() as slurm:
    for launcher in (["srun", "--mpi=pmix", "-N2", "--ntasks-per-node=2"],
                     ["salloc", "-N2", "--ntasks-per-node=2", MPIRUN],
                     ["srun", "--mpi=none", "-N2", "--ntasks-per-node=2", *JOIN]):
        code, output = launch(*launcher)
        checks.expect(code == 0 and "layout: 4 ranks" in output, f"{launcher}: exit {code}", output)

    code, output = launch("srun", "--mpi=none", "-N2", "--ntasks-per-node=2", "--kill-on-bad-exit=1")
    checks.expect(code == 8 and "do not see each other" in output and "--mpi=pmix" in output,
                  f"srun --mpi=none: exit {code}", output)

    check_complete(checks, submit(slurm, "whole"), "whole", 0)
    job = submit(slurm, "mpirun", LAUNCHER="mpirun")
    pid = hold(checks, job, 14)
    slurm.ask("scancel", "--batch", "--signal=USR1", str(job.number))
    checks.expect(wait_until(lambda: is_pending(pid, signal.SIGUSR1)), "mpirun: no SIGUSR1", job.output())
    release(pid)
    check_complete(checks, job, "whole", 1)

    unknown = submit(slurm, "unknown", LAUNCHER="ssh")
    checks.expect(unknown.wait() == "FAILED" and unknown.show("ExitCode") == "2:0" and "LAUNCHER=ssh" in unknown.output(),
                  f"LAUNCHER=ssh: {unknown.show('ExitCode')}", unknown.output())
checks.finish()
