#!/usr/bin/env python3
"""Makes and re-checks the reference ("golden") models under tests/golden/models.

A golden model is a folder with three files:

  config.json          Hugging Face config, in the v5 dialect or (qwen3_v4, olmoe_clip) in the v4 one
  model.safetensors    fp32 weights under their Hugging Face names, one tensor per expert
  golden.safetensors   what Hugging Face transformers computes from them, in fp32 on a CPU:

    input_ids, labels      I64 [B, S]; some labels are -100; labels are not shifted, the loss shifts them
    logits                 F32 [B, S, V]
    loss                   F32 [1]; mean cross entropy over the shifted labels other than -100,
                           plus router_aux_loss_coef * aux_loss
    aux_loss               F32 [1]; E * sum_e(f_e * P_e) over the tokens of all MoE layers together. Families without one
                           in transformers have none here
    router_logits.{i}      F32 [B * S, E]; i counts the MoE layers only (dense layers have no entry)
    grad.{parameter}       d loss / d parameter, under the in-memory names of transformers 5: experts are fused into
                           mlp.experts.gate_up_proj [E, 2F, D] (gate rows first) and mlp.experts.down_proj [E, D, F];
                           with tied embeddings there is no grad.lm_head.weight and the embedding's holds the sum
    traj.input_ids         I64 [20, B, S]; one batch per optimizer step, labels = inputs
    traj.loss              F32 [20]; loss (with the auxiliary term) of each step before its update
    traj.grad_norm         F32 [20]; global gradient norm of each step before clipping

The trajectory starts from the stored weights. Its optimizer is AdamW: lr 1e-3 constant, betas 0.9 / 0.95, eps 1e-8, decay
0.1 on parameters of two or more dimensions, gradients clipped to a global norm of 1.0 (scale 1 / (norm + 1e-6) if below 1).

A choice that hangs on rounding would make a reference useless. So batches are drawn anew until, in the first batch and in
each step of the trajectory, every token has a clear margin between the last chosen and the first rejected expert (and
group of experts), every clamped q, k, v element is clearly off clip_qkv, and no gradient that AdamW normalises is made of rounding errors alone.
(Such is the embedding row of a token that is only met as the last of a sequence, which predicts nothing: AdamW would blow
its noise up to steps of full size.)

  make_golden.py --out tests/golden/models                   makes all models (or the ones named after --only)
  make_golden.py --check tests/golden/models/*               computes everything again and compares; exit 1 beyond tolerance
  make_golden.py --check DIR --attn sdpa --experts batched_mm   the same by another way: shows how much is rounding

Models that are not listed here come from the same code, with transformers 5.24; --check serves them too.

Needs PyTorch 2.11 or newer and transformers 5.17 (the stored files' versions are in their metadata). No network, no GPU.
"""

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import golden_deepseek
import golden_families

STEPS = 20
BETA2 = 0.95
IGNORE = -100
MIN_SCORE_GAP = 5e-4  # softmax probability, k-th minus (k+1)-th expert
MIN_CLIP_GAP = 5e-5  # | |x| - clip_qkv |
MIN_ADAM_RATIO = (3e-6, 3e-5)  # adam_ratio() in the first step, when AdamW's moments are still empty, and later
MAX_DRAWS = 2000
NOTE = (
    "fp32; loss = mean cross entropy over labels != -100, shifted by one, "
    "plus router_aux_loss_coef * aux_loss where aux_loss is present"
)

# What all models share. Initial weights are large, so that gradients are large against rounding.
COMMON = dict(
    initializer_range=0.15,
    max_position_embeddings=128,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
    use_cache=False,
    attention_dropout=0.0,
    hidden_act="silu",
)

