"""A Slurm of its own on this machine: munge, the controller and two nodes, all in one folder and on free ports, ended
with the script. Nothing of it is seen by a Slurm that may be installed here, and it needs no root.

The nodes share this machine, which no MPI expects of nodes: shared memory between ranks is off, as the files of two
nodes would have one name, and messages take the loopback device.
"""

import ctypes
import getpass
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _jobs import BIN, SOURCE, skip  # noqa: E402

NODES = ("node1", "node2")
LIMIT = 400  # seconds for a whole script
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
libc = ctypes.CDLL(None)

SLURM_CONF = """
ClusterName=moewright
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
# Also how long a requeued job waits before it starts again.
AuthInfo=socket={folder}/munge/socket,cred_expire=5
KillWait=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 RealMemory=1000
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def wait_until(condition, timeout=60, poll=0.02):
    """Polls; false when the time is over first."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(poll)
    return True


def children():
    """Process ids of this process's children. Those whose parent has gone are among them: it is their reaper."""
    return [int(pid) for task in pathlib.Path("/proc/self/task").iterdir()
            for pid in (task / "children").read_text().split()]


def go_on_in_a_child():
    """This process only waits for it: whatever ends it, SIGKILL too, the child hears of and can clean up."""
    sys.stdout.flush()
    child = os.fork()
    if child != 0:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xff)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Cluster:
    """`with Cluster() as slurm:`; every process below it has ended afterwards, jobs included."""

    def __enter__(self):
        os.environ["PATH"] += ":/usr/sbin"
        missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]
        if missing:
            skip(f"no {', '.join(missing)}: tools/setup.sh --ci installs Slurm")
        go_on_in_a_child()
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, self.interrupted)
        signal.alarm(LIMIT)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="moewright-slurm-"))
        try:
            self.start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def interrupted(self, number, _frame):
        raise SystemExit(f"FAIL: ended by {signal.Signals(number).name}")

    def start(self):
        self.folder.chmod(0o755)
        for name in ("munge", "state", *NODES):
            (self.folder / name).mkdir(mode=0o755)
        conf = SLURM_CONF.format(folder=self.folder, user=getpass.getuser(), ports=free_ports(3),
                                 host=socket.gethostname().split(".")[0])
        for folder in (self.folder, *(self.folder / node for node in NODES)):
            (folder / "slurm.conf").write_text(conf)
            (folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={folder}\n")  # nodes have no folder in common
        os.environ["SLURM_CONF"] = str(self.folder / "slurm.conf")
        os.environ.update(OMPI_MCA_btl="self,tcp", OMPI_MCA_btl_tcp_if_include="lo",
                          OMPI_MCA_mpi_yield_when_idle="1", OMP_WAIT_POLICY="passive", MOEWRIGHT_BIN=BIN)
        key = self.folder / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        self.daemon("munged", "--foreground", *(f"--{option}={self.folder}/munge/{name}" for option, name in [
            ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"),
            ("seed-file", "seed")]))
        self.expect(lambda: (self.folder / "munge" / "socket").exists(), "munged")
        self.daemon("slurmctld", "-D")
        for node in NODES:
            self.daemon("slurmd", "-D", "-N", node, "-f", self.folder / node / "slurm.conf")
        self.expect(lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D") == "2", "Slurm")

    def daemon(self, *command):
        with open(self.folder / f"{command[0]}.out", "ab") as out:
            subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out,
                             stderr=subprocess.STDOUT, start_new_session=True,
                             preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))

    def expect(self, condition, what):
        if not wait_until(condition):
            logs = "\n".join(f"{p}:\n{p.read_text(errors='replace')[-2000:]}" for p in self.folder.rglob("*")
                             if p.name == "log" or p.suffix in (".log", ".out"))
            raise SystemExit(f"FAIL: {what} does not start\n{logs}")

    def __exit__(self, *_):
        signal.alarm(0)
        end = time.monotonic() + 60
        while (pids := children()) and time.monotonic() < end:  # those of one that ended are children now
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, *command):
        """The output of a command; what it says of an error is no output."""
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()

    def sbatch(self, name, options, arguments, **environment):
        """Submits the sample itself."""
        result = subprocess.run(
            ["sbatch", "--parsable", "--cpus-per-task=1", f"--output={name}.log", *options,
             str(SOURCE / "examples" / "slurm.sbatch"), *arguments],
            capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
        if result.returncode != 0:
            raise SystemExit(f"FAIL: sbatch: {result.stderr}")
        return SlurmJob(self, int(result.stdout), name)


class SlurmJob:
    def __init__(self, slurm, number, name):
        self.slurm, self.number, self.name = slurm, number, name
        self.lost_starts = 0

    def output(self):
        path = pathlib.Path(f"{self.name}.log")
        return path.read_text(errors="replace") if path.exists() else ""

    def show(self, key):
        words = self.slurm.ask("scontrol", "show", "job", "-o", str(self.number)).split()
        return next((word.split("=", 1)[1] for word in words if word.startswith(key + "=")), "")

    def state(self):
        return self.show("JobState")

    def wait(self, timeout=150):
        """The state in which the job has ended."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_until(lambda: self.state() in ended and not self.revive(), timeout)
        return self.state()

    def restarts(self):
        return int(self.show("Restarts")) - self.lost_starts

    def revive(self):
        """Where two nodes share one loopback device, Open MPI 4.1 now and then crashes in MPI_Init, of 300 starts in five,
        before the program has said a word. Such a start does not count: the job is requeued. Whether it was."""
        text = self.output()
        if "Segmentation fault" not in text or self.lost_starts == 3 or self.state() != "FAILED":
            return False
        spoke = len(re.findall(r"^moewright \d", text, re.MULTILINE))
        if spoke + self.lost_starts > int(self.show("Restarts")):
            return False  # every start has spoken
        self.lost_starts += 1
        print(f"{self.name}: Open MPI crashed before the program began; requeued", flush=True)
        self.slurm.ask("scontrol", "requeue", str(self.number))
        return True

    def ranks(self):
        """Process ids of its ranks, by rank."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or os.readlink(entry / "exe") != os.path.realpath(BIN):
                    continue
                environment = dict(item.split("=", 1) for item in (entry / "environ").read_text().split("\0") if "=" in item)
            except OSError:
                continue
            if environment.get("SLURM_JOB_ID") == str(self.number) and "PMIX_RANK" in environment:
                found[int(environment["PMIX_RANK"])] = int(entry.name)
        return [pid for _, pid in sorted(found.items())]


def is_pending(pid, number):
    """Whether a signal waits for a process that is stopped."""
    for line in pathlib.Path("/proc", str(pid), "status").read_text().splitlines():
        if line.startswith("ShdPnd:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
