"""CPU quotas for the ranks of an mpirun job (Linux with the CPU controller of cgroup v1 or v2, root)."""
import contextlib
import os
import pathlib
import time

PERIOD_US = 10_000
ROOT = pathlib.Path("/sys/fs/cgroup")
LEAST_USE = 0.9  # of its quota, that a rank must have got


def prepare_mpirun():
    """Waiting ranks let others of their core compute, and mpirun binds none to a core."""
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_mpi_yield_when_idle="1",
                      OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none")


class Quotas:
    """A cgroup for each rank with a quota of so many cores, which it gets before other processes of the machine.

    Waiting ranks spin, so a rank that was not held back by other processes has used up its quota.
    """

    def __init__(self, cores):
        self.cores = cores
        v2 = (ROOT / "cgroup.controllers").exists()
        names = [f"moewright-rank-{rank}" for rank in range(len(cores))]
        self.paths = [(ROOT if v2 else ROOT / "cpu") / name for name in names]
        self.accounts = self.paths if v2 else [ROOT / "cpuacct" / name for name in names]
        for path, account, share in zip(self.paths, self.accounts, cores):
            path.mkdir(exist_ok=True)
            account.mkdir(exist_ok=True)
            quota = int(share * PERIOD_US)
            files = ({"cpu.max": f"{quota} {PERIOD_US}", "cpu.weight": 10000} if v2 else
                     {"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": quota, "cpu.shares": 262144})
            for name, value in files.items():
                (path / name).write_text(str(value))
        prepare_mpirun()
        self.restart()

    def command(self, words):
        """That of mpirun in which each rank enters its group before it starts `words`."""
        groups = ":".join(map(str, self.paths)), ":".join(map(str, self.accounts))
        enter = ('for groups in "$1" "$2"; do echo $$ > '
                 '$(echo "$groups" | cut -d: -f$((OMPI_COMM_WORLD_RANK + 1)))/cgroup.procs; done; shift 2; exec "$@"')
        return ["mpirun", "-np", str(len(self.paths)), "sh", "-c", enter, "sh", *groups, *map(str, words)]

    def restart(self):
        """Begins to count what used_cores() returns."""
        self.began, self.before = time.monotonic(), self._seconds()

    def used_cores(self):
        """Of each rank since restart(). Stops the program where a rank got clearly less than its quota."""
        wall = time.monotonic() - self.began
        used = [(now - before) / wall for now, before in zip(self._seconds(), self.before)]
        if any(own < LEAST_USE * share for own, share in zip(used, self.cores)):
            raise SystemExit(f"ranks used {[round(own, 3) for own in used]} cores of their quotas of {self.cores}: "
                             "other processes disturb them")
        return used

    def _seconds(self):
        seconds = []
        for account in self.accounts:
            if (account / "cpuacct.usage").exists():
                seconds.append(int((account / "cpuacct.usage").read_text()) * 1e-9)
            else:
                counts = dict(line.split() for line in (account / "cpu.stat").read_text().splitlines())
                seconds.append(int(counts["usage_usec"]) * 1e-6)
        return seconds

    def remove(self):
        for path in {*self.paths, *self.accounts}:
            with contextlib.suppress(OSError):
                path.rmdir()
