"""`moewright probe`: a profile that `plan` takes and `train` predicts from; interrupted, it goes on; wrong input is refused."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
sys.dont_write_bytecode = True
from _jobs import BIN, Checks, in_turn, outputs, run, write_corpus, write_run_file  # noqa: E402

checks = Checks()
PARTS = ("memory and latency", "dense products", "expert products", "attention", "links", "fp32")


def plausible(profile, ranks):
    checks.expect(profile["format"] == "moewright-platform" and profile["ranks_per_node"] == ranks, f"{profile}")
    for rates in (profile, profile["fp32"]):
        checks.expect(1 <= rates["row_tile"] <= 512, f"row_tile: {rates['row_tile']}")
        for table in ("dense_products", "expert_products", "expert_weight_products", "attention_forward", "attention_backward"):
            sizes = [point[0] for point in rates[table]]
            checks.expect(len(sizes) >= 5 and sizes == sorted(sizes), f"{table}: {rates[table]}")
            checks.expect(all(1e8 < point[1] < 1e15 for point in rates[table]), f"{table}: {rates[table]}")
        for table in ("attention_forward_widths", "attention_backward_widths"):  # of 64 alone the rates themselves
            shares = dict(map(tuple, rates[table]))
            checks.expect(list(shares) == [8, 16, 32, 64, 128] and shares[64] == 1, f"{table}: {rates[table]}")
            checks.expect(all(0.01 < share < 100 for share in shares.values()), f"{table}: {rates[table]}")
            checks.expect(all(float(f"{share:.4g}") == share for share in shares.values()), f"{table}: {rates[table]}")
        for table in ("expert_widths", "expert_weight_widths"):
            shares = dict(map(tuple, rates[table]))
            checks.expect(list(shares) == [16, 32, 64, 128] and shares[128] == 1, f"{table}: {rates[table]}")
            checks.expect(all(0.01 < share < 100 for share in shares.values()), f"{table}: {rates[table]}")
    checks.expect(profile["peak_flops_per_s"] == max(point[1] for point in profile["dense_products"]), "peak")
    checks.expect(1e8 < profile["elementwise_bytes_per_s"] < 1e13 and 1e8 < profile["stream_bytes_per_s"] < 1e13, "memory")
    checks.expect(1e-9 < profile["operator_latency_s"] < 1e-2, "latency")
    for name in ("host_bytes_per_s", "to_host_bytes_per_s", "expert_counts"):
        checks.expect(name not in profile, f"{name}: of a CPU")
    level = profile["levels"][-1]
    checks.expect(level["ranks"] == ranks, f"levels: {profile['levels']}")
    kinds = profile.get("rank_kinds", [{"ranks": ranks, "speed": 1}])  # a busy machine may slow one of equal ranks down
    checks.expect(sum(kind["ranks"] for kind in kinds) == ranks and min(kind["speed"] for kind in kinds) == 1, f"kinds: {kinds}")
    taken = {library["name"]: library["bytes"] for library in profile["libraries"]}
    checks.expect(len(taken) == 2 and all(1 << 20 < bytes < 1 << 28 for bytes in taken.values()), f"libraries: {taken}")
    if ranks > 1:
        for kind in ("all_to_all", "ring", "message", "owner"):
            latency, rates = level[kind]
            sizes = [size for size, _ in rates]
            checks.expect(0 < latency < 1 and len(rates) == 3 and sizes == sorted(sizes) and sizes[-1] > 100 * sizes[0],
                          f"{kind}: {level[kind]}")
            checks.expect(all(1e6 < rate < 1e12 and float(f"{rate:.4g}") == rate for _, rate in rates), f"{kind}: {rates}")


# One rank: killed after its first part it goes on there, and measures that part no second time.
command = [BIN, "probe", "-o", "one.json", "--budget", "2s", "--threads", "1"]
process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
while not pathlib.Path("one.json.partial").exists() and process.poll() is None:
    time.sleep(0.01)
process.send_signal(signal.SIGKILL)
process.wait()
checks.expect(not pathlib.Path("one.json").exists(), "an interrupted probe wrote a profile")
before = json.loads(pathlib.Path("one.json.partial").read_text())
result = subprocess.run(command, capture_output=True, text=True)
checks.expect(result.returncode == 0 and "known from one.json.partial" in result.stdout, "resume", result.stdout + result.stderr)
profile = json.loads(pathlib.Path("one.json").read_text())
checks.expect(before["done"][0] == PARTS[0] and before["profile"]["stream_bytes_per_s"] == profile["stream_bytes_per_s"],
              "what was measured was not kept")
checks.expect(not pathlib.Path("one.json.partial").exists(), "the partial profile stays")
checks.expect("wrote one.json: " in result.stdout, "a first profile", result.stdout)
plausible(profile, 1)
result = run(1, "probe", "-o", "one.json", "--budget", "1s", "--threads", "1")
checks.expect(result.code == 0 and "wrote one.json in place of an older profile: " in result.output, "a second profile", result.output)

# Two ranks measure links; what an interrupted probe of another machine left is not mixed in.
pathlib.Path("two.json.partial").write_text(json.dumps({"done": list(PARTS), "profile": profile}))
result = run(2, "probe", "-o", "two.json", "--budget", "2s", "--threads", "1")
checks.expect(result.code == 0 and "known from" not in result.output and all(part in result.output for part in PARTS),
              f"two ranks: exit {result.code}", result.output)
plausible(json.loads(pathlib.Path("two.json").read_text()), 2)

# One commit tries the one or the other, or both with MOEWRIGHT_TEST_ALL=1.
if 4 in in_turn([3, 4], 2):
    # Four ranks are also measured in pairs, next to each other and at a distance.
    result = run(4, "probe", "-o", "four.json", "--budget", "2s", "--threads", "1")
    checks.expect(result.code == 0 and "smaller groups: 2 ranks: all-to-all" in result.output, f"four ranks: exit {result.code}", result.output)
    four = json.loads(pathlib.Path("four.json").read_text())
    plausible(four, 4)
    shapes = [(group["ranks"], group["stride"]) for group in four["levels"][0]["groups"]]
    checks.expect(shapes == [(2, 1), (2, 2)], f"groups of four ranks: {shapes}")
    for group in four["levels"][0]["groups"]:
        for kind in ("all_to_all", "ring"):
            latency, rates = group[kind]
            checks.expect(0 < latency < 1 and len(rates) == 3 and all(1e6 < rate < 1e12 for _, rate in rates), f"{kind}: {group}")
if 3 in in_turn([3, 4], 2):
    # An odd number of ranks, and a peak that is given.
    result = run(3, "probe", "-o", "three.json", "--budget", "1s", "--threads", "1", "--peak-tflops", "5")
    checks.expect(result.code == 0, f"three ranks: exit {result.code}", result.output)
    three = json.loads(pathlib.Path("three.json").read_text())
    checks.expect(three["peak_flops_per_s"] == 5e12 and "given: a peak of 5 TFLOP/s, dense bf16" in three["sources"],
                  f"a given peak: {three['sources']}")
    plausible({**three, "peak_flops_per_s": max(point[1] for point in three["dense_products"])}, 3)
    checks.expect("groups" not in pathlib.Path("three.json").read_text(), "three ranks have no smaller groups of equal size")

# Plans and runs take it.
write_corpus("text")
write_run_file()
result = run(1, "plan", "run.toml", "--platform", "two.json", "--ranks", "2")
checks.expect(result.code == 0 and " recompute=keep_norms" in result.output and "memory by stage" in result.output, f"plan: exit {result.code}", result.output)
result = run(2, "train", "run.toml", *outputs("run"), "mesh.ep=2", "train.threads=1", "plan.platform=two.json", "train.steps=4")
checks.expect(result.code == 0 and "ms predicted" in result.output, "train", result.output)
result = run(2, "train", "run.toml", *outputs("run2"), "plan.platform=one.json", "train.steps=1", "train.threads=1")
checks.expect(result.code == 0 and "one.json describes links among 1 rank, but 2 are planned" in result.output, "reach", result.output)

# With a run file its steps are timed with each transport: `auto` predicts what was measured, and takes the fastest.
keys = ["mesh.ep=2", "train.threads=1", "train.steps=1", "plan.platform=run.json"]
result = run(2, "probe", "run.toml", *outputs("probed"), *keys, "-o", "run.json", "--budget", "1s")
checks.expect(result.code == 0 and not pathlib.Path("probed").exists(), f"probe run.toml: exit {result.code}", result.output)
checks.expect(", 1 thread each" in result.output, "threads of the run", result.output)
ms = {name: float(value) for name, value in re.findall(r"(\w+): a step takes ([\d.e+]+) ms, [\d.e+]+ were predicted", result.output)}
checks.expect(set(ms) >= {"flat", "bypass", "gather_weights"}, f"{ms}", result.output)
profile = json.loads(pathlib.Path("run.json").read_text())
if "no times of transports are written" in result.output:  # on a machine that does much else
    checks.expect("transport_times" not in profile, "times that cannot be used")
else:
    times = {time["transport"]: time["over_predicted"] for time in profile["transport_times"]}
    checks.expect(set(ms) == set(times) and all(0.1 <= time <= 10 for time in times.values()), f"{ms} {times}", result.output)
    checks.expect("transport_times, by steps of" in profile["sources"][-1], f"{profile['sources']}")
    result = run(2, "train", "run.toml", *outputs("run3"), *keys)
    chosen = re.search(r'moe.transport = "auto": (\w+), by .*: ([\d.e+]+) ms a step', " ".join(result.output.split()))
    checks.expect(result.code == 0 and chosen and chosen[1] in ms, "auto by measured steps", result.output)
    checks.expect(chosen and ms[chosen[1]] <= 1.1 * min(ms.values()) and abs(float(chosen[2]) / ms[chosen[1]] - 1) < 0.1,
                  f"{ms}, chosen: {chosen and chosen[0]}", result.output)

for arguments, code, text in (
    (["--budget", "soon"], 2, "--budget soon: expected a time"),
    (["--budget", "0s"], 2, "--budget 0s: expected a time from 1s to 24h"),
    (["--device", "cuda", "--budget", "1s"], 9, "sees no GPU"),
    (["-o", "/dev/null/x.json", "--budget", "1s"], 4, "/dev/null/x.json"),
    (["run.toml", "mesh.ep=2"], 3, "mesh.ep = 2 on 1 rank"),
    (["run.toml", "moe.transport=flat"], 3, 'moe.transport = "flat": probe compares transports'),
    (["run.toml", "mesh.shares=measured"], 3, 'mesh.shares = "measured": probe times transports with equal or given shares'),
    (["run.toml", "debug.processors=88"], 3, 'debug.processors = "88": probe measures operators on all processors'),
    (["run.toml", "data.kid=1"], 3, "data.kid"),
):
    if arguments[0] == "--device" and os.environ.get("MOEWRIGHT_TEST_DEVICE") == "gpu":
        continue
    result = run(1, "probe", *arguments)
    checks.expect(result.code == code and text in result.output, f"probe {arguments}: exit {result.code}", result.output)
pathlib.Path("bad.json.partial").write_text("{")
result = run(1, "probe", "-o", "bad.json", "--budget", "1s")
checks.expect(result.code == 4 and "bad.json.partial" in result.output, "broken partial", result.output)
checks.finish()
