"""`moewright plan`: the shipped requests, one layout explained, JSON, a run file that train takes, and errors that say
what would work."""

import json
import os
import pathlib
import re
import sys
import xml.etree.ElementTree

SOURCE = pathlib.Path(os.environ["MOEWRIGHT_SOURCE"])
sys.path.insert(0, str(SOURCE / "tests" / "support"))
from _jobs import Checks, run  # noqa: E402

checks = Checks()
H200 = str(SOURCE / "profiles/h200x8.json")
XEON = str(SOURCE / "profiles/xeon_amx_2_cores.json")
FRONTIER = str(SOURCE / "profiles/frontier.json")
QWEN = str(SOURCE / "examples/plan-qwen3-30b.toml")


def expect(code, texts, *arguments):
    result = run(1, "plan", *arguments)
    for text in texts:
        checks.expect(result.code == code and text in result.output,
                      f"plan {' '.join(arguments)}: exit {result.code}, expected {code} and {text!r}", result.output)
    return result.output


os.symlink(SOURCE / "profiles", "profiles")
examples = sorted((SOURCE / "examples").glob("plan-*.toml"))
checks.expect({"plan-deepseek-v3", "plan-qwen3-30b", "plan-xmoe-super"} <= {example.stem for example in examples}, f"{examples}")
for example in examples:
    expect(0, ["weighed ", "memory by stage", "MFU", "it fits: ", "what limits its speed: compute", "memory: "], str(example),
           "--top", "3")
expect(0, ["simulated layouts that fit are faster", "exposed communication", 'moe.transport = "auto": bypass, by ',
           "recompute=none transport=bypass"], QWEN, "--why", "ep=8 micro_batches=8")  # as `train` would choose
expect(0, ["does not fit: stage 0 needs", "the fastest that fits with 1 change"], QWEN, "--why", "ep=8 micro_batches=1")
expect(0, ["rows a token between nodes", "bypass", "of 16 ranks: "], QWEN, "--ranks", "16", "--why", "ep=16 micro_batches=4")
plan = json.loads(expect(0, [], QWEN, "--json", "--top", "2"))
checks.expect(len(plan["best"]) == 2 and plan["best"][0]["step_s"] <= plan["best"][1]["step_s"], "order", str(plan))
lines = expect(0, [], QWEN, "--list-all").splitlines()
checks.expect(len(lines) == plan["weighed"], f"{len(lines)} lines for {plan['weighed']} layouts", "")

# A plan for this machine, and the run that it writes.
pathlib.Path("text").mkdir()
pathlib.Path("text/a.txt").write_text("abcdefgh" * 4000)
pathlib.Path("small.toml").write_text("""
[model]
width = 32
layers = 2
heads = 2
experts = 4
expert_width = 32
[data]
path = "text"
[train]
steps = 2
seq_len = 32
global_batch = 8
[watchdog]
seconds = 0
""")
expect(0, ["wrote best.toml", "wrote best.svg"], "small.toml", "--platform", XEON, "--ranks", "2", "--emit", "best.toml",
       "--plot", "best.svg")
emitted = pathlib.Path("best.toml").read_bytes()
expect(2, ["best.toml already exists", "pass --force"], "small.toml", "--platform", XEON, "--ranks", "2", "--emit", "best.toml")
checks.expect(pathlib.Path("best.toml").read_bytes() == emitted, "a refused --emit changed the file", "")
expect(0, ["wrote best.toml"], "small.toml", "--platform", XEON, "--ranks", "2", "--emit", "best.toml", "--force")
# What cannot be written is refused before the search.
for code, text, *output in ((2, "best.toml exists and is no picture", "--plot", "best.toml"),
                            (4, "cannot write text: it is a folder", "--plot", "text"),
                            (4, "cannot create the folder /dev/null for /dev/null/x.svg: ", "--plot", "/dev/null/x.svg"),
                            (4, "cannot create the folder small.toml for small.toml/a.toml: ", "--emit", "small.toml/a.toml"),
                            (4, "cannot write text: it is a folder", "--emit", "text", "--force")):
    told = expect(code, [text, "hint:"], "small.toml", "--platform", XEON, "--ranks", "2", *output)
    checks.expect("weighed" not in told, f"{output}: refused after the search", told)
root = xml.etree.ElementTree.parse("best.svg").getroot()
checks.expect(root.tag.endswith("svg") and len(root) > 20, f"best.svg: {root.tag} with {len(root)} elements", "")
result = run(2, "train", "best.toml")
checks.expect(result.code == 0 and "step" in result.output, f"train of a planned layout: exit {result.code}",
              result.output)

pathlib.Path("load.json").write_text("[4, 3, 2, 1]")
expect(0, ["weighed", "of 1 measured loads"], "small.toml", "--platform", XEON, "--ranks", "2", "--why", "ep=2 tp=1 pp=1", "--load", "load.json")
result = run(2, "train", "best.toml", "train.steps=5", "log.every=1", "log.jsonl=metrics.jsonl")
expect(0, ["of 4 measured loads", "gather_weights"], "small.toml", "--platform", XEON, "--ranks", "2", "--why", "ep=2 tp=1 pp=1",
       "--load", "metrics.jsonl")
