#!/usr/bin/env python3
"""One MoE layer in PyTorch on one GPU, as bench/moe_layer.cpp measures ours: the same shapes, routing and model FLOPs.

    bench/moe_layer_torch.py --shape qwen3-30b mixtral --tokens 16384 32768 --json FILE

The expert products are torch._grouped_mm. Two ways to bring rows to their experts and back, each eager and compiled:
  index_add   gathers and index_add, and what autograd makes of them
  permute     gathers alone, in both directions: their gradients are written by hand
Beside them the kernels of other projects that are installed (bench/moe_layer_peers.py), and times of a layer's products by
all known kernels, which bound it (`products`, bench/moe_layer_products.py).
Router products are in bf16 and weight gradients are written in bf16, where ours computes the router in fp32: this
favours this side. `graph_*` are times of a CUDA graph, which hides what the host needs to launch kernels.
"""
import argparse
import gc
import itertools
import json
import math
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F

from moe_layer_peers import PEER_PRODUCTS, PEERS
from moe_layer_products import measure_products
from power_log import PowerLog

# The values of bench/moe_layer.cpp: D, F, E, K of a shape, and how a skewed router prefers expert over expert.
SHAPES = {
    "xmoe-small": (2048, 1408, 64, 6),
    "xmoe-medium": (5120, 1536, 128, 6),
    "xmoe-large": (7168, 2048, 256, 8),
    "mixtral": (4096, 14336, 8, 2),
    "qwen3-30b": (2048, 768, 128, 8),
}
SKEW, INIT_STD = 0.25, 0.02
WARM_UP_S = 0.5  # until the clock follows the power limit
CALLS_BEFORE_WAIT = 4
TOLERANCE = {"output": 0.02, "d_x": 0.03}  # of a path's distance from the first path, relative to the norm
PRODUCTS = "products"
PATHS = {f"{combine} {mode}": (combine, mode) for mode in ("eager", "compile") for combine in ("permute", "index_add")}


class Layer:
    """Weights, input and output gradient of one layer; weights of gate and up projection lie back to back."""

    def __init__(self, width, expert_width, experts, top_k, tokens, skewed, device="cuda"):
        torch.manual_seed(1)

        def normal(*shape, std):
            return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, std)

        self.top_k = top_k
        self.x_TD = normal(tokens, width, std=1)
        self.w_router_ED = normal(experts, width, std=INIT_STD)
        if skewed:
            rank_E = torch.arange(experts, device=device) * 37 % experts
            self.x_TD[:, 0] = 1
            self.w_router_ED[:, 0] = -SKEW * INIT_STD * math.sqrt(width) * torch.log1p(rank_E.float())
        self.w_up_EcFD = normal(experts, 2 * expert_width, width, std=INIT_STD)
        self.w_down_EDF = normal(experts, width, expert_width, std=INIT_STD)
        self.d_out_TD = normal(tokens, width, std=1e-3)
        self.trained = [self.x_TD, self.w_router_ED, self.w_up_EcFD, self.w_down_EDF]
        for tensor in self.trained:
            tensor.requires_grad_()

    def imbalance(self):
        ids_TK, _ = choose_experts(self.x_TD, self.w_router_ED, self.top_k)
        counts_E = torch.bincount(ids_TK.flatten(), minlength=self.w_router_ED.shape[0]).float()
        return (counts_E.max() / counts_E.mean()).item()

    def zero_gradients(self):
        for tensor in self.trained:
            tensor.grad = None


def choose_experts(x_TD, w_router_ED, top_k):
    scores_TK, ids_TK = (x_TD @ w_router_ED.t()).topk(top_k, dim=-1)
    return ids_TK, scores_TK.softmax(-1, dtype=torch.float32).to(x_TD.dtype)


def experts(x_RD, w_up_EcFD, w_down_EDF, offsets_E):
    gate_RF, up_RF = torch._grouped_mm(x_RD, w_up_EcFD.transpose(-2, -1), offs=offsets_E).chunk(2, dim=-1)
    return torch._grouped_mm(F.silu(gate_RF) * up_RF, w_down_EDF.transpose(-2, -1), offs=offsets_E)


