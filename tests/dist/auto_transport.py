"""moe.transport = "auto" chooses again from the loads of step 16. A run that was stopped before or after that step and resumed
computes what an uninterrupted one does, bit for bit."""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import SOURCE, Checks, outputs, read_metrics, run, same_bits, write_corpus, write_run_file  # noqa: E402

checks = Checks()
write_corpus("text")
RUN = write_run_file()

# Links so slow that they decide: flat sends least while ranks are equally loaded, gathered weights when all rows go to one.
profile = json.loads((SOURCE / "profiles" / "frontier.json").read_text())
for level in profile["levels"]:
    for cost in ("all_to_all", "ring", "message"):
        level[cost][1] /= 1e4
with open("slow.json", "w") as file:
    json.dump(profile, file)
KEYS = ["plan.platform=slow.json", "mesh.ep=4", "moe.forced_load=one_expert", "model.top_k=1", "model.experts=16",
        "model.expert_width=8", "train.schedule=constant"]


def train(name, steps, *overrides):
    result = run(4, "train", RUN, *outputs(name), *KEYS, f"train.steps={steps}", *overrides)
    checks.expect(result.code == 0, f"{name} {overrides}: exit {result.code}", result.output)
    print(f"{result.seconds:5.1f} s  {name}: {steps} steps {' '.join(overrides)}", flush=True)
    return result.output


output = train("whole", 20)
checks.expect('moe.transport = "auto": flat' in output, "did not begin with flat", output)
checks.expect('step 16: moe.transport = "auto": gather_weights in place of flat' in output, "did not change", output)
for stop in (12, 17):
    name = f"stopped-{stop}"
    train(name, stop)
    output = train(name, 20, "checkpoint.resume=auto")
    checks.expect(f"after step {stop}" in output, f"did not resume after step {stop}", output)
    checks.expect(("step 16: moe.transport" in output) == (stop < 16), f"{name}: when it changed", output)
    same_bits(checks, name, read_metrics("whole"), read_metrics(name))
checks.finish()
