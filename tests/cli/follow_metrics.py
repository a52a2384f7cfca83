"""tools/follow_metrics.py sends every number of a run once, follows the file while it grows, goes on where it stopped, and
sends again what a resumed run wrote again. Stand-ins of the packages wandb and mlflow write down what they are called with."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _jobs import SOURCE, Checks, run, write_corpus, write_run_file  # noqa: E402

checks = Checks()
WANDB = """
import json
def note(*what):
    with open("calls", "a") as file:
        print(json.dumps(what), file=file)
class Config:
    def update(self, fields, allow_val_change): note("describe", fields)
class Run:
    config = Config()
    def __init__(self, id): self.id = id or "first"
    def define_metric(self, *a, **k): pass
    def log(self, numbers): note("log", numbers.pop("step"), numbers)
    def finish(self): note("finish")
def init(**k):
    note("init", k)
    return Run(k["id"])
"""
MLFLOW = """
from wandb import note
import types
def set_tracking_uri(uri): note("uri", uri)
def set_experiment(name): pass
def start_run(run_id, run_name):
    note("init", {"id": run_id, "name": run_name})
    return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "first"))
def set_tags(fields): note("describe", fields)
def log_metrics(numbers, step): note("log", step, numbers)
def end_run(): note("finish")
"""
pathlib.Path("wandb.py").write_text(WANDB)
pathlib.Path("mlflow.py").write_text(MLFLOW)


def command(*arguments):
    return [sys.executable, SOURCE / "tools/follow_metrics.py", *arguments]


ENVIRONMENT = os.environ | {"PYTHONPATH": os.getcwd()}


def calls():
    path = pathlib.Path("calls")
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def follow(*arguments):
    done = subprocess.run(command(*arguments), env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    checks.expect(done.returncode == 0, f"{arguments}: exit {done.returncode}", done.stderr)
    return calls()


def wait_for(text):
    """Half a minute at most."""
    for _ in range(300):
        if pathlib.Path("calls").exists() and text in pathlib.Path("calls").read_text():
            return
        time.sleep(0.1)
    checks.expect(False, f"no call with {text}")


def steps(found):
    return [call[1] for call in found if call[0] == "log"]


write_corpus("text")
write_run_file()
TRAIN = ("train", "run.toml", "train.seq_len=16", "log.jsonl=a/metrics.jsonl", "checkpoint.dir=a", "checkpoint.every=4",
         "train.schedule=constant")
checks.expect(run(1, *TRAIN, "train.steps=6").code == 0, "training")
lines = [json.loads(line) for line in pathlib.Path("a/metrics.jsonl").read_text().splitlines()]
for service in ("wandb", "mlflow"):
    found = follow("a", service, "--once", "--offline", "--project", "p")
    logged = {call[1]: call[2] for call in found if call[0] == "log"}
    for line in lines:
        sent = logged.get(line["step"], {})
        expected = {name: line[name] for name in ("loss", "grad_norm", "lr") if name in line}
        expected |= {f"work_ms.{kind}": value for kind, value in line.get("work_ms", {}).items()}
        checks.expect(all(sent.get(name) == value for name, value in expected.items()), f"{service}: {line['step']}: {sent}")
        checks.expect("expert_load" not in sent and "mfu" not in sent and "step" not in sent, f"{service}: {sent.keys()}")
    texts = [call[1] for call in found if call[0] == "describe"]
    checks.expect(len(texts) == 1 and "layout" in texts[0] and found[-1] == ["finish"], f"{service}: {texts}")
    checks.expect(any("offline" in json.dumps(call) or "sqlite:///" in json.dumps(call) for call in found[:2]), f"{found[:2]}")
    again = follow("a", service, "--once", "--offline")
    checks.expect(not steps(again) and '"id": "first"' in json.dumps(again), f"{service}: sent twice: {again}")

# While the follower is at work, the run goes back to step 4 and on to 8.
with subprocess.Popen(command("a", "wandb", "--every", "0.1"), env=ENVIRONMENT) as follower:
    try:
        wait_for("init")
        shutil.rmtree("a/step-00000006")
        result = run(1, *TRAIN, "train.steps=8", "checkpoint.resume=auto")
        checks.expect(result.code == 0, "resuming", result.output)
        with open("a/metrics.jsonl", "a") as file:
            file.write('{"step": 9, "loss": 1.5}\n{"step": 10, "lo')  # the last one is being written
        wait_for('"log", 9')
    finally:
        follower.send_signal(signal.SIGTERM)
    checks.expect(follower.wait(30) == 0, "the follower failed")
checks.expect(steps(calls())[-5:] == [5, 6, 7, 8, 9], "other steps after a resume")

# While no follower is at work, a run of 10 steps goes back to step 4 and on to 8, and later to 12.
pathlib.Path("off").mkdir()


def write_steps(first, last, loss, mode):
    with open("off/metrics.jsonl", mode) as file:
        file.writelines(json.dumps({"step": step, "loss": loss}) + "\n" for step in range(first, last + 1))


for first, last, loss, rewrites in ((1, 10, 3, True), (5, 8, 2, True), (9, 12, 2, False)):
    if rewrites:
        write_steps(1, first - 1, 3, "w")
    write_steps(first, last, loss, "a")
    sent = [call[1:] for call in follow("off", "wandb", "--once") if call[0] == "log"]
    checks.expect(sent == [[step, {"loss": loss}] for step in range(first, last + 1)], f"from {first} to {last}: {sent}")

pathlib.Path("wandb.py").write_text("raise ImportError('No module named wandb')")
for arguments, text in ((("a", "wandb", "--once"), "pip install wandb"), (("absent", "mlflow"), "does not exist")):
    done = subprocess.run(command(*arguments), env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    checks.expect(done.returncode != 0 and text in done.stderr, f"{arguments}: exit {done.returncode}", done.stderr)
checks.finish()