class Dispatch(torch.autograd.Function):
    """Rows of tokens in the order of their experts; `row_of_TK` finds a choice's row again."""

    @staticmethod
    def forward(ctx, x_TD, choice_R, row_of_TK):
        ctx.save_for_backward(row_of_TK)
        return x_TD[choice_R // row_of_TK.shape[1]]

    @staticmethod
    def backward(ctx, d_x_RD):
        (row_of_TK,) = ctx.saved_tensors
        return d_x_RD[row_of_TK].sum(1), None, None


class Combine(torch.autograd.Function):
    """The weighted sum of each token's rows."""

    @staticmethod
    def forward(ctx, y_RD, gate_TK, choice_R, row_of_TK):
        ctx.save_for_backward(y_RD, gate_TK, choice_R, row_of_TK)
        return (y_RD[row_of_TK] * gate_TK[..., None]).sum(1)

    @staticmethod
    def backward(ctx, d_out_TD):
        y_RD, gate_TK, choice_R, row_of_TK = ctx.saved_tensors
        d_y_RD = d_out_TD[choice_R // row_of_TK.shape[1]] * gate_TK.flatten()[choice_R, None]
        d_gate_TK = (y_RD[row_of_TK] * d_out_TD[:, None]).sum(-1)
        return d_y_RD, d_gate_TK, None, None


def moe_layer(x_TD, w_router_ED, w_up_EcFD, w_down_EDF, top_k, combine):
    ids_TK, gate_TK = choose_experts(x_TD, w_router_ED, top_k)
    ids_R, choice_R = ids_TK.flatten().sort()
    every_expert = torch.arange(w_router_ED.shape[0], device=x_TD.device)
    offsets_E = torch.searchsorted(ids_R, every_expert, right=True, out_int32=True)
    if combine == "permute":
        row_of_R = torch.empty_like(choice_R).scatter_(0, choice_R, torch.arange(len(choice_R), device=x_TD.device))
        row_of_TK = row_of_R.view(-1, top_k)
        y_RD = experts(Dispatch.apply(x_TD, choice_R, row_of_TK), w_up_EcFD, w_down_EDF, offsets_E)
        return Combine.apply(y_RD, gate_TK, choice_R, row_of_TK)
    token_R = choice_R // top_k
    y_RD = experts(x_TD.index_select(0, token_R), w_up_EcFD, w_down_EDF, offsets_E)
    return torch.zeros_like(x_TD).index_add(0, token_R, y_RD * gate_TK.flatten()[choice_R, None])


def warm_up(work, before):
    end = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < end:
        for _ in range(CALLS_BEFORE_WAIT):
            before()
            work()
        torch.cuda.synchronize()


def median_ms(work, before, repeats):
    """At the clock that the power limit allows. The host runs ahead of the device: what it needs to launch work is hidden
    where it can be."""
    warm_up(work, before)
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before()
        begin.record()
        work()
        end.record()
        times.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in times)


def graph_ms(work, before, repeats):
    """The same without the host: replays of one CUDA graph. None for work that cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    before()
    work()  # libraries open before the capture
    torch.cuda.synchronize()
    before()
    try:
        with torch.cuda.graph(graph):
            work()
    except RuntimeError as error:
        print(f"no CUDA graph: {str(error).splitlines()[0]}", flush=True)
        return None
    return median_ms(graph.replay, lambda: None, repeats)


def saved_bytes(layer, forward):
    """What autograd keeps from forward to backward: the layer's input included, its output not."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    out_TD = forward()
    return torch.cuda.memory_allocated() - before - out_TD.nbytes + layer.x_TD.nbytes


def forward_of(layer, combine, mode):
    """The forward pass of one of PATHS."""
    torch.compiler.reset()
    function = torch.compile(moe_layer, dynamic=False) if mode == "compile" else moe_layer
    return lambda: function(layer.x_TD, layer.w_router_ED, layer.w_up_EcFD, layer.w_down_EDF, layer.top_k, combine)


def results_of(layer, forward):
    """Output and input gradient. Nothing of autograd's graph outlives this: the capture of a CUDA graph would fail."""
    layer.zero_gradients()
    out_TD = forward()
    out_TD.backward(layer.d_out_TD)
    return {"output": out_TD.detach(), "d_x": layer.x_TD.grad}


def check_against(reference, results):
    """Distances from the first path's results, which may be the rounding of bf16."""
    for name, tolerance in TOLERANCE.items():
        error = ((results[name] - reference[name]).norm(dtype=torch.float32)
                 / reference[name].norm(dtype=torch.float32)).item()
        if not error < tolerance:
            raise RuntimeError(f"{name} differs from that of the first path by {error:.3f} of its norm")


def measure_path(layer, forward, repeats, reference):
    """Results and times of one path; the results must be the reference's where there is one."""
    def forward_backward():
        forward().backward(layer.d_out_TD)

    layer.zero_gradients()
    forward_backward()  # compiles and tunes, which takes memory of its own
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    results = results_of(layer, forward)
    check_against(reference or results, results)
    layer.zero_gradients()
    saved = saved_bytes(layer, forward)
    forward_ms = median_ms(forward, layer.zero_gradients, repeats)
    with PowerLog() as log:
        both_ms = median_ms(forward_backward, layer.zero_gradients, repeats)
    memory = torch.cuda.max_memory_allocated()
    graph_forward_ms, graph_both_ms = (graph_ms(work, layer.zero_gradients, repeats)
                                       for work in (forward, forward_backward))
    tokens, width = layer.x_TD.shape
    flops = 6 * tokens * layer.top_k * width * layer.w_down_EDF.shape[2]
    return results, {
        "forward_ms": forward_ms, "backward_ms": both_ms - forward_ms, "forward_backward_ms": both_ms,
        "forward_tflops": flops / forward_ms * 1e-9, "forward_backward_tflops": 3 * flops / both_ms * 1e-9,
        "graph_forward_tflops": graph_forward_ms and flops / graph_forward_ms * 1e-9,
        "graph_forward_backward_tflops": graph_both_ms and 3 * flops / graph_both_ms * 1e-9,
        "saved_bytes": saved, "memory_bytes": memory, **log.medians,
    }


def measure_shape(shape, tokens, routing, repeats, wanted):
    """Yields one result per wanted path; one that fails is recorded with its error."""
    width, expert_width, expert_count, top_k = SHAPES[shape]
    common = {
        "benchmark": "moe_layer_torch", "shape": shape, "width": width, "expert_width": expert_width,
        "experts": expert_count, "top_k": top_k, "tokens": tokens, "dtype": "bf16", "repeats": repeats,
        "torch": torch.__version__,
    }
    if PRODUCTS in wanted and routing == "random":  # first: where a peer cannot be captured, nothing after it can
        peers = [name for name in wanted if name in PEER_PRODUCTS]
        times = measure_products(SHAPES[shape], tokens, graph_ms, repeats, peers)
        print(f"{shape} T={tokens} random routing, products: {json.dumps(times)}", flush=True)
        yield {**common, "path": PRODUCTS, "routing": routing, **times}
        gc.collect()
        torch.cuda.empty_cache()
    layer = Layer(*SHAPES[shape], tokens, routing == "skewed")
    imbalance = layer.imbalance()
    reference = None
    for path in wanted:
        if path == PRODUCTS:
            continue
        result = {**common, "path": path, "routing": routing, "imbalance": imbalance}
        title = f"{shape} T={tokens} {routing} routing, {path}"
        try:
            forward = forward_of(layer, *PATHS[path]) if path in PATHS else PEERS[path](layer)
            computed, times = measure_path(layer, forward, repeats, reference)
            reference = reference or computed
            result.update(times)
            print(f"{title}: forward {times['forward_ms']:.3f} ms {times['forward_tflops']:.1f} TFLOP/s, "
                  f"forward+backward {times['forward_backward_ms']:.3f} ms "
                  f"{times['forward_backward_tflops']:.1f} TFLOP/s, as a graph "
                  f"{times['graph_forward_backward_tflops'] or math.nan:.1f}, "
                  f"{times['saved_bytes'] / 2**20:.0f} MiB kept for backward", flush=True)
        except Exception as error:  # of whatever kind: the other paths still count
            result["error"] = str(error)
            print(f"{title}: error: {error}", flush=True)
        layer.zero_gradients()
        gc.collect()
        torch.cuda.empty_cache()
        yield result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["qwen3-30b"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[16384])
    parser.add_argument("--routing", choices=["random", "skewed"], default="random")
    parser.add_argument("--paths", nargs="+", choices=[*PATHS, *PEERS, PRODUCTS],
                        default=[*PATHS, *PEERS, PRODUCTS])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json")
    args = parser.parse_args()
    results = []
    for shape, tokens in itertools.product(args.shape, args.tokens):
        for result in measure_shape(shape, tokens, args.routing, args.repeats, args.paths):
            results.append(result)
            if args.json:  # after every path: what was measured is kept, however long the next one takes
                pathlib.Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
