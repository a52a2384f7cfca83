"""Experts that move between ranks change no number of a run: after every step to random places, or as moe.balance plans; a
checkpoint keeps where they are, and its export does not depend on that."""

import os
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, outputs, read_metrics, run, same_bits, same_folders, write_corpus, write_run_file  # noqa: E402

checks = Checks()
write_corpus("text")
RUN = write_run_file()
HOT = ["moe.forced_load=hot_rank", "train.schedule=constant", "mesh.ep=4", "model.experts=64", "model.top_k=2"]
# A look after every step; on so small a model only a long horizon pays for a move.
SWAP = ["moe.balance=swap", "moe.balance_every=1", "moe.balance_horizon=1000000000"]


def train(name, *overrides):
    result = run(4, "train", RUN, *outputs(name), *overrides)
    checks.expect(result.code == 0, f"{name} {overrides}: exit {result.code}", result.output)
    print(f"{result.seconds:5.1f} s  {name}: {' '.join(overrides)}", flush=True)
    return read_metrics(name), result.output


for name, overrides in [
    ("flat", ["mesh.ep=2", "moe.transport=flat"]),
    ("gathered", ["mesh.ep=4", "moe.transport=gather_weights", "train.dtype=bf16", "moe.row_chunks=2"]),
    ("by-node", ["mesh.ep=4", "moe.transport=halo", "mesh.ranks_per_node=2", "mesh.zero=1"]),
    ("sharded", ["mesh.tp=2", "mesh.ep=2", "moe.tp_mode=ted", "mesh.zero=1", "train.dtype=bf16"]),
]:
    overrides += ["model.score=sigmoid", "model.selection_bias=true"]  # a model that `export` knows as GLM-4.5
    stays, _ = train(name, *overrides)
    moves, _ = train(f"{name}-moves", *overrides, "debug.migrate=true")
    same_bits(checks, name, stays, moves)
    checks.expect(all(int(line["moved_experts"]) > 0 for line in moves.values()), f"{name}: a step moved no expert")
    for run_name in (name, f"{name}-moves"):
        result = run(1, "export", f"{run_name}/checkpoints/step-00000012", f"{run_name}/out")
        checks.expect(result.code == 0, f"{run_name}: export: exit {result.code}", result.output)
    same_folders(checks, f"{name}: exported after moves", f"{name}/out", f"{name}-moves/out")

stays, _ = train("hot", *HOT)
moves, output = train("hot-swapped", *HOT, *SWAP, "train.steps=6")
checks.expect("experts moved to other ranks" in output, "no line says that experts moved", output)
before, after = float(stays[1]["rank_imbalance"]), float(moves[6]["rank_imbalance"])
print(f"         imbalance of ranks {before:.2f} -> {after:.2f}")
checks.expect(before > 1.5 and after < 1.2, f"imbalance of ranks: {before:.2f}, {after:.2f} when balanced")
moves, output = train("hot-swapped", *HOT, *SWAP, "checkpoint.resume=auto")
checks.expect("after step 6" in output, "did not resume after step 6", output)
same_bits(checks, "balanced and resumed", stays, moves)
checks.expect(float(moves[7]["rank_imbalance"]) < 1.2, "a resumed run begins with another placement")

# One expert of 16 has four times the mean: wherever it is, only replicas balance the ranks.
ONE_HOT = [*HOT, "model.experts=16", "train.seq_len=1024", "train.global_batch=64"]  # so many tokens that replicas pay
stays, _ = train("hot-expert", *ONE_HOT, "train.steps=4")
for attempt in range(5):  # on a busy machine a run may measure so slow a link that they do not
    name = f"hot-replicas-{attempt}"
    replicas, output = train(name, *ONE_HOT, *SWAP, "moe.replica_slots=2", "train.steps=4")
    if "replica_rows" in replicas[4]:
        break
imbalances = [float(replicas[step]["worst_rank_imbalance"]) for step in range(1, 5)]
print(f"         worst imbalance of ranks {' '.join(f'{x:.3f}' for x in imbalances)}")
checks.expect(imbalances[0] > 1.5 and max(imbalances[1:]) <= 1.04, f"imbalance of ranks with replicas: {imbalances}")
checks.expect(int(replicas[4].get("replica_rows", 0)) > 0, "no row was computed by a replica")
# Without AVX-512 the bits of a row depend on how many rows a product has (tests/support/row_bits.h).
before, after = float(stays[2]["loss"]), float(replicas[2]["loss"])
bound = 0 if " avx512f " in open("/proc/cpuinfo", encoding="utf-8").read() else 1e-6 * before
checks.expect(abs(after - before) <= bound, f"replicas change a loss before their first gradients: {before}, {after}")
resumed, output = train(name, *ONE_HOT, *SWAP, "moe.replica_slots=2", "train.steps=5", "checkpoint.resume=auto")
checks.expect("slots are empty until moe.balance plans again" in output, "a resumed run does not tell of its replicas")
checks.finish()