# name -> family, seed, sequence length, config dialect, config. rope_theta and rms_norm_eps differ from the class defaults,
# so that a reader that falls back on a default is caught.
MODELS = {
    "mixtral_odd": dict(
        family="mixtral", seed=101, seq=19, dialect="v5",
        config=dict(
            hidden_size=40, num_attention_heads=5, head_dim=8, num_key_value_heads=1, intermediate_size=28,
            num_local_experts=10, num_experts_per_tok=3, vocab_size=97, num_hidden_layers=2,
            tie_word_embeddings=True, sliding_window=None, rms_norm_eps=1e-4, rope_theta=5000.0,
            router_aux_loss_coef=0.05,
        ),
    ),
    "mixtral_top1": dict(
        family="mixtral", seed=102, seq=23, dialect="v5",
        config=dict(
            hidden_size=32, num_attention_heads=4, head_dim=12, num_key_value_heads=2, intermediate_size=16,
            num_local_experts=5, num_experts_per_tok=1, vocab_size=67, num_hidden_layers=3,
            tie_word_embeddings=False, sliding_window=None, rms_norm_eps=1e-5, rope_theta=1000000.0,
            router_aux_loss_coef=0.03,
        ),
    ),
    "qwen3_dense": dict(
        family="qwen3_moe", seed=103, seq=17, dialect="v5",
        config=dict(
            hidden_size=24, num_attention_heads=6, head_dim=12, num_key_value_heads=2, intermediate_size=52,
            moe_intermediate_size=20, num_experts=12, num_experts_per_tok=4, norm_topk_prob=False,
            decoder_sparse_step=2, mlp_only_layers=[3], vocab_size=71, num_hidden_layers=4,
            tie_word_embeddings=True, attention_bias=False, use_sliding_window=False, rms_norm_eps=1e-6,
            rope_theta=20000.0, router_aux_loss_coef=0.05,
        ),
    ),
    "qwen3_v4": dict(
        family="qwen3_moe", seed=104, seq=21, dialect="v4",
        config=dict(
            hidden_size=40, num_attention_heads=4, head_dim=16, num_key_value_heads=2, intermediate_size=64,
            moe_intermediate_size=12, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
            decoder_sparse_step=1, mlp_only_layers=[], vocab_size=73, num_hidden_layers=2,
            tie_word_embeddings=False, attention_bias=False, use_sliding_window=False, rms_norm_eps=1e-5,
            rope_theta=3000.0, router_aux_loss_coef=0.02,
        ),
    ),
    "olmoe_clip": dict(
        family="olmoe", seed=105, seq=24, dialect="v4",
        config=dict(
            hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=12,
            num_experts=12, num_experts_per_tok=5, norm_topk_prob=True, clip_qkv=0.4, vocab_size=79,
            num_hidden_layers=2, tie_word_embeddings=False, attention_bias=False, rms_norm_eps=1e-6,
            rope_theta=50000.0, router_aux_loss_coef=0.04,
        ),
    ),
    "olmoe_k8": dict(
        family="olmoe", seed=106, seq=18, dialect="v5",
        config=dict(
            hidden_size=36, num_attention_heads=3, num_key_value_heads=3, intermediate_size=10,
            num_experts=8, num_experts_per_tok=8, norm_topk_prob=False, clip_qkv=None, vocab_size=93,
            num_hidden_layers=2, tie_word_embeddings=False, attention_bias=False, rms_norm_eps=1e-4,
            rope_theta=10000.0, router_aux_loss_coef=0.03,
        ),
    ),
}


MODELS |= golden_deepseek.MODELS | golden_families.MODELS


