"""`verify` of exchanges by way of the node: a covering array of at least 80 layouts of 2 to 9 ranks on nodes of 1 to 4,
in which every two values that can meet do meet, over MPI and TCP. One commit runs a fifth of it; all of it:

    MOEWRIGHT_TEST_ALL=1 ctest --preset cpu-release -R verify_by_node -V
"""

import collections
import itertools
import os
import random
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, SOURCE, in_turn, run  # noqa: E402
from _join import start  # noqa: E402

LEAST = 80
VALUES = {  # by name: value -> overrides of examples/verify.toml
    "ranks": {n: "" for n in range(2, 10)},
    "ranks_per_node": {n: f"mesh.ranks_per_node={n}" for n in (1, 2, 3, 4)},
    "transport": {"flat": "moe.transport=flat", "halo": "moe.transport=halo", "bypass": "moe.transport=bypass",
                  "by layer": "moe.transport=bypass,halo*2,flat,bypass*3",
                  "auto": f"plan.platform={SOURCE}/profiles/frontier.json"},
    "placement": {"ep_first": "", "dp_first": "mesh.placement=dp_first"},
    "tp": {"none": "", "ssmb": "mesh.tp=2", "ted": "mesh.tp=2 moe.tp_mode=ted"},
    "pp": {"none": "", "zb_h1": "mesh.pp=2 mesh.schedule=zb_h1", "zb_v": "mesh.pp=2 mesh.schedule=zb_v"},
    "zero": {0: "", 1: "mesh.zero=1"},
    "recompute": {mode: f"memory.recompute={mode}" for mode in ("none", "selective", "moe", "full")},
    "chunks": {n: f"moe.row_chunks={n}" for n in (1, 3)},
    "capacity": {"none": "", "1.0": "moe.capacity_factor=1.0"},
    "top_k": {n: f"model.top_k={n}" for n in (1, 3, 8)},
    "routing": {"any": "", "one_expert": "moe.forced_load=one_expert", "skip_expert": "moe.forced_load=skip_expert"},
    "dtype": {"fp32": "", "bf16": "train.dtype=bf16 model.vocab=256"},
    "experts": {"even": "", "uneven": "model.experts=17", "most_on_one": "model.experts=17"},
    "library": {"mpi": "", "tcp": ""},
}
checks = Checks()


def degrees(case):
    """DP and EP, the largest that the layout allows; None: the ranks cannot be divided so."""
    pp, tp = (1 if case[axis] == "none" else 2 for axis in ("pp", "tp"))
    if case["ranks"] % (pp * tp):
        return None
    dp = case["ranks"] // (pp * tp)
    share = dp if case["tp"] == "ted" else dp * tp
    if case["placement"] == "dp_first":  # has a meaning only where experts have replicas
        ep = max((d for d in range(2, share) if share % d == 0), default=1)
    else:
        ep = share
    return (dp, ep) if ep > 1 else None


def is_possible(case):
    if degrees(case) is None or case["ranks_per_node"] > case["ranks"]:
        return False
    if case["pp"] != "none" and case["recompute"] == "full":  # weight gradients are deferred
        return False
    return case["routing"] == "any" or case["top_k"] == 1 or case["routing"] == "skip_expert"


def pairs_of(case):
    return set(itertools.combinations(case.items(), 2))


def draw(rng):
    while True:
        case = {name: rng.choice(list(values)) for name, values in VALUES.items()}
        if is_possible(case):
            return case


def covering_array():
    """Always the one of many drawn layouts that has most new pairs, and of these one of a number of ranks that is rare."""
    rng = random.Random(1)
    drawn = [draw(rng) for _ in range(6000)]
    left, chosen = set().union(*map(pairs_of, drawn)), []
    while left or len(chosen) < LEAST:
        uses = collections.Counter(case["ranks"] for case in chosen)
        best = max(drawn, key=lambda case: (len(pairs_of(case) & left), -uses[case["ranks"]]))
        drawn.remove(best)
        left -= pairs_of(best)
        chosen.append(best)
    return chosen


def overrides_of(case):
    dp, ep = degrees(case)
    layers = "model.layers=8" if case["transport"] == "by layer" else "model.layers=4"
    micro_batches = 4 if case["pp"] != "none" else 2
    shares = [1, 17 - (ep - 1)] + [1] * (ep - 2)  # of experts; the first node's other ranks have few
    held = [f"mesh.expert_shares={','.join(map(str, shares))}"] if case["experts"] == "most_on_one" else []
    return [f"mesh.ep={ep}", layers, *held, "verify.steps=1", "train.seq_len=8", f"train.micro_batches={micro_batches}",
            f"train.global_batch={dp * 2 * micro_batches}",
            *" ".join(values[case[name]] for name, values in VALUES.items()).split()]


def verify(case):
    ranks, overrides = case["ranks"], overrides_of(case)
    arguments = ["verify", SOURCE / "examples" / "verify.toml", *overrides]
    if case["library"] == "mpi":
        result = run(ranks, *arguments)
        code, output = result.code, result.output
    else:
        jobs = start(range(ranks), ranks, *arguments, "train.threads=1")
        codes = [job.wait() for job in jobs]
        code, output = max(codes, key=abs), jobs[0].output()
    print(f"{case['library']} {ranks}: {' '.join(overrides)}", flush=True)
    checks.expect(code == 0 and "verify: passed" in output,
                  f"{case['library']}, {ranks} ranks, {' '.join(overrides)}: exit {code}", output)


array = covering_array()
layouts = in_turn(array, 5)
for layout in layouts:
    verify(layout)
print(f"{len(layouts)} of {len(array)} layouts")
checks.expect(len(array) >= LEAST, f"{len(array)} layouts, expected at least {LEAST}")
checks.finish()
