"""moe.transport = "auto" chooses by the loads of the first batch, and again by those of step 16, for each layer by its own.
A run that was stopped before or after that step and resumed computes what an uninterrupted one does, bit for bit."""

import json
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import SOURCE, Checks, outputs, read_metrics, run, same_bits, write_corpus, write_run_file  # noqa: E402

checks = Checks()
write_corpus("text")
RUN = write_run_file()

# Links so slow that they decide: flat sends least while ranks are equally loaded, gathered weights when all rows go to one.
for name, slower in (("slow.json", 1e4), ("slowest.json", 1e6)):
    profile = json.loads((SOURCE / "profiles" / "frontier.json").read_text())
    for level in profile["levels"]:
        for cost in ("all_to_all", "ring", "message"):
            level[cost][1] /= slower
    with open(name, "w") as file:
        json.dump(profile, file)
KEYS = ["plan.platform=slow.json", "mesh.ep=4", "model.top_k=1", "model.experts=16", "model.expert_width=8",
        "train.schedule=constant"]


def train(name, steps, load, *overrides):
    result = run(4, "train", RUN, *outputs(name), *KEYS, f"moe.forced_load={load}", f"train.steps={steps}", *overrides)
    checks.expect(result.code == 0, f"{name} {overrides}: exit {result.code}", result.output)
    print(f"{result.seconds:5.1f} s  {name}: {steps} steps {' '.join(overrides)}", flush=True)
    return result.output


output = train("skewed", 2, "one_expert")
checks.expect('moe.transport = "auto": gather_weights, by slow.json and the loads of the first batch' in output,
              "did not choose by the first batch", output)

# Loads that change after step 12.
output = train("even", 12, "balanced")
checks.expect('moe.transport = "auto": flat' in output, "did not begin with flat", output)
for name in ("whole", "stopped"):
    shutil.copytree("even", name)
output = train("whole", 20, "one_expert", "checkpoint.resume=auto")
checks.expect('step 16: moe.transport = "auto": gather_weights in place of flat' in output, "did not change", output)
train("stopped", 17, "one_expert", "checkpoint.resume=auto")
output = train("stopped", 20, "one_expert", "checkpoint.resume=auto")
checks.expect("after step 17" in output and "step 16: moe.transport" not in output, "did not go on", output)
same_bits(checks, "stopped", read_metrics("whole"), read_metrics("stopped"))

# As the router chooses, one rank has three times the mean in the first MoE layer, and 1.3 times in another one.
BY_LAYER = ["plan.platform=slowest.json", "model.layers=6", "model.expert_width=4"]
output = train("by_layer", 20, "none", *BY_LAYER)
chosen = {step: entry["transport"] for step, entry in read_metrics("by_layer").items()}
checks.expect(f'moe.transport = "auto": {chosen[1]}, by slowest.json' in output, f"metrics say {chosen[1]}", output)
checks.expect(set(chosen[1].replace("*", ",").split(",")) >= {"flat", "gather_weights"}, f"chose {chosen[1]}", output)
for steps in (9, 20):
    train("by_layer_stopped", steps, "none", "checkpoint.resume=auto", *BY_LAYER)
same_bits(checks, "by_layer_stopped", read_metrics("by_layer"), read_metrics("by_layer_stopped"))
again = {step: entry["transport"] for step, entry in read_metrics("by_layer_stopped").items()}
checks.expect(again == chosen, f"transports {chosen} became {again}")
checks.finish()
