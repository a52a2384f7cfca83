"""`verify` passes in every layout of up to eight ranks: schedule x PP x TP x DP x EP x placement x TP's MoE mode x ZeRO
x recompute x how rows meet experts x slots of gathered weights, over several kinds of model. One commit runs half of a covering array, in which
every two values that can meet do meet, or all with MOEWRIGHT_TEST_ALL=1. The whole product, or one of its N parts:

    MOEWRIGHT_VERIFY_PRODUCT=1/1 ctest --preset cpu-release -R verify_covering -V     # or 3/8

What `verify` refuses is listed here, with the reason that it gives; any other refusal fails.
"""

import itertools
import os
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _covering import cover, pairs_of  # noqa: E402
from _jobs import Checks, SOURCE, in_turn, run  # noqa: E402

PRODUCT = os.environ.get("MOEWRIGHT_VERIFY_PRODUCT", "")
MOST_RANKS = 8
LATENT = ("model.attention=latent model.kv_heads=0 model.head_dim=0 model.qk_norm=none model.q_rank=20 "
          "model.kv_rank=12 model.nope_dim=6 model.rope_dim=4 model.value_dim=5")
MODELS = {
    "grouped queries, shared experts": "",
    "latent, sigmoid, groups": f"{LATENT} model.score=sigmoid model.selection_bias=true model.routed_scale=2.5 "
                               "model.expert_groups=4 model.kept_groups=2 model.group_best=2 train.optimizer=muon "
                               "train.muon_router=true",
    "two matrices, tied, uneven": "model.activation=gelu model.shared_experts=0 model.tie_embeddings=true "
                                  "model.experts=17 model.vocab=131 train.optimizer=muon",
    "coupled layers, whole norms": "model.qk_norm=full_width model.kv_heads=8 moe.aux_scope=model model.score=sigmoid",
    "capacity, several shared": "moe.capacity_factor=1.0 model.shared_experts=2 model.dense_layers=2 moe.row_chunks=3",
}
# Rows go to experts, weights of experts to rows with slots for a few or all of them, or tokens to slices of experts. By
# way of the node: verify_by_node.py.
TRANSPORTS = (("flat", None), *(("gather_weights", slots) for slots in (2, 3, 0)), ("gather_tokens", None))
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb_h1", "zb_v")
KEYS = {"pp": "mesh.pp", "tp": "mesh.tp", "ep": "mesh.ep", "schedule": "mesh.schedule", "placement": "mesh.placement",
        "tp_mode": "moe.tp_mode", "zero": "mesh.zero", "recompute": "memory.recompute", "transport": "moe.transport",
        "slots": "moe.weight_slots"}
REFUSED = [  # values that `verify` refuses together, and how
    # A zero-bubble schedule defers weight gradients, whose operands full recompute does not keep.
    ({"schedule": ("zb_h1", "zb_v"), "recompute": ("full",)},
     r'mesh\.schedule = "zb_\w+" computes weight gradients later, but memory\.recompute = "full" keeps none'),
    ({"tp_mode": ("ted",), "transport": ("gather_tokens",)},
     r'moe\.transport = "gather_tokens" and moe\.tp_mode = "ted" both shard the width of experts'),
]


def divisors(count):
    return [d for d in range(1, count + 1) if count % d == 0]


def meshes():
    """All that eight ranks can form. None: a key that has no effect there."""
    for pp, tp, dp in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4, 8)):
        if pp * tp * dp > MOST_RANKS:
            continue
        for tp_mode in ("ssmb", "ted") if tp > 1 else (None,):
            share = dp if tp_mode == "ted" else tp * dp  # of the ranks that experts are cut over
            for ep in divisors(share):
                for placement in ("ep_first", "dp_first") if 1 < ep < share else (None,):
                    yield {"pp": pp, "tp": tp, "dp": dp, "tp_mode": tp_mode, "ep": ep, "placement": placement}


def layouts():
    """The whole product, fewest ranks first."""
    for mesh in sorted(meshes(), key=ranks_of):
        for schedule in SCHEDULES if mesh["pp"] > 1 else (None,):
            for zero, recompute, (transport, slots) in itertools.product(
                    (0, 1), ("none", "moe", "selective", "full"), TRANSPORTS if mesh["ep"] > 1 else ((None, None),)):
                yield {**mesh, "schedule": schedule, "zero": zero, "recompute": recompute, "transport": transport,
                       "slots": slots}


def ranks_of(case):
    return case["pp"] * case["tp"] * case["dp"]


def refusal_of(case):
    """The reason that `verify` must give; None: it must pass."""
    for values, reason in REFUSED:
        if all(case[key] in choices for key, choices in values.items()):
            return reason
    return None


def mesh_of(case):
    return [f"{KEYS[key]}={value}" for key, value in case.items() if key in KEYS and value is not None]


def sizes_of(case):
    """Small, but with a layer for every stage, and micro-batches that fill the pipeline."""
    stages = case["pp"] * (2 if case["schedule"] in ("interleaved", "zb_v") else 1)
    return [f"model.layers={max(4, stages)}", "train.seq_len=8", "train.global_batch=16", "verify.steps=1",
            f"train.micro_batches={4 if case['pp'] > 1 else 2}"]


def verify(case):
    """Whether it ends as it must."""
    reason = refusal_of(case)
    overrides = [*mesh_of(case), *MODELS[case["model"]].split(), *sizes_of(case)]
    result = run(ranks_of(case), "verify", SOURCE / "examples" / "verify.toml", *overrides)
    print(f"{result.seconds:5.1f} s  -np {ranks_of(case)} {' '.join(mesh_of(case))}; {case['model']}", flush=True)
    if reason is None:
        good, expected = result.code == 0 and "verify: passed" in result.output, "to pass"
    else:
        good, expected = result.code == 3 and re.search(reason, result.output), f"a refusal: {reason}"
    return checks.expect(good, f"-np {ranks_of(case)} {' '.join(overrides)}: exit {result.code}, expected {expected}",
                         result.output)


checks = Checks()
ALL = list(layouts())
if PRODUCT:
    part, parts = map(int, PRODUCT.split("/"))
    cases = [{**case, "model": list(MODELS)[i % len(MODELS)]} for i, case in enumerate(ALL)][part - 1::parts]
    passed = sum(verify(case) for case in cases)
    print(f"{passed} of {len(cases)} layouts end as they must, of {len(ALL)} in all")
    checks.finish()

ALL = [{**case, "model": model} for case in ALL for model in MODELS]
legal = [case for case in ALL if refusal_of(case) is None]
goal = set().union(*map(pairs_of, legal))
array = cover(legal, ranks_of)  # of all these pairs
tried = in_turn(array, 2)
passed = sum(verify(case) for case in tried)
print(f"{passed} of {len(tried)} layouts pass, of {len(array)} that cover {len(goal)} pairs of values that can meet")
# Values that cannot meet, once each.
never = set().union(*map(pairs_of, ALL)) - goal
for pair in in_turn(sorted(never, key=str), 2):
    verify(next(case for case in ALL if pair in pairs_of(case)))
checks.expect(never, "nothing is refused")
checks.finish()
