"""A checkpoint of a pipeline with ZeRO and expert parallelism goes on in any other layout, and back, with the losses of
the run that was never stopped; with a shard missing, doubled or exchanged it is refused."""

import json
import os
import pathlib
import re
import shutil
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import (EVEN, Checks, largest_difference, outputs, read_metrics, run, same_bits,  # noqa: E402
                   write_corpus, write_run_file)

checks = Checks()
write_corpus("text")
RUN = write_run_file()
MODEL = ["model.layers=4", "train.micro_batches=4", "train.schedule=constant", "train.seq_len=16"]
EIGHT = "mesh.pp=2 mesh.ep=2 mesh.zero=1"  # on eight ranks dense states have four owners, those of experts two


def train(name, ranks, layout, *overrides):
    result = run(ranks, "train", RUN, *outputs(name), *MODEL, *layout.split(), *overrides)
    checks.expect(result.code == 0, f"{name}: -np {ranks} {layout}: exit {result.code}", result.output)
    print(f"{result.seconds:5.1f} s  {name}: -np {ranks} {layout}", flush=True)


def goes_on(whole, name, ranks, layout, source, steps, tolerance=1e-5, *overrides):
    """Resumes at the end of `source`, up to the last of `steps`, with the losses of `whole`."""
    train(name, ranks, layout, f"checkpoint.resume={source}", f"train.steps={steps[-1]}", *overrides)
    got = read_metrics(name)
    checks.expect(sorted(got) == list(steps), f"{name}: steps {sorted(got)}")
    difference = largest_difference(read_metrics(whole), got, ["loss"])
    norms = largest_difference(read_metrics(whole), got, ["grad_norm"])
    print(f"         loss within {difference:.1e}, gradient norm within {norms:.1e}")
    checks.expect(difference < tolerance, f"{name}: losses differ by {difference:.1e}, more than {tolerance}")
    checks.expect(norms < 30 * tolerance, f"{name}: gradient norms differ by {norms:.1e}")


def saved(name, step):
    return f"{name}/checkpoints/step-{step:08}"


train("whole", 8, EIGHT, "train.steps=10", "checkpoint.every=5")
LAYOUTS = [
    ("same", 8, EIGHT),
    ("one", 1, ""),
    ("dp", 2, ""),
    ("dp-zero", 4, "mesh.zero=1"),
    ("ep", 4, "mesh.ep=4 moe.transport=padded"),
    ("dp-first", 4, "mesh.ep=2 mesh.placement=dp_first mesh.zero=1"),
    ("pp-ep", 4, "mesh.pp=2 mesh.ep=2 mesh.schedule=gpipe"),
    ("pp", 4, "mesh.pp=4"),
    ("interleaved", 2, "mesh.pp=2 mesh.schedule=interleaved"),
    ("zero-bubble", 2, "mesh.pp=2 mesh.schedule=zb_v"),
    ("uneven", 4, "mesh.pp=2 mesh.stage_layers=1,3 mesh.zero=1"),
    ("wide", 8, "mesh.pp=2 mesh.ep=4 mesh.placement=dp_first mesh.zero=1"),
    ("deep", 8, "mesh.pp=4 mesh.zero=1"),
    ("tp", 4, "mesh.tp=4 mesh.ep=4 mesh.zero=1"),
    ("tp-dp", 4, "mesh.tp=2 mesh.ep=2 mesh.placement=dp_first"),
    ("ted", 4, "mesh.tp=2 mesh.ep=2 moe.tp_mode=ted mesh.zero=1"),
    ("experts", 4, "mesh.ep=4 mesh.zero=1 moe.transport=flat mesh.expert_shares=3,1,2,1"),
    ("slices", 4, "mesh.ep=4 mesh.zero=1 moe.transport=gather_tokens mesh.width_shares=2,1,1,4"),
    ("all", 8, "mesh.pp=2 mesh.tp=2 mesh.ep=2 mesh.zero=1"),
]
for name, ranks, layout in LAYOUTS:
    goes_on("whole", name, ranks, layout, saved("whole", 5), range(6, 9))
same_bits(checks, "same", {s: e for s, e in read_metrics("whole").items() if s in (6, 7, 8)}, read_metrics("same"))
# And from those layouts into this one.
for name in ("pp", "interleaved", "wide", "tp", "ted", "slices", "all"):
    goes_on("whole", f"from-{name}", 8, EIGHT, saved(name, 8), range(9, 11))

# Tied embeddings lie on the first and on the last stage, and once in the checkpoint.
TIED = "model.tie_embeddings=true"
train("tied", 4, EIGHT, TIED, "train.steps=7", "checkpoint.every=5")
for name, ranks, layout in [("tied-one", 1, ""), ("tied-pp", 4, "mesh.pp=4"), ("tied-dp", 4, "mesh.ep=2 mesh.zero=1"),
                            ("tied-tp", 4, "mesh.tp=4"), ("tied-tp-pp", 4, "mesh.tp=2 mesh.pp=2 mesh.schedule=zb_v")]:
    goes_on("tied", name, ranks, layout, saved("tied", 5), range(6, 8), 1e-5, TIED)

