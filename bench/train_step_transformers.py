#!/usr/bin/env python3
"""A training step in transformers on one GPU, eager and compiled: the peer of bench/train_step.py on the shape of
examples/bench/qwen3_30b_8_layers.toml. Random tokens, grouped_mm experts, gradient norm clipped at 1.

    bench/train_step_transformers.py --json FILE

--serve is the other side of bench/train_step_cpu.py: it reads numbers of steps from standard input and answers each with
the seconds of these steps, on the device and with the model and the threads that the other options name.

Weights, gradients and the states of fused AdamW are in bf16, as torch makes them for a bf16 model, without fp32 master
weights: less than half the optimizer's memory traffic of ours, which keeps master weights in fp32, and gradients and
states too unless memory.expert_gradients and memory.moments say bf16. The first three steps are left out; the median of
the rest is reported.
"""
import argparse
import gc
import json
import pathlib
import statistics
import sys
import time

import torch
import transformers

LEFT_OUT = 3
MODEL = dict(vocab_size=151936, hidden_size=2048, num_hidden_layers=8, num_attention_heads=32, num_key_value_heads=4,
             head_dim=128, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, num_experts=128,
             num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True, use_cache=False)


def flops_per_token(config, seq_len):
    """Training is 3 x forward_flops_per_token of src/config/model_spec.h: active weights and causal attention."""
    d, q, kv = config.hidden_size, *(heads * config.head_dim for heads in
                                     (config.num_attention_heads, config.num_key_value_heads))
    attention = 2 * d * (2 * q + 2 * kv) + 2 * (seq_len + 1) * q
    experts = 2 * 3 * d * config.num_experts_per_tok * config.moe_intermediate_size + 2 * d * config.num_experts
    return 3 * (2 * d * config.vocab_size + config.num_hidden_layers * (attention + experts))


def measure(mode, sequences, seq_len, steps, device="cuda"):
    torch.compiler.reset()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(1)
    config = transformers.Qwen3MoeConfig(**MODEL, max_position_embeddings=seq_len)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa",
                                                              experts_implementation="grouped_mm")
        tokens = torch.randint(config.vocab_size, (LEFT_OUT + steps, sequences, seq_len))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = torch.compile(model, dynamic=False) if mode == "compile" else model
    seconds = []
    for ids in tokens:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        forward(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    step = statistics.median(seconds[LEFT_OUT:])
    rate, flops = sequences * seq_len / step, flops_per_token(config, seq_len)
    return {"step_ms": step * 1e3, "tokens_per_s": rate, "flops_per_token": flops,
            "tflops_per_rank": rate * flops * 1e-12, "mem_peak_bytes": torch.cuda.max_memory_allocated(),
            "first_step_s": seconds[0]}


def config_of(model, seq_len):
    """The transformers model of a model in Moewright's words."""
    return transformers.Qwen3MoeConfig(
        vocab_size=model["vocab"], hidden_size=model["width"], num_hidden_layers=model["layers"],
        num_attention_heads=model["heads"], num_key_value_heads=model["kv_heads"], head_dim=model["head_dim"],
        num_experts=model["experts"], num_experts_per_tok=model["top_k"], moe_intermediate_size=model["expert_width"],
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, norm_topk_prob=True, use_cache=False,
        max_position_embeddings=seq_len)


def serve(args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    config = config_of(json.loads(args.model), args.seq_len)
    with torch.device(args.device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype], attn_implementation="sdpa",
            experts_implementation=args.experts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__}), flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            ids = torch.randint(config.vocab_size, (args.sequences, args.seq_len), device=args.device)
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            model(input_ids=ids, labels=ids).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seconds.append(time.perf_counter() - begin)
        print(json.dumps(seconds), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=["eager", "compile"], default=["eager", "compile"])
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="with --serve, like all that follow")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--experts", default="grouped_mm", help="implementation of the experts")
    parser.add_argument("--model", help="JSON of the shape, in the words of a run file")
    args = parser.parse_args()
    if args.serve:
        return serve(args)
    results = []
    for mode in args.modes:
        result = {"benchmark": "train_step_transformers", "mode": mode, "shape": "qwen3_30b_8_layers",
                  "sequences": args.sequences, "seq_len": args.seq_len, "optimizer": "fused AdamW, states in bf16",
                  "torch": torch.__version__, "transformers": transformers.__version__}
        try:
            result.update(measure(mode, args.sequences, args.seq_len, args.steps))
        except Exception as error:  # of whatever kind: the other mode still counts
            result["error"] = str(error)
        gc.collect()
        torch.cuda.empty_cache()
        results.append(result)
        print(json.dumps(result, indent=2), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
