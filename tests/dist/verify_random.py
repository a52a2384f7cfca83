"""`verify` of layouts drawn by chance, over kinds of model, routing and memory together: each passes, or is refused for
one of the reasons below. CI draws the same few each time; for more:

    MOEWRIGHT_VERIFY_RUNS=200 MOEWRIGHT_VERIFY_SEED=7 ctest --preset cpu-release -R verify_random -V
"""

import os
import random
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, SOURCE, gpus, run  # noqa: E402

RUNS = int(os.environ.get("MOEWRIGHT_VERIFY_RUNS", "8"))
SEED = int(os.environ.get("MOEWRIGHT_VERIFY_SEED", "1"))
# Wrong gradients are further apart than this; a sum in another order may come near the 1e-5 of a chosen layout.
TOLERANCE = "verify.tolerance=5e-5"

LATENT = ("model.attention=latent model.kv_heads=0 model.head_dim=0 model.qk_norm=none model.q_rank=20 model.kv_rank=12 "
          "model.nope_dim=6 model.rope_dim=4 model.value_dim=5")
# How often overrides are drawn, and which. ReLU and clip_qkv are left out: their derivatives jump, where rounding decides.
ANY_MODEL = [
    (0.4, "mesh.zero=1"),
    (0.3, "mesh.placement=dp_first"),
    (0.6, "memory.recompute=selective", "memory.recompute=moe", "memory.recompute=full", "memory.recompute=keep_norms"),
    (0.3, "mesh.ranks_per_node=1", "mesh.ranks_per_node=2", "mesh.ranks_per_node=3"),
    (0.1, "train.optimizer=muon", "train.optimizer=muon train.muon_router=true"),
    (0.3, "moe.row_chunks=1", "moe.row_chunks=2", "moe.row_chunks=3"),
    (0.5, "moe.weight_slots=1", "moe.weight_slots=3", "moe.weight_slots=0"),
    (0.3, "moe.aux_scope=model", "moe.aux_scope=sequence", "moe.aux_scope=layer"),
    (0.25, "moe.capacity_factor=1.0", "moe.capacity_factor=0.5"),
    (0.2, "moe.z_loss_coef=0", "moe.z_loss_coef=0.1"),
    (0.15, "moe.row_headroom=1.0", "moe.row_headroom=4"),
    (0.3, "data.document_mask=true"),
    (0.2, "moe.forced_load=one_expert", "moe.forced_load=skip_expert"),
    (0.3, "model.activation=gelu"),
    (0.2, "model.tie_embeddings=true"),
    (0.3, "model.score=sigmoid", "model.score=sigmoid model.selection_bias=true model.routed_scale=2.5"),
    (0.2, "model.experts=10", "model.experts=24", "model.experts=17"),
    (0.3, "model.top_k=1", "model.top_k=2", "model.top_k=8"),
    (0.2, "model.shared_experts=0", "model.shared_experts=3"),
    (0.2, "model.dense_layers=0", "model.dense_layers=3"),
    (0.2, "model.dense_width=70"),
    (0.2, "model.expert_width=37"),
    # Of large vocabularies, gradients of the embedding are summed by rows.
    (0.3, "model.vocab=131", "model.vocab=97", "model.vocab=4099", "model.vocab=20011"),
    (0.2, "model.renormalise=false"),
    (0.2, "model.layers=5", "model.layers=9", "model.layers=4"),
    (0.1, "mesh.stage_layers=1,7", "mesh.stage_layers=3,5"),
    (0.3, "train.micro_batches=1", "train.micro_batches=2", "train.micro_batches=8"),
    (0.2, "train.seq_len=3", "train.seq_len=7", "train.seq_len=33"),
    (0.15, "train.global_batch=48", "train.global_batch=64", "train.global_batch=8", "train.global_batch=24"),
    (0.15, "train.clip=0.01", "train.clip=0"),
]
SENDS_ROWS = ["", "moe.transport=padded", "moe.transport=flat", "moe.transport=halo", "moe.transport=bypass"]
WITH_ROWS = [(0.2, "debug.migrate=true", "debug.migrate=true moe.replica_slots=2")]
GROUPED = [
    (0.4, "model.qk_norm=none", "model.qk_norm=full_width"),
    (0.3, "model.kv_heads=8", "model.kv_heads=4", "model.kv_heads=1"),
    (0.15, "model.heads=6 model.kv_heads=3 model.head_dim=10"),
]
LATENTS = [
    (0.3, "model.q_rank=0"),
    (0.4, "model.expert_groups=4 model.kept_groups=2 model.group_best=2"),
]
BF16 = [(0.3, "memory.expert_gradients=bf16"), (0.3, "memory.moments=bf16"), (0.3, "memory.logits=bf16")]
REFUSALS = [
    r"train\.global_batch = \d+ is not divisible by train\.micro_batches = \d+ x \d+ data-parallel ranks",
    r"train\.global_batch = \d+ cannot be divided into \d+ micro-batches of at least one sample for each of \d+ data-",
    r"mesh\.stage_layers = \S+ (has \d+ stages with \d+ layers in total, expected|is not a comma-separated list of layer counts)",
    r"\d+ pipeline stages are too many for a model of \d+ layers",
    r"experts = \d+ is not a multiple of expert_groups = \d+",
    # Every rank has a copy of the key/value heads that it shares: the same number of ranks for each.
    r"mesh\.tp = \d+ ranks cannot share \d+ key/value heads evenly",
    r'memory\.expert_gradients = "bf16" is not supported with moe\.transport = "gather_weights" yet',
    r'moe\.replica_slots = \d+ is not supported with moe\.transport = "padded"',
    r'moe\.transport = "gather_tokens" and moe\.tp_mode = "ted" both shard the width of experts',
    # Weight gradients are deferred, whose operands full recompute does not keep.
    r'mesh\.schedule = "zb_\w+" computes weight gradients later, but memory\.recompute = "full" keeps none',
    # The ranks of TP share a micro-batch's tokens, and none of them has the whole of a sequence.
    r"needs whole sequences on a rank, but mesh\.tp = \d+ does not divide the \d+ sequences? of a micro-batch",
]


