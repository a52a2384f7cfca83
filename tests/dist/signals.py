"""SIGTERM, SIGUSR1, SIGHUP or SIGINT (Ctrl-C) that reaches any rank: all ranks agree, save and stop after the same step with exit code 0, in
training, in validation and while a checkpoint is written; the resumed run has the same numbers. mpirun gets SIGUSR1
only: Open MPI's kills its ranks a second after a SIGTERM of its own."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import (SOURCE, Checks, Job, checkpoints, gpus, last_step, launcher_forwards, outputs,  # noqa: E402
                   read_metrics, run, same_bits, write_corpus, write_run_file)

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup hands it on as ignored
checks = Checks()
write_corpus("text")
RUN = write_run_file()
COMMON = ["train.steps=24", "checkpoint.resume=auto"]
VALIDATION = ["train.val_every=1", "train.val_batches=400"]
# A checkpoint of some 40 MB after each step.
LARGE = ["model.width=256", "model.expert_width=256", "model.experts=16", "model.layers=2", "train.steps=4",
         "train.seq_len=16", "checkpoint.keep=1"]


def train(name, ranks, *overrides):
    result = run(ranks, "train", RUN, *outputs(name), *COMMON, f"mesh.ep={min(ranks, 2)}", *overrides)
    checks.expect(result.code == 0, f"{name} {overrides}: exit {result.code}", result.output)
    return read_metrics(name)


def stop(name, ranks, send, ready, *overrides):
    """Starts a run, sends the signal once `ready` holds, and returns the step it stopped after and its output."""
    job = Job(ranks, "train", RUN, *outputs(name), *COMMON, f"mesh.ep={min(ranks, 2)}", *overrides)
    if not checks.expect(job.wait_until(ready) and job.running(), f"{name}: ended too early", job.output()):
        job.end()
        return None, ""
    sent = time.monotonic()
    send(job)
    code = job.wait(120)
    output = job.output()
    found = re.search(r"stopped on request after step (\d+)", output)
    print(f"{name}: code {code}, {found.group(0) if found else 'no word of a stop'}, {time.monotonic() - sent:.1f} s "
          "after the signal", flush=True)
    checks.expect(code == 0, f"{name}: exit {code}", output)
    if not checks.expect(found, f"{name}: did not stop on request", output):
        return None, output
    step = int(found.group(1))
    checks.expect(max(checkpoints(name), default=0) == step, f"{name}: checkpoints {checkpoints(name)}", output)
    checks.expect(last_step(name) == step, f"{name}: metrics end at step {last_step(name)}", output)
    return step, output


def to_launcher(job):
    os.kill(job.process.pid, signal.SIGUSR1)


def to_rank(number, what):
    return lambda job: os.kill(job.rank_pids()[number], what)


cases = [
    ("term-to-a-rank", 4, to_rank(2, signal.SIGTERM)),
    ("usr1-to-a-rank", 2, to_rank(1, signal.SIGUSR1)),
    ("term-alone", 1, to_rank(0, signal.SIGTERM)),
    ("hup-alone", 1, to_rank(0, signal.SIGHUP)),
    ("int-alone", 1, to_rank(0, signal.SIGINT)),
    ("int-to-a-rank", 2, to_rank(1, signal.SIGINT)),
]
if launcher_forwards(signal.SIGUSR1):
    cases.insert(0, ("usr1-to-mpirun", 4, to_launcher))
else:
    print("this mpirun keeps SIGUSR1 to itself: no run is stopped by way of it", flush=True)
whole = {ranks: train(f"whole-{ranks}", ranks) for ranks in (1, 2, 4)}
for name, ranks, send in cases:
    step, _ = stop(name, ranks, send, lambda: last_step(name) >= 3)
    if step is not None:
        checks.expect(3 <= step < 24, f"{name}: stopped after step {step}")
        same_bits(checks, name, whole[ranks], train(name, ranks))

# Ctrl-C in a terminal: the first one answers at once and stops after the step, the second one ends the process.
SLOW = ["train.global_batch=4096", "train.steps=24"]
if gpus():  # whose steps are shorter than the pause between two key presses
    SLOW += ["train.global_batch=131072", "train.micro_batches=64"]
job = Job(1, "train", RUN, *outputs("twice"), *COMMON, *SLOW)
if checks.expect(job.wait_until(lambda: "data:" in job.output()) and job.running(), "twice: ended early", job.output()):
    os.kill(job.rank_pids()[0], signal.SIGINT)
    checks.expect(job.wait_until(lambda: "press Ctrl-C again" in job.output(), 10), "twice: no answer", job.output())
    checks.expect("twice/checkpoints" in job.output(), "twice: the answer names no folder", job.output())
    time.sleep(0.6)  # sooner, it counts as the same key press
    again = time.monotonic()
    os.kill(job.process.pid, signal.SIGINT)
    code = job.wait(20)
    checks.expect(code == -signal.SIGINT, f"twice: exit {code}", job.output())
    checks.expect(time.monotonic() - again < 5, "twice: the second Ctrl-C took long")
job.end()

# Signals in the middle of products: their kernels may use heap memory as their stack.
WIDE = ["model.width=256", "model.layers=4", "train.seq_len=128", "train.global_batch=128", "train.micro_batches=16",
        "train.steps=200", "train.threads=2"]
job = Job(1, "train", RUN, *outputs("storm"), *WIDE)
if checks.expect(job.wait_until(lambda: last_step("storm") >= 1) and job.running(), "storm: ended early", job.output()):
    for pid in 200 * job.rank_pids():
        if job.running():
            os.kill(pid, signal.SIGUSR1)
        time.sleep(0.005)
    code = job.wait(60)
    checks.expect(code == 0 and "stopped on request" in job.output(), f"storm: exit {code}", job.output())
job.end()

# The launch script hands the first Ctrl-C on as a request to stop; a bare mpirun would kill its ranks.
name = "script"
environment = {**os.environ, "MOEWRIGHT_BIN": os.environ["MOEWRIGHT_BIN"]}
with open("script.log", "w+", encoding="utf-8") as log:
    script = subprocess.Popen([SOURCE / "examples/mpirun.sh", "2", RUN, *outputs(name), "train.steps=2000", "mesh.ep=2"],
                              stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True)
    end = time.monotonic() + 120
    while last_step(name) < 3 and script.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(script.pid, signal.SIGINT)
    code = script.wait(120)
    text = pathlib.Path("script.log").read_text(encoding="utf-8")
    checks.expect(code == 0 and "stopped on request" in text, f"script: exit {code}", text)
    checks.expect(max(checkpoints(name), default=0) == last_step(name) >= 3, f"script: {checkpoints(name)}", text)

# Validation is by far the longest part of a step here.
name = "term-in-validation"
in_validation = time.monotonic()


def validating():
    """Some time after the line of step 1 the validation after step 2 is under way."""
    global in_validation
    if last_step(name) < 1:
        in_validation = time.monotonic()
    return time.monotonic() > in_validation + 0.5


step, output = stop(name, 2, to_rank(1, signal.SIGTERM), validating, *VALIDATION)
if step is not None:
    checks.expect(f"validation after step {step}:" not in output, f"{name}: the validation went on to its end", output)
    same_bits(checks, name, whole[2], train(name, 2))

large = train("large-whole", 2, *LARGE)
name = "term-in-checkpoint"


def writing():
    """The folder of step 2 is there and incomplete."""
    folder = pathlib.Path(name, "checkpoints", "step-00000002")
    return folder.exists() and not (folder / "DONE").exists()


step, output = stop(name, 2, to_rank(0, signal.SIGTERM), writing, *LARGE, "checkpoint.every=1")
if step is not None:
    checks.expect(step in (2, 3), f"{name}: stopped after step {step}", output)
    checks.expect(checkpoints(name, complete=False) == [step], f"{name}: {checkpoints(name, complete=False)} are left")
    same_bits(checks, name, large, train(name, 2, *LARGE))
checks.finish()
