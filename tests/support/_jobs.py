"""Runs of moewright, with and without mpirun, for the scripts of tests/dist and tests/cli.

A script works in its own empty folder (the working directory), collects what is wrong with Checks and ends with
Checks.finish(). MOEWRIGHT_BIN, MOEWRIGHT_MPIRUN and MOEWRIGHT_SOURCE come from the build.
"""

import concurrent.futures
import filecmp
import functools
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

BIN = os.environ["MOEWRIGHT_BIN"]
PROGRAMS = os.environ.get("MOEWRIGHT_PROGRAMS", ".")  # those of tests/dist/*.cpp
MPIRUN = os.environ.get("MOEWRIGHT_MPIRUN", "mpirun")
SOURCE = pathlib.Path(os.environ["MOEWRIGHT_SOURCE"])
TIMEOUT = 300  # of one run; generous, the machine may be busy
SKIPPED = 77


def gpus():
    """GPUs of a test that is to run on them, with MOEWRIGHT_TEST_DEVICE=gpu; 0 in a test of the CPU."""
    if os.environ.get("MOEWRIGHT_TEST_DEVICE") != "gpu":
        return 0
    return len(list(pathlib.Path("/dev").glob("nvidia[0-9]*"))) or skip("no GPU")


@functools.cache
def commit_number():
    """None where everything is to be tried: with MOEWRIGHT_TEST_ALL=1, on GPUs and without git."""
    if gpus() or os.environ.get("MOEWRIGHT_TEST_ALL"):
        return None
    git = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=SOURCE, capture_output=True, text=True)
    return int(git.stdout) if git.returncode == 0 else None


def in_turn(items, parts):
    """Every parts-th item, by the number of the commit: so many commits run all. All items where that leaves none."""
    number = commit_number()
    return items if number is None else items[number % parts::parts] or items


class Checks:
    """Prints what does not hold at once and remembers it."""

    def __init__(self):
        self.count, self.failed, self.start = 0, 0, time.monotonic()

    def expect(self, condition, message, output=""):
        self.count += 1
        if not condition:
            self.failed += 1
            print(f"FAIL: {message}", flush=True)
            if output:
                print("\n".join("    | " + line for line in output.splitlines()[-25:]), flush=True)
        return bool(condition)

    def finish(self):
        print(f"{self.count} checks, {self.failed} failed, {time.monotonic() - self.start:.0f} s", flush=True)
        sys.exit(1 if self.failed else 0)


def at_once(functions, how_many=2):
    """Calls the functions, which mostly wait, so many at a time. An exception in one ends the script."""
    with concurrent.futures.ThreadPoolExecutor(how_many) as pool:
        for called in [pool.submit(function) for function in functions]:
            called.result()


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def command(ranks, arguments, program=BIN):
    """One rank starts without a launcher, as users do."""
    launcher = [] if ranks == 1 else [MPIRUN, "-np", str(ranks)]
    device = ["train.device=cuda"] if gpus() and arguments[0] in ("train", "verify", "evaluate") else []
    return launcher + [program, *map(str, arguments), *device]


def launcher_forwards(what):
    """Whether mpirun hands this signal on to its ranks; not every installation does."""
    name = signal.Signals(what).name.removeprefix("SIG")
    rank = f"trap 'echo got it; exit 0' {name}; echo ready; for i in $(seq 50); do sleep 0.1; done"
    with subprocess.Popen([MPIRUN, "-np", "1", "sh", "-c", rank], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, start_new_session=True) as launcher:
        for line in launcher.stdout:
            if line.strip() == "ready":
                launcher.send_signal(what)
            if line.strip() == "got it":
                return True
    return False


def unwrapped(output):
    """What a run printed, with lines that were broken at 120 columns joined again."""
    return re.sub(r"(?<=\S)\n {4,}(?=\S)", " ", output)


class Result:
    def __init__(self, code, output, seconds):
        self.code, self.output, self.seconds = code, output, seconds


def run(ranks, *arguments, timeout=TIMEOUT, program=BIN):
    """Output is stdout and stderr together; the code of a run that hangs is -999."""
    start = time.monotonic()
    job = Job(ranks, *arguments, program=program)
    code = job.wait(timeout)
    return Result(code, job.output(), time.monotonic() - start)


