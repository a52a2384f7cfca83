"""`verify` of experts with replicas, which debug.migrate draws after every step, and of unequal shares of the samples: a
covering array of transport, mesh, shares, ZeRO, recompute, capacity, chunks, forced loads and slots, in which every two values
that can meet do meet. One commit runs a twelfth of it; all:

    MOEWRIGHT_TEST_ALL=1 ctest --preset cpu-release -R verify_replicas -V
"""

import itertools
import os
import random
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _covering import cover  # noqa: E402
from _jobs import Checks, SOURCE, in_turn, run  # noqa: E402

MESHES = {  # and its data-parallel ranks
    "mesh.ep=2": 4, "mesh.ep=2 mesh.placement=dp_first": 4, "mesh.ep=4": 4, "mesh.tp=2 mesh.ep=2": 2,
    "mesh.tp=2 mesh.ep=2 mesh.placement=dp_first": 2, "mesh.tp=2 mesh.ep=4": 2,
    "mesh.tp=2 mesh.ep=2 moe.tp_mode=ted": 2, "mesh.pp=2 mesh.ep=2": 2,
    "mesh.pp=2 mesh.ep=2 mesh.schedule=zb_h1": 2, "mesh.pp=2 mesh.ep=2 mesh.schedule=zb_v": 2,
    "mesh.pp=2 mesh.ep=2 mesh.schedule=interleaved": 2, "mesh.pp=2 mesh.ep=2 mesh.schedule=gpipe": 2}
SHARES = {  # of eight samples; with TP and a capacity in multiples of two
    "first": {2: "mesh.shares=6,2", 4: "mesh.shares=3,1,2,2"}, "later": {2: "mesh.shares=2,6", 4: "mesh.shares=1,1,5,1"}}
VALUES = {
    "mesh": list(MESHES),
    "transport": ["moe.transport=flat", "moe.transport=halo mesh.ranks_per_node=2",
                  "moe.transport=bypass mesh.ranks_per_node=3",
                  "moe.transport=flat,halo,bypass,flat*4 mesh.ranks_per_node=1"],
    "shares": ["", *SHARES],
    "zero": ["", "mesh.zero=1"],
    "recompute": ["", "memory.recompute=selective", "memory.recompute=moe", "memory.recompute=full"],
    "capacity": ["", "moe.capacity_factor=1.0"],
    "chunks": ["", "moe.row_chunks=3"],
    "load": ["", "moe.forced_load=hot_rank", "moe.forced_load=idle_experts", "moe.forced_load=one_expert"],
    "replicas": ["moe.replica_slots=1", "moe.replica_slots=2", "moe.replica_slots=9"],
}


def is_legal(case):
    return not ("zb_" in case["mesh"] and case["recompute"] == "memory.recompute=full")


def overrides_of(case):
    keys = {**case, "shares": SHARES.get(case["shares"], {}).get(MESHES[case["mesh"]], "")}
    return " ".join(keys.values()).split()


product = [dict(zip(VALUES, values)) for values in itertools.product(*VALUES.values())]
cases = cover(random.Random(27).sample([case for case in product if is_legal(case)], 5000))
checks = Checks()
tried = in_turn(cases, 12)
for case in tried:
    result = run(4, "verify", SOURCE / "examples" / "verify.toml", "debug.migrate=true", *overrides_of(case))
    print(f"{result.seconds:5.1f} s  {' '.join(overrides_of(case))}", flush=True)
    checks.expect(result.code == 0, f"{overrides_of(case)}: exit {result.code}", result.output)
print(f"{len(tried)} of {len(cases)} layouts", flush=True)

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