def draw_transport(rng, ep, some_of):
    """How rows meet experts, and what goes with it."""
    shares = ",".join(str(rng.choice([1, 1, 2, 3])) for _ in range(ep))
    kind = rng.random()
    if kind < 0.2:
        return ["moe.transport=gather_weights"]
    if kind < 0.4:
        return ["moe.transport=gather_tokens"] + ([f"mesh.width_shares={shares}"] if rng.random() < 0.4 else [])
    overrides = [rng.choice(SENDS_ROWS)]
    if ep > 1:
        overrides += some_of(WITH_ROWS) + ([f"mesh.expert_shares={shares}"] if rng.random() < 0.25 else [])
    return overrides


def draw(rng):
    """Ranks and overrides of examples/verify.toml."""
    def divisor_of(count, most=8):
        return rng.choice([d for d in range(1, min(count, most) + 1) if count % d == 0])

    def some_of(table):
        return [rng.choice(choices) for share, *choices in table if rng.random() < share]

    ranks = rng.choice([1, 2, 2, 3, 4, 4, 4, 6, 8, 8])
    pp = divisor_of(ranks, 4) if rng.random() < 0.6 else 1
    tp = divisor_of(ranks // pp, 4) if rng.random() < 0.7 else 1
    is_ted = tp > 1 and rng.random() < 0.35
    dp = ranks // pp // tp
    ep = divisor_of(dp if is_ted else dp * tp)
    overrides = [f"mesh.pp={pp} mesh.tp={tp} mesh.ep={ep}", *draw_transport(rng, ep, some_of)]
    if dp > 1 and rng.random() < 0.2:
        overrides.append("mesh.shares=" + ",".join(str(rng.choice([1, 1, 2, 3])) for _ in range(dp)))
    if is_ted:
        overrides.append("moe.tp_mode=ted")
    if pp > 1:
        overrides.append("mesh.schedule=" + rng.choice(["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"]))
    overrides += some_of(ANY_MODEL)
    overrides += [LATENT] + some_of(LATENTS) if rng.random() < 0.25 else some_of(GROUPED)
    if rng.random() < 0.2:
        overrides += ["train.dtype=bf16"] + some_of(BF16)
    return ranks, " ".join(overrides).split()


rng = random.Random(SEED)
checks = Checks()
passed = refused = 0
while passed + refused + checks.failed < RUNS:
    ranks, overrides = draw(rng)
    if gpus() and ranks > max(2, gpus()):  # two ranks may share one GPU
        continue
    result = run(ranks, "verify", SOURCE / "examples" / "verify.toml", "verify.steps=2", TOLERANCE, *overrides)
    if result.code in (3, 9):  # a wrong key, or what is not supported
        told = re.search(r"error: (\S.*)\n.*hint: \S", result.output)
        good = told and any(re.search(reason, told[1]) for reason in REFUSALS)
        refused += bool(good)
        print(f"refused: {told[1] if told else result.output}", flush=True)
    else:
        good = result.code == 0 and "verify: passed" in result.output
        passed += bool(good)
    checks.expect(good, f"-np {ranks} {' '.join(overrides)}: exit {result.code}", result.output)
print(f"seed {SEED}: {passed} layouts passed, {refused} were refused")
checks.expect(passed >= refused, "most layouts are refused")
checks.finish()