def to_v4(config):
    """The same config.json as transformers 4 would have written it."""
    v4 = {k: v for k, v in config.items() if k not in ("rope_parameters", "dtype", "transformers_version")}
    rope = dict(config["rope_parameters"])
    v4["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type", "default")
    if "partial_rotary_factor" in rope:
        v4["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    plain = kind == "default" and v4["model_type"] != "gpt_oss"  # which has YaRN where nothing is said
    v4["rope_scaling"] = None if plain else {"type": kind, **rope}
    v4["torch_dtype"] = config["dtype"]
    if v4["model_type"] in ("qwen3_moe", "olmoe") and "num_local_experts" in v4:
        v4["num_experts"] = v4.pop("num_local_experts")
    return v4


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def load(folder, attn="eager", experts="eager"):
    """The model in a folder, in fp32, as transformers reads it."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attn, experts_implementation=experts,
        local_files_only=True, output_loading_info=True,
    )
    bad = {k: v for k, v in info.items() if v}
    if bad:
        raise RuntimeError(f"{folder}: not every tensor was used as it is: {bad}")
    return model.train()  # no dropout and no jitter: only the mode differs


class Margins:
    """Watches how near a model comes to a choice that rounding could turn."""

    def __init__(self, model):
        self.k = model.config.num_experts_per_tok
        self.clip = getattr(model.config, "clip_qkv", None)
        self.reset()
        if self.clip is not None:
            for name, module in model.named_modules():
                kind = {"q_norm": "q", "k_norm": "k", "v_proj": "v"}.get(name.rsplit(".", 1)[-1])
                if kind:
                    module.register_forward_hook(lambda _m, _i, out, kind=kind: self._clamped(kind, out))
        self.router_logits = []  # of families without a loss, whose models do not give them out
        for _, module in model.named_modules():
            if type(module).__name__.endswith(("TopkRouter", "TopKRouter", "MoEV1Gate")):
                module.register_forward_hook(self._chosen)
        self.sigmoid = model.config.model_type in (
            "deepseek_v3", "dots1", "glm4_moe", "glm4_moe_lite", "hy_v3", "minimax_m2", "solar_open")

    def _chosen(self, router, inputs, out):
        self.router_logits.append(out[0])
        logits = out[0].detach().double()
        bias = getattr(getattr(router, "moe_statics", router), "e_score_correction_bias", None)
        bias = inputs[1] if bias is None and len(inputs) > 1 else bias
        scores = logits.sigmoid() if self.sigmoid else logits.softmax(-1)
        scores = scores if bias is None else scores + bias
        if getattr(router, "num_group", 1) > 1 and getattr(router, "topk_method", "") != "greedy":
            groups = scores.unflatten(-1, (router.num_group, -1))
            best = groups.topk(2 if self.sigmoid else 1, dim=-1).values.sum(-1)
            kept = self._gap(best, router.topk_group)
            scores = groups.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)
        self._gap(scores, router.top_k)

    def _gap(self, scores, k):
        """Marks the k best of each row, and notes how far the next one is off."""
        ranked = scores.sort(dim=-1, descending=True)
        if k < scores.shape[-1]:
            self.score_gap = min(self.score_gap, (ranked.values[:, k - 1] - ranked.values[:, k]).min().item())
        return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, ranked.indices[:, :k], True)

    def reset(self):
        self.router_logits = []
        self.score_gap = self.logit_gap = self.clip_gap = float("inf")  # logit_gap: of families with a loss
        self.clipped = {}

    def _clamped(self, kind, out):  # called before the model clamps `out` in place
        a = out.detach().abs()
        self.clip_gap = min(self.clip_gap, (a - self.clip).abs().min().item())
        n, total = self.clipped.get(kind, (0, 0))
        self.clipped[kind] = (n + (a > self.clip).sum().item(), total + a.numel())

    def routed(self, router_logits):
        for logits in router_logits:
            if self.k == logits.shape[-1]:
                continue  # all experts are chosen
            logits = logits.detach().double().sort(dim=-1, descending=True).values
            scores = logits.softmax(dim=-1)
            self.logit_gap = min(self.logit_gap, (logits[:, self.k - 1] - logits[:, self.k]).min().item())
            self.score_gap = min(self.score_gap, (scores[:, self.k - 1] - scores[:, self.k]).min().item())

    def ok(self):
        return self.score_gap >= MIN_SCORE_GAP and self.clip_gap >= MIN_CLIP_GAP


def forward(model, margins, input_ids, labels):
    """The model's output, with router_logits."""
    margins.reset()
    if not has_aux_loss(model):
        out = model(input_ids=input_ids, labels=labels)
        out["router_logits"] = tuple(margins.router_logits)
        return out
    out = model(input_ids=input_ids, labels=labels, output_router_logits=True)
    margins.routed(out.router_logits)
    return out


def has_aux_loss(model):
    return model.config.model_type not in ("deepseek_v2", "deepseek_v3", "dots1", "glm4_moe", "glm4_moe_lite",
                                           "hunyuan_v1_moe", "hy_v3", "solar_open")


def compute(model, batches, picky):
    """All golden tensors of a model, which is trained on the way, and the margins met. batches(i) yields candidates for the
    (input_ids, labels) of the first batch (i = None) or of step i. If picky, the first one that keeps clear of the margins is
    taken, otherwise simply the first."""
    # A tied tensor has one name; a selection bias may be a parameter, but has no gradient.
    params = {name: p for name, p in model.named_parameters() if not name.endswith("e_score_correction_bias")}
    margins = Margins(model)
    seen = dict(draws=[])

    for draws, (input_ids, labels) in enumerate(batches(None), 1):
        out = forward(model, margins, input_ids, labels)
        if margins.ok() or not picky:
            break
    seen.update(score_gap=margins.score_gap, logit_gap=margins.logit_gap, clip_gap=margins.clip_gap,
                clipped=dict(margins.clipped))
    seen["draws"].append(draws)
    out.loss.backward()
    t = {
        "input_ids": input_ids,
        "labels": labels,
        "logits": out.logits.detach(),
        "loss": out.loss.detach().reshape(1),
    }
    if has_aux_loss(model):
        t["aux_loss"] = out.aux_loss.detach().reshape(1)
    for i, logits in enumerate(out["router_logits"]):
        t[f"router_logits.{i}"] = logits.detach()
    for name, p in params.items():
        t[f"grad.{name}"] = p.grad.detach().clone()
    seen["unused_experts"] = [
        sorted(set(range(r.shape[-1])) - set(r.topk(k, dim=-1).indices.flatten().tolist()))
        for r, k in zip(out["router_logits"], margins.k if isinstance(margins.k, list) else itertools.repeat(margins.k))
    ]
    seen["aux_share"] = aux_share(model, params, input_ids, labels) if has_aux_loss(model) else 0.0

    decay = [p for p in params.values() if p.ndim >= 2]
    plain = [p for p in params.values() if p.ndim < 2]
    adamw = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=1e-3, betas=(0.9, BETA2), eps=1e-8,
    )
    ids, losses, norms, ratios = [], [], [], []
    seen["traj_score_gap"] = seen["traj_logit_gap"] = seen["traj_clip_gap"] = float("inf")
    for i in range(STEPS):
        for draws, (batch, labels) in enumerate(batches(i), 1):
            out = forward(model, margins, batch, labels)
            if picky and not margins.ok():
                continue
            adamw.zero_grad(set_to_none=True)
            out.loss.backward()
            ratio = adam_ratio(adamw, i + 1)
            if ratio >= MIN_ADAM_RATIO[i > 0] or not picky:
                break
        for gap in ("score_gap", "logit_gap", "clip_gap"):
            seen["traj_" + gap] = min(seen["traj_" + gap], getattr(margins, gap))
        seen["draws"].append(draws)
        ratios.append(ratio)
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), 1.0).reshape(1))
        adamw.step()
        ids.append(batch)
        losses.append(out.loss.detach().reshape(1))
    seen["adam_ratio"] = (ratios[0], min(ratios[1:]))
    t["traj.input_ids"] = torch.stack(ids)
    t["traj.loss"] = torch.cat(losses)
    t["traj.grad_norm"] = torch.cat(norms)
    return {k: v.contiguous().clone() for k, v in t.items()}, seen