# A vocabulary that TP does not divide.
for tied in ("false", "true"):
    ODD, whole = ["model.vocab=259", f"model.tie_embeddings={tied}"], f"odd-{tied}"
    train(whole, 8, "mesh.tp=4 mesh.zero=1", *ODD, "train.steps=10", "checkpoint.every=5")
    for name, ranks, layout in [("one", 1, ""), ("tp", 2, "mesh.tp=2 mesh.ep=2"), ("pp", 4, "mesh.pp=2 mesh.zero=1")]:
        goes_on(whole, f"{whole}-{name}", ranks, layout, saved(whole, 5), range(6, 9), 1e-5, *ODD)
    goes_on(whole, f"{whole}-back", 8, "mesh.tp=4 mesh.zero=1", saved(f"{whole}-one", 8), range(9, 11), 1e-5, *ODD)

# Gains of norms over all heads are cut as the heads are: with TP 4 six heads unevenly, and those of two key/value heads,
# which ranks then share, not at all.
NORM = ["model.qk_norm=full_width", "model.heads=6", "model.head_dim=8"]
train("norm", 1, "", *NORM, "train.steps=9", "checkpoint.every=5")
for name, ranks, layout, source, steps in [("norm-tp2", 2, "mesh.tp=2 mesh.zero=1", "norm", range(6, 8)),
                                           ("norm-tp4", 4, "mesh.tp=4 mesh.ep=2", "norm-tp2", range(8, 9)),
                                           ("norm-one", 1, "", "norm-tp4", range(9, 10))]:
    goes_on("norm", name, ranks, layout, saved(source, steps[0] - 1), steps, 1e-5, *NORM)

# In bf16 a layout rounds in its own way: as far as `verify` lets losses differ.
train("bf16", 4, EIGHT, *EVEN, "train.steps=7", "checkpoint.every=5")
for name, ranks, layout in [("bf16-same", 4, EIGHT), ("bf16-one", 1, ""), ("bf16-pp", 4, "mesh.pp=4")]:
    goes_on("bf16", name, ranks, layout, saved("bf16", 5), range(6, 8), 2e-3, *EVEN)
same_bits(checks, "bf16", {s: e for s, e in read_metrics("bf16").items() if s > 5}, read_metrics("bf16-same"))

# Damage.
WHOLE, DAMAGED = pathlib.Path(saved("whole", 5)), pathlib.Path("damaged/step-00000005")


def resume_damaged(ranks, layout):
    return run(ranks, "train", RUN, *MODEL, *layout.split(), f"checkpoint.resume={DAMAGED}", "train.steps=6",
               "watchdog.seconds=0", timeout=60)


def refused(label, damage, *parts, ranks=1, layout=""):
    shutil.rmtree("damaged", ignore_errors=True)
    shutil.copytree(WHOLE, DAMAGED)
    damage()
    result = resume_damaged(ranks, layout)
    told = re.findall(r"error: .*", result.output)
    checks.expect(result.code == 5 and len(told) == 1, f"{label}: exit {result.code}, told {len(told)} times",
                  result.output)
    for part in (*parts, "hint:"):
        checks.expect(re.search(part, result.output), f"{label}: no \"{part}\"", result.output)


def change_slices(change):
    """Changes the list of slices, and has DONE vouch for it: the refusal tells the checksum."""
    index = json.loads((DAMAGED / "index.json").read_text())
    change(index["slices"])
    (DAMAGED / "index.json").write_text(json.dumps(index))
    found = re.search(r"its checksum is (\w+), DONE says", resume_damaged(1, "").output)
    if checks.expect(found, "no checksum in the refusal"):
        (DAMAGED / "DONE").write_text(found[1] + "\n")


def place(slices, tensor, which=0):
    return [i for i, s in enumerate(slices) if s["tensor"] == tensor][which]


def shard(rank):
    return DAMAGED / f"rank-{rank:05}.safetensors"


def exchange(a, b):
    shard(a).rename(DAMAGED / "x")
    shard(b).rename(shard(a))
    (DAMAGED / "x").rename(shard(b))


for rank in (0, 3, 7):
    refused(f"shard {rank} is missing", lambda: shard(rank).unlink(), shard(rank).name)
refused("a doubled shard", lambda: shutil.copy(shard(1), shard(3)), shard(3).name)
refused("exchanged shards", lambda: exchange(2, 6), r"rank-0000[26]")
names = {s["tensor"] for s in json.loads((WHOLE / "index.json").read_text())["slices"]}
CUT = next(n for n in sorted(names) if n.startswith("adam_m.layers.0.") and "norm" not in n)
EXPERT = next(n for n in sorted(names) if n.startswith("adam_v.layers.3.moe.w_"))
for tensor in (CUT, EXPERT):
    refused(f"a slice of {tensor} is missing", lambda: change_slices(lambda s: s.pop(place(s, tensor, -1))),
            re.escape(tensor), "in no slice|slices (of .* )?end at")
    refused(f"a slice of {tensor} is doubled", lambda: change_slices(lambda s: s.append(s[place(s, tensor)])),
            re.escape(tensor), "in two slices")


# What only one stage reads: the others wait for it, and it alone speaks.
def corrupt(tensor):
    index = json.loads((WHOLE / "index.json").read_text())
    s = index["slices"][place(index["slices"], tensor)]
    data = bytearray((DAMAGED / s["file"]).read_bytes())
    length = int.from_bytes(data[:8], "little")
    begin = json.loads(data[8:8 + length])[s["key"]]["data_offsets"][0]
    data[8 + length + begin] ^= 1
    (DAMAGED / s["file"]).write_bytes(data)


refused("corrupt in the last stage", lambda: corrupt(EXPERT), re.escape(EXPERT), "rank [1-3]: ", ranks=4,
        layout="mesh.pp=4")
checks.finish()
