"""TensorBoard's own reader finds in log.tensorboard what metrics.jsonl says, also after a resume from an older step."""

import json
import math
import os
import pathlib
import shutil
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _packages import require  # noqa: E402

require("tensorboard")
from _jobs import Checks, outputs, run, write_corpus, write_run_file  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from tensorboard.compat.proto.event_pb2 import Event  # noqa: E402
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New  # noqa: E402

checks = Checks()
TAGS = {"loss/train": "loss", "loss/aux": "aux_loss", "optimizer/grad_norm": "grad_norm", "optimizer/lr": "lr",
        "speed/tokens_per_s": "tokens_per_s", "memory/peak_bytes": "mem_peak_bytes", "moe/imbalance": "imbalance"}


def train(*overrides):
    result = run(1, "train", "run.toml", *outputs("run"), "log.tensorboard=run/tb", "log.every=1", "checkpoint.every=4",
                 *overrides)
    checks.expect(result.code == 0, f"train {overrides}: exit {result.code}", result.output)


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)  # scalars are float32


def read_steps():
    """The metrics by step; the validation at the end has a line of its own."""
    steps = {}
    for line in pathlib.Path("run/metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        steps.setdefault(entry["step"], {}).update(entry)
    return steps


def compare(label):
    reader = EventAccumulator("run/tb", purge_orphaned_data=True, size_guidance={"scalars": 0})
    reader.Reload()
    metrics = read_steps()
    for tag, key in TAGS.items():
        events = {event.step: event.value for event in reader.Scalars(tag)}
        same = set(events) == set(metrics) and all(close(events[s], float(metrics[s][key])) for s in events)
        checks.expect(same, f"{label}: {tag} has steps {sorted(events)}, metrics {sorted(metrics)}")
    checks.expect(len(reader.Tags()["scalars"]) >= 18, f"{label}: tags {reader.Tags()['scalars']}")
    load = metrics[2]["expert_load"][0]
    found = [event.value for event in reader.Scalars("load_max/moe_layer_0") if event.step == 2]
    checks.expect(found and close(found[0], max(load) * len(load) / sum(load)), f"{label}: load_max {found} of {load}")
    checks.expect([event.step for event in reader.Scalars("loss/validation")] == [max(metrics)],
                  f"{label}: validation at {reader.Scalars('loss/validation')}")


write_corpus("text")
write_run_file()
train("train.val_batches=1")
compare("a run")

# Every record passes the checksums of the strict reader, and is an Event.
for path in pathlib.Path("run/tb").iterdir():
    records, count = PyRecordReader_New(str(path)), 0
    while True:
        try:
            records.GetNext()
        except Exception as error:  # the reader's sign of the end is an exception too
            checks.expect("EOF" in str(error) or "no more" in str(error).lower() or type(error).__name__ == "OutOfRangeError",
                          f"{path.name}: {error!r}")
            break
        Event.FromString(records.record())
        count += 1
    checks.expect(count == 2 + 12 + 1, f"{path.name}: {count} records")

# Steps 9 to 12 are run again: the older values are gone.
shutil.rmtree("run/checkpoints/step-00000012")
train("train.val_batches=1", "checkpoint.resume=auto", "train.steps=14", "train.schedule=constant")
checks.expect(len(list(pathlib.Path("run/tb").iterdir())) == 2, "a resumed run has a file of its own")
compare("a resumed run")
checks.finish()