def adam_ratio(adamw, step):
    """The smallest sqrt(v_hat) that the next step will divide by, in units of the largest gradient in the element's row and
    column: where it comes near the rounding error of fp32, the update is random. Elements without a gradient do not count."""
    params = [p for group in adamw.param_groups for p in group["params"]]
    norm = torch.stack([p.grad.square().sum() for p in params]).sum().sqrt().item()
    clip = min(1.0, 1.0 / (norm + 1e-6))
    worst = float("inf")
    for p in params:
        g = p.grad.abs()
        scale = g.amax(-1, keepdim=True)
        if g.ndim > 1:
            scale = torch.maximum(scale, g.amax(-2, keepdim=True))
        v = BETA2 * adamw.state[p]["exp_avg_sq"] if adamw.state.get(p) else torch.zeros_like(g)
        v_hat = (v + (1 - BETA2) * (clip * g).square()) / (1 - BETA2**step)
        ratio = (v_hat.sqrt() / (clip * scale))[g != 0]
        if ratio.numel():
            worst = min(worst, ratio.min().item())
    return worst


def aux_share(model, params, input_ids, labels):
    """Norm of the router gradient that comes from the auxiliary loss, as a share of the whole router gradient."""
    gates = [p for name, p in params.items() if name.endswith(("mlp.gate.weight", "mlp.router.weight"))]
    out = model(input_ids=input_ids, labels=labels, output_router_logits=True)
    aux = torch.autograd.grad(out.aux_loss * model.router_aux_loss_coef, gates)
    norm = lambda tensors: sum(x.double().square().sum() for x in tensors).sqrt().item()
    return norm(aux) / norm(p.grad for p in gates)


