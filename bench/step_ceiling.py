#!/usr/bin/env python3
"""What bounds the training step of bench/train_step.py on the shape of examples/bench/qwen3_30b_8_layers.toml: its parts that
nobody can leave out, each by the fastest kernels of PyTorch's libraries, in one process and one after the other.

    bench/step_ceiling.py --json FILE

  dense       products of attention blocks, routers and the head (cuBLAS, bf16), forward, input and weight gradient
  experts     the six products of each MoE layer with rows drawn at random, each by the fastest way of
              bench/moe_layer_products.py
  attention   the faster of cuDNN's and flash attention, causal, forward and backward, in no fixed order of sums
  passes      copies of as many bytes as norms, rotations, activations, sums over a token's rows and cross-entropy read
              and write at least
  update      copies of as many bytes as AdamW reads and writes with a clipped gradient

Left out: embedding, the choice of experts, indices, the norm of gradients and all gaps.
The host runs ahead of the device, so that launches are hidden.
"""
import argparse
import json
import pathlib
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from moe_layer_products import GRADIENTS, Operands, normal, ways_of
from power_log import PowerLog
from train_step_transformers import MODEL, flops_per_token

LEFT_OUT = 3
# AdamW reads gradient, two moments and weight, and writes moments, weight and its bf16 half.
BYTES_OF_UPDATE = {"fp32": 4 + 2 * 4 + 4 + 2 * 4 + 4, "bf16": 2 + 2 * 2 + 4 + 2 * 2 + 4}


class Config:
    """MODEL with attributes, as transformers' configurations have them."""

    def __init__(self):
        self.__dict__.update(MODEL)


def dense(rows, sides, repeats):
    """The three products of each [out, in] in `sides`."""
    operands = [(normal(rows, k), normal(rows, n), normal(n, k)) for n, k in sides]
    results = [(torch.empty_like(y), torch.empty_like(x), torch.empty_like(w)) for x, y, w in operands]

    def run():
        for _ in range(repeats):
            for (x, y, w), (out, d_x, d_w) in zip(operands, results):
                torch.mm(x, w.t(), out=out)
                torch.mm(y, w, out=d_x)
                torch.mm(y.t(), x, out=d_w)
    return run


def attention(config, sequences, seq_len, backend):
    q = normal(sequences, config.num_attention_heads, seq_len, config.head_dim).requires_grad_()
    k, v = (normal(sequences, config.num_key_value_heads, seq_len, config.head_dim).requires_grad_() for _ in range(2))
    d_out = torch.randn_like(q)

    def run():
        for _ in range(config.num_hidden_layers):
            with sdpa_kernel(backend):
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            torch.autograd.grad(out, (q, k, v), d_out)
    return run


def bytes_of_passes(config, tokens):
    """Of a step's passes over activations in bf16, each tensor read or written once in a pass."""
    heads = (config.num_attention_heads + config.num_key_value_heads) * config.head_dim
    rows = tokens * config.num_experts_per_tok
    norms = 2 * (2 + 4) * tokens * config.hidden_size  # two: forward, then backward with the residual's gradient
    rotations = (2 + 3) * tokens * heads  # each with the norm of a head
    activations = (3 + 6) * rows * config.moe_intermediate_size
    sums = 2 * (rows + tokens) * config.hidden_size
    cross_entropy = 2 * tokens * config.vocab_size
    return 2 * (config.num_hidden_layers * (norms + rotations + activations + sums) + cross_entropy)


def copies(bytes_moved):
    """Copies that read half of the bytes and write the other half."""
    half = bytes_moved // 2
    source = torch.empty(min(half, 8 << 30), dtype=torch.uint8, device="cuda").random_(255)
    target = torch.empty_like(source)

    def run():
        left = half
        while left > 0:
            count = min(left, len(source))
            target[:count].copy_(source[:count])
            left -= count
    return run


def measure(parts, steps):
    """Medians of each part and of all together, in ms."""
    times = []
    for _ in range(LEFT_OUT + steps):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(parts) + 1)]
        events[0].record()
        for run, event in zip(parts.values(), events[1:]):
            run()
            event.record()
        times.append(events)
    torch.cuda.synchronize()
    times = [[a.elapsed_time(b) for a, b in zip(events, events[1:])] for events in times[LEFT_OUT:]]
    medians = {name: statistics.median(of_part) for name, of_part in zip(parts, zip(*times))}
    return medians, statistics.median(map(sum, times))


def fastest(runs):
    """Of several ways to compute the same."""
    medians, _ = measure(runs, 5)
    print("ms:", medians, flush=True)
    return runs[min(medians, key=medians.get)]


def fastest_experts(operands, gradients, layers):
    products = [fastest(ways) for ways in ways_of(operands, gradients).values()]

    def run():
        for _ in range(layers):
            for product in products:
                product()
    return run


def fastest_attention(config, sequences, seq_len):
    runs = {}
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        run = attention(config, sequences, seq_len, backend)
        try:
            run()
            runs[backend.name] = run
        except RuntimeError as error:
            print(f"no {backend.name}: {str(error).splitlines()[0]}", flush=True)
    return fastest(runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json")
    args = parser.parse_args()
    config, tokens = Config(), args.sequences * args.seq_len
    d, layers = config.hidden_size, config.num_hidden_layers
    q, kv = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    shape = d, config.moe_intermediate_size, config.num_experts, config.num_experts_per_tok
    parameters = layers * (3 * shape[0] * shape[1] * shape[2] + d * (2 * q + 2 * kv)) + 2 * config.vocab_size * d
    flops = flops_per_token(config, args.seq_len) * tokens
    operands = Operands(*shape, tokens)
    results = []
    parts = {
        "head": dense(tokens, [(config.vocab_size, d)], 1),
        "dense": dense(tokens, [(q + 2 * kv, d), (d, q), (config.num_experts, d)], layers),
        "attention": fastest_attention(config, args.sequences, args.seq_len),
        "passes": copies(bytes_of_passes(config, tokens))}
    for states, gradients in GRADIENTS.items():
        arm = {**parts, "experts": fastest_experts(operands, gradients, layers),
               "update": copies(parameters * BYTES_OF_UPDATE[states])}
        with PowerLog() as log:
            medians, total = measure(arm, args.steps)
        result = {"benchmark": "step_ceiling", "shape": "qwen3_30b_8_layers", "states": states, "tokens": tokens,
                  "torch": torch.__version__, "step_ms": total, "tflops": flops / total * 1e-9, "parts_ms": medians,
                  **log.medians}
        results.append(result)
        print(json.dumps(result), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