pathlib.Path("load.json").write_text("[4, 3, 2]")
expect(3, ["has the rows of 3 experts, expected 4", "hint:"], "small.toml", "--platform", XEON, "--ranks", "2",
       "--load", "load.json")
pathlib.Path("load.json").write_text("[5e-324, 0, 0, 0]")
expect(3, ["--load: expected non-negative row counts per expert", "hint:"], "small.toml", "--platform", XEON, "--ranks", "2", "--why", "ep=2 tp=1 pp=1",
       "--load", "load.json")
pathlib.Path("load.json").write_text('{"a": 1}')
expect(3, ["expected a list with the rows of each expert", "hint:"], "small.toml", "--platform", XEON, "--ranks", "2", "--load",
       "load.json")
pathlib.Path("bad.json").write_text("{}")
expect(3, ["lacks the field \"format\"", "hint:"], "small.toml", "--platform", "bad.json", "--ranks", "2")
expect(2, ["no platform profile", "hint:"], "small.toml")
expect(2, ["no number of ranks", "hint:"], "small.toml", "--platform", XEON)
expect(3, ["no layout of 3 ranks can share a step of 8 samples", "--ranks 2"], "small.toml", "--platform", XEON,
       "--ranks", "3")
expect(3, ["train.global_batch = 8 is not divisible by", "hint:"], "small.toml", "--platform", XEON, "--ranks", "3",
       "--why", "pp=1 tp=1 ep=1")
expect(3, ["more than a plan can count", "hint:"], QWEN, "train.global_batch=16000000", "train.seq_len=4000000")
expect(0, ["of the host for each rank, by memory.offload"], QWEN, "--ranks", "2", "memory.offload=optimizer")
expect(3, ["the profile of", "has no host_bytes_per_s", "hint:"], QWEN, "--platform", FRONTIER, "memory.offload=optimizer")
expect(6, ["none of", "makes it fit: memory.offload=optimizer, --ranks 4"], QWEN, "--ranks", "2")
expect(3, ["mesh.ep = 3 does not divide", "hint:"], QWEN, "--why", "ep=3")
expect(2, ["did you mean \"zero\"?", "hint:"], QWEN, "--why", "zeros=1")

# What would not be heeded is refused.
for key in ("mesh.pp=2", "mesh.zero=1", "train.micro_batches=4", "memory.recompute=full"):
    expect(2, [f"{key.split('=')[0]} is chosen by the planner, but the override {key} sets it", "hint:", "--why"], QWEN, key)
expect(0, ["zero=1 micro_batches=8", "cheapest for 48 layers of 128 experts"], QWEN, "--why", "", "mesh.ep=8", "mesh.zero=1",
       "train.micro_batches=8")
for option in (["--json"], ["--emit", "a.toml"], ["--plot", "a.svg"], ["--why", "ep=8"]):
    expect(2, ["--list-all", "excludes"], QWEN, "--list-all", *option)
for ranks in ("0", "-1", "1048577"):
    expect(2, ["--ranks"], QWEN, "--ranks", ranks)
expect(3, ["the nearest that works", "or --ranks 1048575"], "small.toml", "--platform", H200, "--ranks", "1048576",
       "train.global_batch=1048575", "model.heads=1")

# `init` for a model and a machine: the run file holds the layout that `plan` puts first, with every key explained.
os.makedirs("qwen")
pathlib.Path("qwen/config.json").write_text((SOURCE / "tests/data/configs/qwen3-30b-a3b.json").read_text())
request = ["--platform", H200, "--ranks", "8"]
keys = ["data.kind=megatron", "train.seq_len=4096", "train.global_batch=64"]
result = run(1, "init", "made.toml", "--model", "qwen", *request, *keys)
text = pathlib.Path("made.toml").read_text() if result.code == 0 else ""
checks.expect('model = "hf:qwen"' in text and "# profile of the machine" in text and "moewright plan" in text,
              f"init: exit {result.code}", result.output + text[:500])
best = json.loads(expect(0, [], "made.toml", "--json", "--top", "1"))["best"][0]["layout"]
for word in best.split():
    name, value = word.split("=")
    name = {"micro_batches": "train.micro_batches", "recompute": "memory.recompute"}.get(name, f"mesh.{name}").split(".")[1]
    checks.expect(re.search(rf"^{name} = \"?{value}\"? ", text, re.M), f"init: not the best layout: {best}", text)
result = run(1, "init", "model.layers=9")
checks.expect(result.code == 0 and re.search("^layers = 9 ", result.output, re.M), "init: a key without a file", result.output)
for arguments, code, message in ((["made.toml"], 2, "made.toml already exists"), (["--model", "absent"], 3, "absent/config.json"),
                                 (["new.toml", *request, "mesh.ep=2"], 2, "mesh.ep is chosen by the planner"),
                                 (["new.toml", "train.lrr=1"], 3, "did you mean"), (["new.toml", "--ranks", "2"], 2, "no platform")):
    result = run(1, "init", *arguments)
    checks.expect(result.code == code and message in result.output and not pathlib.Path("new.toml").exists(),
                  f"init {arguments}: exit {result.code}", result.output)
checks.finish()
