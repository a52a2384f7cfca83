"""What a run tells beside its losses does not depend on the layout: validation, sampled tokens, metrics and the trace
of the last step."""

import collections
import json
import os
import pathlib
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import (SMALL, SOURCE, Checks, largest_difference, outputs, run,  # noqa: E402
                   write_corpus, write_run_file)

checks = Checks()
write_corpus("text")
RUN = write_run_file()
MICRO_BATCHES = 4
COMMON = ["model.layers=4", f"train.micro_batches={MICRO_BATCHES}", "train.seq_len=16", "train.steps=8"]
TOLD = ["train.val_batches=2", "train.val_every=4", "sample.tokens=24", "sample.prompt=eta", "sample.temperature=1"]
LAYOUTS = {  # ranks, stages of rank 0, overrides
    "one": (1, 1, ""),
    "pp": (2, 1, "mesh.pp=2"),
    "pp-ep": (4, 1, "mesh.pp=2 mesh.ep=2 mesh.schedule=gpipe mesh.zero=1"),
    "deep": (4, 1, "mesh.pp=4"),
    "interleaved": (2, 2, "mesh.pp=2 mesh.schedule=interleaved"),
    "zero-bubble": (2, 2, "mesh.pp=2 mesh.schedule=zb_v"),
    "tp": (4, 1, "mesh.tp=4 mesh.ep=2 memory.recompute=moe"),
    "ted": (4, 1, "mesh.tp=2 mesh.ep=2 moe.tp_mode=ted"),
    "tp-pp": (4, 1, "mesh.tp=2 mesh.pp=2 mesh.ep=2 mesh.zero=1"),
}


def scopes(path):
    """How often each action is in a trace, and that no two of them overlap."""
    events = [e for e in json.loads(path.read_text())["traceEvents"] if "micro_batch" in e.get("args", {})]
    events.sort(key=lambda e: e["ts"])
    for a, b in zip(events, events[1:]):
        checks.expect(a["ts"] + a["dur"] <= b["ts"] + 0.01, f"{path}: {a['name']} and {b['name']} overlap")
    return collections.Counter(e["name"] for e in events)


def steps_and_validations(name):
    """Metrics by step, and the validation losses in their order."""
    lines = [json.loads(line) for line in pathlib.Path(name, "metrics.jsonl").read_text().splitlines()]
    validations = [line[key] for line in lines for key in ("val_loss", "final_val_loss") if line.get(key) is not None]
    return {line["step"]: line for line in lines if "loss" in line}, validations


def sampled(output):
    found = re.search(r"---- sample, 24 tokens after the prompt ----\n(.*?)\n----", output, re.S)
    return found[1] if found else None


told, metrics = {}, {}
for name, (ranks, stages, layout) in LAYOUTS.items():
    trace = pathlib.Path(name, "trace.json")
    result = run(ranks, "train", RUN, *outputs(name), *COMMON, *TOLD, *layout.split(), f"log.trace={trace}")
    checks.expect(result.code == 0, f"{name}: exit {result.code}", result.output)
    print(f"{result.seconds:5.1f} s  {name}: -np {ranks} {layout}", flush=True)
    told[name] = (re.findall(r"validation after step \d+: loss [\d.]+", result.output), sampled(result.output))
    metrics[name] = steps_and_validations(name)
    (one, reference), (got, validations) = metrics["one"], metrics[name]
    checks.expect(sorted(got) == list(range(1, 9)), f"{name}: steps {sorted(got)}")
    difference = largest_difference(one, got, ["loss", "aux_loss", "z_loss", "grad_norm"])
    print(f"         metrics within {difference:.1e} of one process; sample {told[name][1]!r}")
    checks.expect(difference < 1e-4, f"{name}: metrics differ by {difference:.1e}")
    checks.expect(len(validations) == 2 and all(abs(a - b) < 1e-5 * b for a, b in zip(validations, reference)),
                  f"{name}: validation losses {validations}, expected {reference}")
    # Rank 0 holds the first stage: gradients come, and go nowhere but to rank 0's own stages.
    counts, crossing = scopes(trace), MICRO_BATCHES if "mesh.pp" in layout else 0
    expected = {"forward": stages * MICRO_BATCHES, "reduce_statistics": stages * MICRO_BATCHES,
                "backward": stages * MICRO_BATCHES, "reduce_gradients": stages,
                "send_activation": stages * crossing, "receive_gradient": stages * crossing,
                "receive_activation": (stages - 1) * crossing, "send_gradient": (stages - 1) * crossing}
    if name == "zero-bubble":  # a V: rank 0 also holds the last stage
        split = expected.pop("backward")
        expected.update(backward_input=split, backward_weight=split)
        expected.update({message: crossing for message in expected if message.startswith(("send", "receive"))})
    checks.expect(counts == {k: n for k, n in expected.items() if n > 0}, f"{name}: trace has {dict(counts)}")
    checks.expect(told[name] == told["one"] and told[name][1], f"{name}: told {told[name]}, expected {told['one']}")

# The same weights in any layout draw the same text.
texts = {}
for name, (ranks, _, layout) in LAYOUTS.items():
    result = run(ranks, "sample", RUN, *COMMON, *layout.split(), "sample.tokens=40", "sample.prompt=eta",
                 "--checkpoint", "one/checkpoints/step-00000008")
    checks.expect(result.code == 0, f"sample {name}: exit {result.code}", result.output)
    texts[name] = result.output
    checks.expect(texts[name] == texts["one"], f"sample {name}: {texts[name]!r}, expected {texts['one']!r}")
checks.expect(len(texts["one"]) > 20, f"sample: {texts['one']!r}")

# A Hugging Face folder is read into what each rank holds.
rest = SMALL.split("[data]")[1]
HF = write_run_file("hf.toml", f'model = "hf:{SOURCE / "tests" / "golden" / "models" / "qwen3_moe"}"\n[data]{rest}')
read = {}
for name in ("one", "pp", "pp-ep", "tp", "ted", "tp-pp"):  # the model has two layers
    ranks, _, layout = LAYOUTS[name]
    result = run(ranks, "train", HF, "train.micro_batches=4", "train.seq_len=16", "train.steps=2", "train.val_batches=2",
                 *layout.split())
    checks.expect(result.code == 0, f"hf {name}: exit {result.code}", result.output)
    read[name] = re.findall(r"validation after step 2: .*", result.output)
    checks.expect(read[name] == read["one"] and read[name], f"hf {name}: {read[name]}, expected {read['one']}")
checks.finish()