def write_model(name, folder):
    """config.json and model.safetensors with random weights."""
    spec = MODELS[name]
    config = dict(COMMON, **spec["config"])
    if "rope_theta" in config:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    config = transformers.AutoConfig.for_model(spec["family"], **config)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    rng = torch.Generator().manual_seed(spec["seed"])
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if name.endswith(".bias"):
                p.copy_(0.3 * torch.randn(p.shape, generator=rng))
            elif p.ndim >= 2:
                p.copy_(config.initializer_range * torch.randn(p.shape, generator=rng))
            else:  # norm weights
                p.copy_(1.0 + 0.2 * torch.randn(p.shape, generator=rng))
        for name, b in sorted(model.named_buffers()):
            if name.endswith("e_score_correction_bias"):
                b.copy_(0.1 * torch.randn(b.shape, generator=rng))
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        written = json.loads((Path(tmp) / "config.json").read_text())
        write_json(folder / "config.json", to_v4(written) if spec["dialect"] == "v4" else written)
        shutil.copyfile(Path(tmp) / "model.safetensors", folder / "model.safetensors")
    return rng


def make(name, folder):
    folder.mkdir(parents=True, exist_ok=True)
    spec = MODELS[name]
    rng = write_model(name, folder)
    model = load(folder)  # what the files say, not what was in memory

    def batches(i):
        for _ in range(MAX_DRAWS):
            ids = torch.randint(0, model.config.vocab_size, (2, spec["seq"]), generator=rng)
            labels = ids.clone()
            if i is None:  # a different number of labels in each sequence
                labels[1, :5] = IGNORE
                labels[0, 9] = IGNORE
                labels[0, -1] = IGNORE
            yield ids, labels
        raise RuntimeError(f"{name}: no batch with clear margins in {MAX_DRAWS} draws: choose another seed")

    tensors, seen = compute(model, batches, picky=True)
    meta = {"transformers": transformers.__version__, "torch": torch.__version__, "note": NOTE}
    safetensors.torch.save_file(tensors, folder / "golden.safetensors", metadata=meta)
    sizes = {p.name: p.stat().st_size for p in sorted(folder.iterdir())}
    print(f"{name}: {sum(sizes.values())} bytes {sizes}; draws {max(seen['draws'])} at most, {sum(seen['draws'])} in all")
    report(tensors, seen)


