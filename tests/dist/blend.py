"""A weighted blend of data sets gives the same steps on any number of ranks and after a resume; mistakes are told."""

import json
import os
import pathlib
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _jobs import Checks, largest_difference, outputs, read_metrics, run, same_bits, write_corpus, write_run_file  # noqa: E402

checks = Checks()
for name, seed in (("a", 1), ("b", 2), ("c", 3)):
    write_corpus(name, files=3, seed=seed)
write_run_file()
BLEND = 'data.blend=["5 a", "3 b", "2 c"]'


def train(name, ranks, *overrides):
    result = run(ranks, "train", "run.toml", "data.path=", *outputs(name), *overrides)
    checks.expect(result.code == 0, f"{name}: exit {result.code}", result.output)
    return result


result = train("whole", 1, BLEND)
checks.expect("50.0 % text a:" in result.output and "20.0 % text c:" in result.output, "the header", result.output)
train("only", 1, "data.path=a")
checks.expect(largest_difference(read_metrics("only"), read_metrics("whole"), ("loss",)) > 1e-3, "the blend has no effect")
train("two", 2, BLEND, "mesh.ep=2")
difference = largest_difference(read_metrics("whole"), read_metrics("two"))
checks.expect(difference < 1e-4, f"2 ranks differ by {difference}")
result = train("validated", 1, BLEND, "train.steps=1", "train.val_batches=2")
checks.expect("validation after step 1: loss" in result.output, "no validation", result.output)
RARE = 'data.blend=["98 a", "2 b"]'  # b has no window of the validation
result = train("rare", 1, RARE, "train.steps=1", "train.val_batches=1")
checks.expect(re.search(r"by source \d\.\d+, -$", result.output, re.M), "the log of a source without labels", result.output)
last = json.loads(pathlib.Path("rare/metrics.jsonl").read_text().splitlines()[-1])
checks.expect(last["final_val_losses"] == [last["final_val_loss"], None], f"metrics of a source without labels: {last}")
result = run(1, "evaluate", "rare/checkpoints")
checks.expect(result.code == 0 and "loss -, perplexity -, 0 labels" in result.output, "evaluate", result.output)
result = run(1, "evaluate", "rare/checkpoints", "--json")
sources = json.loads(result.output.splitlines()[-1])["sources"]
checks.expect(sources[1]["loss"] is None and sources[1]["perplexity"] is None and sources[0]["loss"] > 0, f"{sources}")
result = run(1, "report", "rare")
checks.expect(result.code == 0, f"report: exit {result.code}", result.output)
train("cut", 1, BLEND, "train.steps=5", "train.schedule=constant")
train("cut", 1, BLEND, "checkpoint.resume=auto", "train.schedule=constant")
train("uncut", 1, BLEND, "train.schedule=constant")
same_bits(checks, "resumed", read_metrics("uncut"), read_metrics("cut"))

for overrides, code, text in (([BLEND, "data.path=a"], 3, "exclude each other"), (['data.blend=["a"]'], 3, "WEIGHT PATH"),
                              (['data.blend=["1 a", "1 absent"]'], 4, "absent"), ([], 3, "data.path is empty"),
                              ([BLEND, "train.byte_baseline=true", "train.val_batches=1"], 3, "byte_baseline")):
    result = run(1, "train", "run.toml", "data.path=", *overrides)
    checks.expect(result.code == code and text in result.output, f"{overrides}: exit {result.code}", result.output)
checks.finish()
