"""Pipelines under trouble, with the watchdog off: a rank that is killed in the middle of a step and an error on any
stage end the job at once and are told once; a signal that reaches one stage makes all save and stop."""

import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import (Checks, Job, checkpoints, last_step, outputs, read_metrics, run, same_bits,  # noqa: E402
                   write_corpus, write_run_file)

checks = Checks()
write_corpus("text")
RUN = write_run_file()
COMMON = ["model.layers=4", "train.micro_batches=4", "train.seq_len=16", "watchdog.seconds=0", "train.steps=60",
          "checkpoint.every=4", "checkpoint.resume=auto"]
PIPELINES = {"pp-4": (4, "mesh.pp=4"), "pp-2": (4, "mesh.pp=2 mesh.ep=2 mesh.zero=1"),
             "interleaved": (2, "mesh.pp=2 mesh.schedule=interleaved"),
             "zero-bubble": (4, "mesh.pp=4 mesh.schedule=zb_h1")}


def arguments(name, layout, *overrides):
    return ["train", RUN, *outputs(name), *COMMON, *layout.split(), *overrides]


def finish(name, ranks, layout):
    result = run(ranks, *arguments(name, layout))
    checks.expect(result.code == 0, f"{name}: exit {result.code}", result.output)
    return read_metrics(name)


def started(name, ranks, layout, *overrides):
    """A run that has made some steps."""
    job = Job(ranks, *arguments(name, layout, *overrides))
    if not checks.expect(job.wait_until(lambda: last_step(name) >= 6) and job.running(), f"{name}: ended too early",
                         job.output()):
        job.end()
    return job


whole = {name: finish(f"whole-{name}", ranks, layout) for name, (ranks, layout) in PIPELINES.items()}

for victim in (0, 2, 3):
    name, (ranks, layout) = f"killed-{victim}", PIPELINES["pp-4"]
    job = started(name, ranks, layout)
    pids = job.rank_pids()
    checks.expect(len(pids) == ranks, f"{name}: {len(pids)} ranks", job.output())
    time.sleep(0.01 * victim)  # somewhere else in a step
    os.kill(pids[victim], signal.SIGKILL)
    killed = time.monotonic()
    code = job.wait(60)
    seconds = time.monotonic() - killed
    print(f"{name}: code {code} after {seconds:.1f} s, checkpoints {checkpoints(name)}", flush=True)
    checks.expect(code > 0 and seconds < 15, f"{name}: code {code} after {seconds:.0f} s", job.output())
    checks.expect(re.search(r"signal 9|Killed|KILLED", job.output()), f"{name}: no reason given", job.output())
    checks.expect(job.rank_pids() == [], f"{name}: ranks are left over")
same_bits(checks, "killed and resumed", whole["pp-4"], finish("killed-2", *PIPELINES["pp-4"]))

for name, (ranks, layout) in PIPELINES.items():
    result = run(ranks, *arguments(f"nan-{name}", layout, "debug.fault=nan_gradient"), timeout=60)
    told = re.findall(r"error: .*", result.output)
    checks.expect(result.code == 7 and len(told) == 1, f"nan-{name}: exit {result.code}, told {told}", result.output)

for name, (ranks, layout), stage, what in [("term-pp", PIPELINES["pp-2"], 1, signal.SIGTERM),
                                           ("usr1-interleaved", PIPELINES["interleaved"], 0, signal.SIGUSR1)]:
    job = started(name, ranks, layout)
    pids = job.rank_pids()
    os.kill(pids[stage * ranks // 2], what)
    code = job.wait(60)
    found = re.search(r"stopped on request after step (\d+)", job.output())
    print(f"{name}: code {code}, {found[0] if found else 'no word of a stop'}", flush=True)
    if checks.expect(code == 0 and found, f"{name}: exit {code}", job.output()):
        step = int(found[1])
        checks.expect(max(checkpoints(name)) == last_step(name) == step < 60, f"{name}: {checkpoints(name)}")
    kind = "pp-2" if name == "term-pp" else "interleaved"
    same_bits(checks, name, whole[kind], finish(name, ranks, layout))
checks.finish()