def report(tensors, seen):
    print(f"  loss {tensors['loss'].item():.6f}  aux_loss {tensors.get('aux_loss', torch.zeros(1)).item():.6f}  "
          f"trajectory loss {tensors['traj.loss'][0]:.4f} .. {tensors['traj.loss'][-1]:.4f}, "
          f"grad norm {tensors['traj.grad_norm'].min():.3f} .. {tensors['traj.grad_norm'].max():.3f}")
    print(f"  smallest router gap: score {seen['score_gap']:.2e} logit {seen['logit_gap']:.2e}; "
          f"trajectory: score {seen['traj_score_gap']:.2e} logit {seen['traj_logit_gap']:.2e}")
    if seen["clipped"]:
        share = ", ".join(f"{k} {n / total:.1%}" for k, (n, total) in sorted(seen["clipped"].items()))
        print(f"  clipped: {share}; nearest to the clip {seen['clip_gap']:.2e}, trajectory {seen['traj_clip_gap']:.2e}")
    print("  smallest AdamW denominator over gradient scale: "
          f"first step {seen['adam_ratio'][0]:.1e}, later {seen['adam_ratio'][1]:.1e}")
    grads = {k: v.abs().max().item() for k, v in tensors.items() if k.startswith("grad.")}
    weakest = min(grads, key=grads.get)
    print(f"  weakest gradient: {weakest} (largest element {grads[weakest]:.2e}); auxiliary loss gives "
          f"{seen['aux_share']:.1%} of the router gradient; experts without tokens {seen['unused_experts']}")


def check(folder, args):
    """Computes a stored golden again; returns whether it agrees."""
    folder = Path(folder)
    with safetensors.safe_open(folder / "golden.safetensors", "pt") as f:
        meta = f.metadata()
        want = {k: f.get_tensor(k) for k in f.keys()}
    model = load(folder, args.attn, args.experts)
    steps = want["traj.input_ids"]
    got, seen = compute(
        model, lambda i: [(want["input_ids"], want["labels"]) if i is None else (steps[i], steps[i])], picky=False
    )
    print(f"{folder}: {meta}")
    good = True
    if set(got) != set(want):
        print(f"  FAIL names: missing {sorted(set(got) - set(want))}, unknown {sorted(set(want) - set(got))}")
        good = False
    worst = {}
    for name in sorted(set(got) & set(want)):
        a, b = got[name], want[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            print(f"  FAIL {name}: {a.dtype} {list(a.shape)}, stored {b.dtype} {list(b.shape)}")
            good = False
            continue
        if not a.is_floating_point():
            continue
        diff = ((a - b).abs().max() / b.abs().max().clamp_min(1e-12)).item()
        if not diff <= args.tolerance:  # also when it is NaN
            print(f"  FAIL {name}: relative difference {diff:.2e}")
            good = False
        kind = name.split(".")[0] if not name.startswith("traj.") else name
        if kind not in worst or not diff <= worst[kind][0]:
            worst[kind] = (diff, name)
    for kind, (diff, name) in worst.items():
        print(f"  {kind:16} max |a-b| / max |b| = {diff:.2e}" + (f"  ({name})" if name != kind else ""))
    report(got, seen)
    print("  agrees" if good else "  DIFFERS")
    return good


def main():
    global safetensors, torch, transformers
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="DIR", type=Path, help="make the models, each in a folder of its own in DIR")
    what.add_argument("--check", metavar="DIR", type=Path, nargs="+", help="model folders to compute again and compare")
    parser.add_argument("--only", metavar="NAME", nargs="+", choices=sorted(MODELS), help="make only these models")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--attn", default="eager", choices=("eager", "sdpa"), help="attention code for --check")
    parser.add_argument("--experts", default="eager", choices=("eager", "batched_mm"), help="expert code for --check")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="largest relative difference for --check")
    args = parser.parse_args()

    os.environ["HF_HUB_OFFLINE"] = "1"  # everything is local
    import safetensors.torch
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    if args.check:
        return 0 if all([check(folder, args) for folder in args.check]) else 1
    for name in args.only or MODELS:
        make(name, args.out / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
