"""`verify` of experts with replicas, which debug.migrate draws after every step: 32 layouts drawn over transport, EDP, ZeRO,
pipeline schedule, recompute, capacity, chunks and forced loads. One commit runs an eighth of them; all of them:

    MOEWRIGHT_TEST_ALL=1 ctest --preset cpu-release -R verify_replicas -V
"""

import os
import random
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, SOURCE, in_turn, run  # noqa: E402

VALUES = [
    ["moe.transport=flat", "moe.transport=halo mesh.ranks_per_node=2", "moe.transport=bypass mesh.ranks_per_node=3",
     "moe.transport=flat,halo,bypass,flat*4 mesh.ranks_per_node=1"],
    ["mesh.ep=2", "mesh.ep=2 mesh.placement=dp_first", "mesh.ep=4", "mesh.ep=4"],
    ["", "mesh.zero=1"],
    ["", "", "", "mesh.tp=2", "mesh.tp=2 moe.tp_mode=ted", "mesh.pp=2", "mesh.pp=2 mesh.schedule=zb_h1",
     "mesh.pp=2 mesh.schedule=zb_v", "mesh.pp=2 mesh.schedule=interleaved", "mesh.pp=2 mesh.schedule=gpipe"],
    ["", "memory.recompute=selective", "memory.recompute=moe", "memory.recompute=full"],
    ["", "moe.capacity_factor=1.0"],
    ["", "moe.row_chunks=3"],
    ["", "moe.forced_load=hot_rank", "moe.forced_load=idle_experts", "moe.forced_load=one_expert"],
    ["moe.replica_slots=1", "moe.replica_slots=2", "moe.replica_slots=9"],
]


def draw(rng):
    while True:
        parts = [rng.choice(values) for values in VALUES]
        case = " ".join(part for part in parts if part)
        deferred_without_memory = "zb_" in case and "recompute=full" in case
        wide = "ep=4" in case and ("tp_mode=ted" in case or "pp=2" in case)
        if not deferred_without_memory and not wide:
            return case


rng = random.Random(27)
cases = [draw(rng) for _ in range(32)]
checks = Checks()
for case in in_turn(cases, 8):
    result = run(4, "verify", SOURCE / "examples" / "verify.toml", "debug.migrate=true", *case.split())
    print(f"{result.seconds:5.1f} s  {case}", flush=True)
    checks.expect(result.code == 0, f"{case}: exit {result.code}", result.output)

# What replicas break is found and named.
FAULTS = {
    "lost_replica_gradient": r"grad layers\.\d+\.moe\.w_(up|down)\[\d+\] ",
    "double_replica_gradient": r"grad layers\.\d+\.moe\.w_(up|down)\[\d+\] ",
    "norm_counts_replicas": r"^ *grad_norm ",
    "stale_replica": r"grad layers\.\d+\.\S+ ",
}
LAYOUTS = ["mesh.ep=4", "mesh.ep=2 mesh.zero=1", "mesh.ep=2 mesh.pp=2", "mesh.ep=4 moe.transport=bypass mesh.ranks_per_node=2"]
for fault, line in FAULTS.items():
    for layout in in_turn(LAYOUTS, 4):
        result = run(4, "verify", SOURCE / "examples" / "verify.toml", "debug.migrate=true", "moe.replica_slots=2",
                     "verify.steps=3", f"debug.fault={fault}", *layout.split())
        named = [text for text in result.output.splitlines() if "FAIL: tolerance" in text]
        print(f"{result.seconds:5.1f} s  {fault}: {named[0].strip() if named else 'nothing named'}", flush=True)
        checks.expect(result.code == 1 and any(re.search(line, text) for text in named),
                      f"{fault} {layout}: exit {result.code}, no failed line matches {line}", result.output)

for transport in ("padded", "gather_weights", "gather_tokens"):
    result = run(2, "verify", SOURCE / "examples" / "verify.toml", "mesh.ep=2", "moe.replica_slots=1",
                 f"moe.transport={transport}")
    checks.expect(result.code == 9 and "moe.replica_slots = 1 is not supported with" in result.output,
                  f"{transport}: exit {result.code}", result.output)
checks.finish()
