#!/usr/bin/env python3
"""Sends the numbers of a run's metrics.jsonl to Weights & Biases or MLflow while the run writes them.

  tools/follow_metrics.py runs/a wandb --project moe                 needs the package wandb
  tools/follow_metrics.py runs/a mlflow --project moe                needs mlflow
  tools/follow_metrics.py runs/a wandb --offline                     into runs/a/wandb; later: wandb sync runs/a/wandb/offline-run-*
  tools/follow_metrics.py runs/a mlflow --offline                    into runs/a/mlflow.db
  tools/follow_metrics.py runs/a wandb --once                        what is there now, instead of following until Ctrl-C

The first argument is the folder with metrics.jsonl, or a metrics file. Nested fields are named work_ms.matmul; lists, such as
expert loads, are left out. The run's description becomes the configuration. Beside the metrics, a file NAME.wandb or
NAME.mlflow says which run they went to and which lines were sent: started again, the script goes on there. When a run
resumes from an earlier step, its steps from there on are sent again, and replace the older ones in curves over the step."""

import argparse
import json
import os
import pathlib
import signal
import sys
import time
import zlib


class Wandb:
    """The axis is the metric "step", because the service's own may not go back."""

    def __init__(self, options, run_id):
        import wandb
        mode = "offline" if options.offline else "online"
        self.run = wandb.init(project=options.project, name=options.name, id=run_id, resume="allow", mode=mode,
                              dir=str(options.folder))
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        self.id = self.run.id

    def describe(self, fields):
        self.run.config.update(fields, allow_val_change=True)

    def log(self, step, numbers):
        self.run.log({"step": step, **numbers})

    def finish(self):
        self.run.finish()


class Mlflow:
    def __init__(self, options, run_id):
        import mlflow
        self.mlflow = mlflow
        if options.offline:
            mlflow.set_tracking_uri(f"sqlite:///{options.folder.resolve()}/mlflow.db")
        mlflow.set_experiment(options.project)
        run = mlflow.start_run(run_id=run_id, run_name=None if run_id else options.name)
        self.id = run.info.run_id

    def describe(self, fields):
        self.mlflow.set_tags({name: text[:5000] for name, text in fields.items()})  # parameters could not change

    def log(self, step, numbers):
        self.mlflow.log_metrics(numbers, step=step)

    def finish(self):
        self.mlflow.end_run()


SERVICES = {"wandb": Wandb, "mlflow": Mlflow}


def numbers_of(entry, prefix=""):
    """The finite numbers of a line, those of objects in it too."""
    found = {}
    for name, value in entry.items():
        if isinstance(value, dict):
            found |= numbers_of(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[prefix + name] = value
    return found


class Lines:
    """The whole lines of a file that grows. A run that resumes cuts off its end, or begins another one. marks: the CRC of each
    line so far; at first those of an earlier start."""

    def __init__(self, path, marks):
        self.path, self.offset, self.last_line, self.marks = path, 0, 0, marks

    def ends_as_read(self, file):
        """Whether the last line that was read is still in its place."""
        if self.offset == 0:
            return False
        file.seek(self.offset - self.last_line)
        return zlib.crc32(file.read(self.last_line)) == self.marks[-1]

    def fresh(self):
        """Those since the last call; of a file that was cut or replaced, and at first, those from the first one on that is
        another."""
        with open(self.path, "rb") as file:
            known = []
            if not self.ends_as_read(file):
                known, self.marks, self.offset = self.marks, [], 0
            file.seek(self.offset)
            data = file.read()
        lines = data[:data.rfind(b"\n") + 1].splitlines(keepends=True)
        self.offset += sum(map(len, lines))
        self.last_line = len(lines[-1]) if lines else self.last_line
        marks = [zlib.crc32(line) for line in lines]
        self.marks += marks
        return lines[next((i for i, (old, new) in enumerate(zip(known, marks)) if old != new), min(len(known), len(marks))):]


def send(service, lines):
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # cut by a crash
        if not isinstance(entry, dict) or "step" not in entry:
            continue
        description = entry.pop("run", None)
        if description:
            service.describe({name: str(value) for name, value in description.items()})
        numbers = numbers_of(entry)
        step = numbers.pop("step")
        if numbers:
            service.log(step, numbers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metrics", type=pathlib.Path)
    parser.add_argument("service", choices=sorted(SERVICES))
    parser.add_argument("--project", default="moewright", help="project, or experiment of MLflow")
    parser.add_argument("--name", help="of the run; default: the folder's")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--once", action="store_true", help="end after what is there")
    parser.add_argument("--every", type=float, default=5, metavar="SECONDS", help="between looks at the file (default 5)")
    options = parser.parse_args()
    path = options.metrics / "metrics.jsonl" if options.metrics.is_dir() else options.metrics
    options.folder = path.parent
    options.name = options.name or path.resolve().parent.name
    if not path.exists():
        parser.error(f"{path} does not exist; a run writes it with log.jsonl={path}")

    mark = pathlib.Path(f"{path}.{options.service}")
    state = json.loads(mark.read_text()) if mark.exists() else {"run": None, "marks": []}
    try:
        service = SERVICES[options.service](options, state["run"])
    except ImportError as error:
        sys.exit(f"follow_metrics: {error}; install it with: pip install {options.service}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lines = Lines(path, state["marks"])
    fresh = lines.fresh()
    try:
        while True:
            send(service, fresh)
            if fresh or not mark.exists():
                new = mark.with_name(mark.name + ".tmp")
                new.write_text(json.dumps({"run": service.id, "marks": lines.marks}))
                os.replace(new, mark)
            if options.once:
                break
            time.sleep(options.every)
            fresh = lines.fresh()
    except KeyboardInterrupt:
        pass
    service.finish()


if __name__ == "__main__":
    main()
