"""What bounds an MoE layer that is made of known kernels, for bench/moe_layer_torch.py and bench/step_ceiling.py: each of its
six expert products by the fastest of these, with rows drawn at random as a router draws them, bf16 operands:

  grouped      torch._grouped_mm, rows already in the order of experts
  per expert   cuBLAS, one product for each expert
  SonicMoE     its kernels, where installed (bench/moe_layer_peers.py): they gather rows and compute the activation, too

beside products of the router in bf16 (cuBLAS) and the copy rate, at which a layer sums its tokens' rows. No activation of
its own, no choice of experts, no index.
"""
import torch

from moe_layer_peers import PEER_PRODUCTS

GRADIENTS = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRODUCTS = "up", "down", "d_a", "d_x", "d_up", "d_down"  # as in bench/hopper_products.cu
CALLS = 4  # in one CUDA graph
COPY_BYTES = 4 << 30


def normal(*shape, std=1):
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0, std)


class Operands:
    """Of one layer's products, rows sorted by expert. Memory of weight gradients is shared by both dtypes."""

    def __init__(self, width, expert_width, experts, top_k, tokens):
        torch.manual_seed(1)
        ids_TK = torch.rand(tokens, experts, device="cuda").topk(top_k).indices
        ids_R, self.choice_R = ids_TK.flatten().sort()
        self.token_R = (self.choice_R // top_k).int()
        self.counts = torch.bincount(ids_R, minlength=experts).tolist()
        self.offsets_E = torch.tensor(self.counts, device="cuda").cumsum(0).int()
        rows = tokens * top_k
        self.x_TD, self.d_out_TD = normal(tokens, width), normal(tokens, width)
        self.x_RD, self.d_y_RD = normal(rows, width), normal(rows, width)
        self.h_RcF, self.a_RF = normal(rows, 2 * expert_width), normal(rows, expert_width)
        self.w_up_EcFD = normal(experts, 2 * expert_width, width, std=0.02)
        self.w_down_EDF = normal(experts, width, expert_width, std=0.02)
        self.w_router_ED = normal(experts, width)
        self.memory = torch.empty(self.w_up_EcFD.numel(), dtype=torch.float32, device="cuda")

    def gradient(self, weight, dtype):
        return self.memory.view(dtype)[:weight.numel()].view_as(weight)


def grouped(o, gradients):
    """The products by torch._grouped_mm, which writes weight gradients in bf16 alone."""
    mm, offsets_E = torch._grouped_mm, o.offsets_E
    ways = {
        "up": lambda: mm(o.x_RD, o.w_up_EcFD.mT, offs=offsets_E),
        "down": lambda: mm(o.a_RF, o.w_down_EDF.mT, offs=offsets_E),
        "d_a": lambda: mm(o.d_y_RD, o.w_down_EDF, offs=offsets_E),
        "d_x": lambda: mm(o.h_RcF, o.w_up_EcFD, offs=offsets_E)}
    if gradients == torch.bfloat16:
        ways["d_up"] = lambda: mm(o.h_RcF.t(), o.x_RD, offs=offsets_E)
        ways["d_down"] = lambda: mm(o.d_y_RD.t(), o.a_RF, offs=offsets_E)
    return ways


def per_expert(o, gradients):
    """The products by cuBLAS, expert by expert."""
    out_RcF, out_RF, out_RD = torch.empty_like(o.h_RcF), torch.empty_like(o.a_RF), torch.empty_like(o.x_RD)

    def rows(x, weights, out):
        def run():
            for part, weight, to in zip(x.split(o.counts), weights, out.split(o.counts)):
                torch.mm(part, weight, out=to)
        return run

    def weights(d_y, x, like):
        out = o.gradient(like, gradients)

        def run():
            for d_part, part, to in zip(d_y.split(o.counts), x.split(o.counts), out):
                torch.mm(d_part.t(), part, out_dtype=gradients, out=to)
        return run

    return {
        "up": rows(o.x_RD, o.w_up_EcFD.mT, out_RcF), "down": rows(o.a_RF, o.w_down_EDF.mT, out_RD),
        "d_a": rows(o.d_y_RD, o.w_down_EDF, out_RF), "d_x": rows(o.h_RcF, o.w_up_EcFD, out_RD),
        "d_up": weights(o.h_RcF, o.x_RD, o.w_up_EcFD), "d_down": weights(o.d_y_RD, o.a_RF, o.w_down_EDF)}


def ways_of(operands, gradients, peers=()):
    """By product, what computes it: name of the way and function. `peers`: of PEER_PRODUCTS."""
    ways = {"grouped": grouped(operands, gradients), "per expert": per_expert(operands, gradients)}
    for name in peers:
        ways[name] = PEER_PRODUCTS[name](operands)
        if gradients != torch.bfloat16:
            del ways[name]["d_up"], ways[name]["d_down"]
    return {product: {name: of[product] for name, of in ways.items() if product in of} for product in PRODUCTS}


def router(o):
    """Forward, input gradient and weight gradient of the router's product."""
    logits_TE = normal(len(o.x_TD), len(o.w_router_ED))

    def run():
        torch.mm(o.x_TD, o.w_router_ED.t())
        torch.mm(logits_TE, o.w_router_ED)
        torch.mm(logits_TE.t(), o.x_TD)
    return run


def copy_seconds_per_byte(graph_ms, repeats):
    """Of a byte read or written."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_(255)
    target = torch.empty_like(source)
    return graph_ms(lambda: target.copy_(source), lambda: None, repeats) * 1e-3 / (2 * COPY_BYTES)


def measure_products(shape, tokens, graph_ms, repeats, peers):
    """Times in ms: by product (with the dtype of weight gradients, as in "d_up fp32") and way; of the router's products and
    of both sums over a token's rows at the copy rate."""
    width, _, _, top_k = shape
    o = Operands(*shape, tokens)

    def time(way):
        def calls():
            for _ in range(CALLS):
                way()
        torch.cuda.empty_cache()
        try:
            return graph_ms(calls, lambda: None, repeats) / CALLS
        except Exception as error:  # of whatever kind: the other ways still count
            print(f"  error: {error}", flush=True)
            return None

    result = {"copy_tb_per_s": 1e-12 / copy_seconds_per_byte(graph_ms, repeats), "router_ms": time(router(o)), "ms": {}}
    result["sums_ms"] = 2 * 2 * (tokens * top_k + tokens) * width / result["copy_tb_per_s"] * 1e-9
    for name, dtype in GRADIENTS.items():
        for product, ways in ways_of(o, dtype, peers).items():
            key = f"{product} {name}" if product in ("d_up", "d_down") else product
            if key not in result["ms"]:
                result["ms"][key] = {way: time(run) for way, run in ways.items()}
    return result