class Job:
    """A run in the background, with its output in a file."""

    numbers = itertools.count(1)

    def __init__(self, ranks, *arguments, program=BIN):
        self.ranks, self.program = ranks, program
        self.log = pathlib.Path(f"job-{os.getpid()}-{next(Job.numbers)}.log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command(ranks, arguments, program), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT, start_new_session=True)

    def output(self):
        return self.log.read_text(errors="replace")

    def running(self):
        return self.process.poll() is None

    def wait(self, timeout=TIMEOUT):
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            return -999

    def end(self):
        """Ends what is left of the job, ranks included: they are in the launcher's session or below it."""
        for pid in [*self.rank_pids(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def rank_pids(self):
        """Process ids of the ranks, in the order they were started."""
        children, program = {}, os.path.realpath(self.program)
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry))
        found, queue = [], [self.process.pid]
        while queue:
            pid = queue.pop()
            queue.extend(children.get(pid, []))
            try:
                if os.path.realpath(os.readlink(f"/proc/{pid}/exe")) == program:
                    found.append(pid)
            except OSError:
                pass
        return sorted(found)

    def wait_until(self, condition, timeout=TIMEOUT):
        """Polls until the condition holds; false when the job ends or the time is over first."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if condition():
                return True
            if not self.running():
                return bool(condition())
            time.sleep(0.01)
        return False


def expect_killed(checks, name, job):
    """Waits for the end of a job of which a rank is killed: it fails with the reason, and no rank is left over. Returns the
    exit code."""
    code = job.wait(60)
    checks.expect(code > 0, f"{name}: exit code {code}", job.output())
    checks.expect(re.search(r"signal 9|Killed|KILLED", job.output()), f"{name}: no reason given", job.output())
    checks.expect(job.rank_pids() == [], f"{name}: ranks are left over")
    return code


def write_corpus(folder, files=8, words=3000, seed=7):
    """A folder of text that a small model can learn: words of a small vocabulary with some order."""
    random.seed(seed)
    os.makedirs(folder, exist_ok=True)
    vocabulary = ["".join(random.choices("etaoinshrdlucm", k=random.randint(2, 7))) for _ in range(120)]
    for i in range(files):
        word, text = 0, []
        for _ in range(words):
            word = (word * 7 + random.choice([1, 2, 5])) % len(vocabulary)
            text.append(vocabulary[word])
        pathlib.Path(folder, f"part-{i}.txt").write_text(" ".join(text) + "\n")


SMALL = """
[model]
vocab = 256
width = 32
layers = 3
heads = 4
kv_heads = 2
experts = 8
top_k = 2
expert_width = 24
shared_experts = 1
dense_layers = 1
dense_width = 64
qk_norm = "per_head"
init_std = 0.05

[data]
path = "text"
val_fraction = 0.25

[train]
steps = 12
seq_len = 32
global_batch = 16
micro_batches = 2
lr = 3e-3
warmup = 3
dtype = "fp32"
val_batches = 0
threads = 1

[moe]
aux_loss_coef = 0.01
z_loss_coef = 0.001

[log]
every = 1
"""


# All sides of its matrices multiples of 64, in bf16: on a GPU master weights are split (layout/byte_table.h).
EVEN = ["train.dtype=bf16", "model.width=64", "model.head_dim=16", "model.kv_heads=4", "model.expert_width=64"]


def write_run_file(path="run.toml", text=SMALL):
    pathlib.Path(path).write_text(text)
    return path


def outputs(name):
    """Overrides that put checkpoints and metrics of a run into folder `name`."""
    return [f"checkpoint.dir={name}/checkpoints", f"log.jsonl={name}/metrics.jsonl"]


# What a step computes, without what it measured.
EXACT = ("loss", "aux_loss", "z_loss", "total_loss", "grad_norm", "lr", "valid_labels", "dropped_rows", "expert_load")


def read_metrics(name):
    """Steps of a metrics file by number; numbers as the text that stands in the file."""
    path, steps = pathlib.Path(name, "metrics.jsonl"), {}
    if not path.exists():
        return steps
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # being written
        entry = json.loads(line, parse_float=str, parse_int=str, parse_constant=str)
        if "step" in entry:
            steps[int(entry["step"])] = entry
    return steps


def last_step(name):
    return max(read_metrics(name), default=0)


def same_bits(checks, label, expected, got, first=1):
    """Two loss curves, number for number."""
    steps = f"{label}: steps {sorted(expected)} expected, got {sorted(got)}"
    if not checks.expect(sorted(expected) == sorted(got), steps):
        return
    for step in expected:
        for key in EXACT:
            if step >= first and expected[step].get(key) != got[step].get(key):
                checks.expect(False, f"{label}: step {step}: {key} {expected[step].get(key)} became "
                                     f"{got[step].get(key)}")
                return
    checks.expect(True, label)


def same_folders(checks, label, a, b):
    """The same files with the same bytes."""
    names = sorted(p.name for p in pathlib.Path(a).iterdir())
    checks.expect(names == sorted(p.name for p in pathlib.Path(b).iterdir()), f"{label}: other files")
    _, different, errors = filecmp.cmpfiles(a, b, names, shallow=False)
    checks.expect(not different and not errors, f"{label}: {different} {errors} differ")


def largest_difference(expected, got, keys=("loss", "grad_norm")):
    """Largest relative difference of the steps that both have."""
    return max(abs(float(expected[s][k]) - float(got[s][k])) / abs(float(expected[s][k]))
               for s in expected if s in got for k in keys)


def checkpoints(name, complete=True):
    """Steps of the checkpoints of a run, oldest first."""
    folder = pathlib.Path(name, "checkpoints")
    return sorted(int(p.name[5:]) for p in folder.glob("step-*") if not complete or (p / "DONE").exists())


def fresh(*folders):
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
