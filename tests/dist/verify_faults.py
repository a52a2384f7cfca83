"""Every test-only fault makes `verify` exit 1 and name what is wrong. One commit tries each in a third of the layouts, or in
all with MOEWRIGHT_TEST_ALL=1."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, SOURCE, in_turn, run  # noqa: E402

FAULTS = {  # fault: lines of which at least one must be judged FAIL
    "double_expert_gradient": r"grad layers\.\d+\.moe\.w_up\[\d+\] ",
    "skip_router_sum": r"grad layers\.\d+\.moe\.router ",
    "drop_row": r"grad layers\.\d+\.\S+ ",
    "wrong_choice": r"FAIL: a gap of \S+ is more than rounding can explain",  # in the last layer only
    "fleeting_choice": r"FAIL: a gap of \S+ is more than rounding can explain",  # which a replay does not repeat
    "local_aux_counts": r"(aux_loss|grad layers\.\d+\.moe\.router) ",
    "wrong_denominator": r"grad \S+ ",
    "nan_gradient": r"grad \S+ ",
    "wrong_clip": r"update from equal gradients: .* differ, moments of ",
    "skip_tied_sum": r"grad embed ",
    "copies_in_norm": r"^ *grad_norm ",
    "stale_gather": r"update from equal gradients: .* differ, weights of layers\.\d+\.moe\.w_",
}
# Of experts that move.
MOVES = {"stale_moment": r"update from equal gradients: .* differ, moments of layers\.\d+\.moe\.w_"}
# Of slices of experts.
SLICES = {"short_slice": r"grad layers\.\d+\.moe\.w_(up|down)\[\d+\] "}
# Of shares of the samples.
SHARES = {"wrong_share_offset": r"^ *loss "}
# Of weights that are gathered.
WEIGHTS = {"stale_cache_slot": r"grad layers\.\d+\.moe\.w_up\[\d+\] ", "late_reduce": r"grad layers\.\d+\.moe\.w_(up|down)\[\d+\] "}
# Of exchanges by way of the node.
BY_NODE = {
    "lose_replica": r"grad layers\.\d+\.moe\.w_up\[\d+\] ",
    "merge_unweighted": r"grad layers\.\d+\.moe\.w_down\[\d+\] ",
    "swap_gate_gradients": r"grad layers\.\d+\.moe\.router ",
    "forget_home": r"grad layers\.\d+\.\S+ ",
    "stale_weights": r"grad layers\.\d+\.\S+ ",
    "wrong_gateway_order": r"grad layers\.\d+\.moe\.w_up\[\d+\] ",
}

TIED = "model.tie_embeddings=true"
checks = Checks()
for fault, line in {**FAULTS, **MOVES, **SLICES, **SHARES, **WEIGHTS, **BY_NODE}.items():
    ranks = 4
    layouts = ["", "mesh.zero=1", "mesh.tp=2", "mesh.tp=2 moe.tp_mode=ted", "mesh.pp=2"]
    if fault == "drop_row":
        layouts = ["", "mesh.placement=dp_first moe.transport=padded moe.row_chunks=3", "memory.recompute=full", "mesh.pp=2"]
    if fault == "stale_gather":
        layouts = ["mesh.zero=1 mesh.ep=1", "mesh.zero=1 mesh.tp=2", "mesh.zero=1 mesh.ep=1 mesh.pp=2"]
    if fault == "skip_tied_sum":
        layouts = [f"{TIED} mesh.pp=2 {more}" for more in ("", "mesh.tp=2", "mesh.zero=1 mesh.schedule=zb_h1")]
    if fault == "copies_in_norm":  # replicas of a token shard's weights, or the last stage's of the embedding
        layouts = ["mesh.tp=2", "mesh.tp=2 mesh.zero=1", "mesh.tp=2 moe.tp_mode=ted", f"{TIED} mesh.pp=2"]
    if fault in MOVES:
        layouts = [f"debug.migrate=true {more}" for more in ("", "mesh.zero=1 train.dtype=bf16", "mesh.pp=2")]
    if fault in SLICES:
        layouts = [f"moe.transport=gather_tokens {more}" for more in ("mesh.ep=4", "mesh.tp=2 mesh.zero=1 moe.row_chunks=2")]
    if fault in SHARES:
        layouts = [f"mesh.shares={more}" for more in ("3,1,2,2 moe.transport=gather_weights", "6,2 mesh.tp=2", "2,6 mesh.pp=2")]
    if fault in WEIGHTS:
        layouts = [f"moe.transport=gather_weights {more}" for more in (
            "mesh.ep=4 moe.row_chunks=2", "mesh.ep=4 moe.weight_slots=0 mesh.zero=1",
            "mesh.pp=2 mesh.schedule=zb_v moe.weight_slots=3", "mesh.tp=2 memory.recompute=full train.micro_batches=1")]
    if fault in BY_NODE:
        layouts = [f"mesh.ep=4 mesh.ranks_per_node=2 moe.transport={transport}" for transport in ("halo", "bypass")]
    if fault == "merge_unweighted":
        layouts = [f"{layouts[1]} {more}" for more in ("", "moe.row_chunks=3")]
    if fault == "stale_weights":
        layouts = [f"{layout} memory.recompute={mode}" for layout, mode in zip(layouts, ("moe", "full"))]
    if fault == "wrong_gateway_order":  # needs a gateway with two sources
        ranks, layouts = 6, [f"{layout} mesh.ep=6 train.global_batch=48" for layout in layouts]
    for extra in map(str.split, in_turn(layouts, 3)):
        result = run(ranks, "verify", SOURCE / "examples" / "verify.toml", "mesh.ep=2", "verify.steps=1",
                     f"debug.fault={fault}", *extra)
        named = [text for text in result.output.splitlines() if "FAIL: tolerance" in text or "FAIL: a gap" in text]
        print(f"{result.seconds:5.1f} s  {fault}: {named[0].strip() if named else 'nothing named'}", flush=True)
        checks.expect(result.code == 1, f"{fault} {extra}: exit {result.code}, expected 1", result.output)
        checks.expect(any(re.search(line, text) for text in named), f"{fault} {extra}: no failed line matches {line}",
                      result.output)
        checks.expect("verify: FAILED" in result.output, f"{fault} {extra}: no verdict", result.output)

# bf16 hides no such fault either.
for fault in ("double_expert_gradient", "nan_gradient", "wrong_clip"):
    result = run(4, "verify", SOURCE / "examples" / "verify.toml", "mesh.ep=2", "mesh.tp=2", "train.dtype=bf16",
                 "verify.steps=1", f"debug.fault={fault}")
    checks.expect(result.code == 1 and re.search(FAULTS[fault] + ".*FAIL: tolerance", result.output), f"{fault} in bf16",
                  result.output)

# What may come of a value at the border of relu or clip_qkv is tried with other tokens, where an error stays.
for fault, model, code in (("slight_gradient", "clip_qkv=1.6", 1), ("fleeting_gradient", "clip_qkv=1.6", 0),
                           ("slight_gradient", "activation=relu", 1), ("fleeting_gradient", "activation=relu", 0),
                           ("fleeting_gradient", "clip_qkv=0", 1), ("double_expert_gradient", "clip_qkv=1.6", 1)):
    result = run(4, "verify", SOURCE / "examples" / "verify.toml", "mesh.ep=2", "mesh.tp=2", f"model.{model}",
                 "verify.steps=2", f"debug.fault={fault}")
    checks.expect(result.code == code, f"{fault} with {model}: exit {result.code}, expected {code}", result.output)
    tried = "with other tokens (2 of 2)" in result.output
    excusable = not model.endswith("=0") and not fault.startswith("double")
    checks.expect(tried == excusable, f"{fault} with {model}: other tokens: {tried}", result.output)

# Where every document has one token, gradients of queries and keys cancel to zero and their rounding noise is excused;
# faults elsewhere are not. Heads are wider than a vector register: else both sums may be in one order, and noise-free.
ONE_TOKEN = "data.document_mask=true train.seq_len=3 model.head_dim=24"
for fault in ("", "double_expert_gradient", "skip_router_sum", "local_aux_counts", "slight_gradient"):
    result = run(4, "verify", SOURCE / "examples" / "verify.toml", "mesh.ep=2", "mesh.tp=2", "verify.steps=1",
                 "model.layers=3", *ONE_TOKEN.split(), f"debug.fault={fault}")
    checks.expect("within rounding noise" in result.output, f"{fault or 'no fault'}: no noise to excuse", result.output)
    checks.expect(result.code == (1 if fault else 0), f"{fault or 'no fault'} with documents of one token: exit "
                  f"{result.code}", result.output)
    named = [text for text in result.output.splitlines() if "FAIL: tolerance" in text]
    line = r"grad embed " if fault == "slight_gradient" else FAULTS.get(fault, "")
    checks.expect(not fault or any(re.search(line, text) for text in named), f"{fault}: no failed line matches {line}",
                  result.output)

# A small gradient, 1e-4 of the global norm, that is off by 1e-3: as much as the noise above, but far beyond its own.
for tp in (1, 2):
    result = run(2, "verify", SOURCE / "examples" / "verify.toml", "mesh.ep=2", f"mesh.tp={tp}", "verify.steps=1",
                 "model.layers=3", "model.init_std=0.005", "data.document_mask=true", "train.seq_len=5",
                 "debug.fault=slight_query_norm")
    named = [text for text in result.output.splitlines() if "FAIL: tolerance" in text]
    checks.expect(result.code == 1 and len(named) == 1 and "attn.q_norm" in named[0],
                  f"slight_query_norm with tp={tp}: exit {result.code}", result.output)

# Rounding excuses only itself: of tokens that are twins at the head of a sequence, one drops the other at a capacity's
# border, and which one is chance. The step is redone, and still names the fault.
for fault in ("wrong_choice", "double_expert_gradient", "skip_router_sum"):
    result = run(2, "verify", SOURCE / "examples" / "verify.toml", "mesh.tp=2", "moe.capacity_factor=1.0", "model.vocab=16",
                 "train.global_batch=128", "train.micro_batches=1", "train.seed=2", "verify.steps=1", f"debug.fault={fault}")
    checks.expect("redone with the reference's routing" in result.output, f"{fault}: the step is not redone", result.output)
    line = FAULTS[fault] if fault == "wrong_choice" else FAULTS[fault] + ".*FAIL: tolerance"
    checks.expect(result.code == 1 and re.search(line, result.output), f"{fault}: not named where a step is redone",
                  result.output)
checks.finish()
