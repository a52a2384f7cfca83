"""On cores that other processes use, a run says so and names the cure, and its threads do not wait for each other for
most of the time."""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, run, skip, unwrapped, write_corpus, write_run_file  # noqa: E402

cores = len(os.sched_getaffinity(0))
if cores < 2 or cores > 16:
    skip(f"{cores} cores: one cannot be shared by two threads, many take too many busy processes")

checks = Checks()
write_corpus("text", files=2)
run_file = write_run_file()


def tokens_per_s(*overrides):
    metrics = pathlib.Path("metrics.jsonl")
    metrics.unlink(missing_ok=True)
    result = run(1, "train", run_file, "train.steps=10", "log.jsonl=metrics.jsonl", *overrides)
    if not checks.expect(result.code == 0, f"exit {result.code}", result.output):
        checks.finish()
    steps = [json.loads(line)["tokens_per_s"] for line in metrics.read_text().splitlines()]
    return statistics.median(steps), result.output


busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
try:
    shared, output = tokens_per_s("train.threads=0")
    alone, _ = tokens_per_s("train.threads=1")
finally:
    for process in busy:
        process.kill()
        process.wait()
checks.expect(re.search(r"warning: other processes use [\d.]+ of the \d+ cores .*train\.threads=\d+, or stop", unwrapped(output)),
              "no warning about other processes", output)
# Threads that spin for milliseconds at every barrier take tens of times as long.
print(f"{shared:.0f} tokens/s with all threads, {alone:.0f} with one")
checks.expect(shared > alone / 20, f"{shared:.0f} tokens/s with all threads, {alone:.0f} with one")
checks.finish()
