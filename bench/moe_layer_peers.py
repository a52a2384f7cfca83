"""MoE layers of other projects' kernels, for bench/moe_layer_torch.py: SonicMoE and Liger Kernel, as published on PyPI.

A peer is a function from a Layer of bench/moe_layer_torch.py to a forward pass without arguments, which calls what the
project documents for training. PEERS lists those that can be imported. Both leave routing in bf16 and write weight
gradients in bf16. PEER_PRODUCTS has their kernels one by one.

    pip install --no-deps sonic-moe==0.1.2.post1 quack-kernels==0.4.1 nvidia-cutlass-dsl==4.4.2 \\
        nvidia-cutlass-dsl-libs-base==4.4.2 nvidia-cutlass-dsl-libs-cu13==4.4.2 apache-tvm-ffi==0.1.9 \\
        torch-c-dlpack-ext einops liger-kernel

SonicMoE times some 150 kernels before its first use and again for every shape (minutes); QUACK_CACHE_DIR=FOLDER and
QUACK_CACHE_AUTOTUNING=1 keep them.
"""
import importlib.util

import torch


def sonic_moe(layer):
    from sonicmoe.enums import ActivationType
    from sonicmoe.functional import moe_TC_softmax_topk_layer

    experts, rows, width = layer.w_up_EcFD.shape
    # Its own order of rows: gate and up projection of a feature one after the other.
    w_up_EcFD = layer.w_up_EcFD.detach().view(experts, 2, rows // 2, width).transpose(1, 2).reshape(experts, rows, width)
    w_up_EcFD.requires_grad_()
    layer.trained.append(w_up_EcFD)

    def forward():
        out_TD, _, _ = moe_TC_softmax_topk_layer(
            layer.x_TD, layer.w_router_ED, w_up_EcFD.permute(1, 2, 0), None, layer.w_down_EDF.permute(1, 2, 0), None,
            layer.top_k, torch.cuda.current_stream().cuda_stream, ActivationType.SWIGLU, False)
        return out_TD

    return forward


def sonic_moe_products(o):
    """The kernels of SonicMoE's layer that hold a product, by the names of bench/moe_layer_products.py."""
    from sonicmoe.functional import backward, forward

    offsets_E = torch.nn.functional.pad(o.offsets_E, (1, 0))
    w_up, w_down = o.w_up_EcFD.permute(1, 2, 0), o.w_down_EDF.permute(1, 2, 0)
    scatter_R = o.choice_R.int()
    scores_R = torch.rand(len(o.x_RD), device="cuda")
    d_scores_R, d_h_RcF, a_RF, y_RD = (torch.empty_like(like) for like in (scores_R, o.h_RcF, o.a_RF, o.x_RD))
    d_w_up = o.gradient(o.w_up_EcFD, torch.bfloat16).permute(1, 2, 0)
    d_w_down = o.gradient(o.w_down_EDF, torch.bfloat16).permute(1, 2, 0)
    return {
        "up": lambda: forward._up_projection_forward(o.x_TD, w_up, d_h_RcF, a_RF, None, offsets_E, o.token_R, "swiglu"),
        "down": lambda: forward._down_projection_forward(w_down, o.a_RF, y_RD, None, offsets_E),
        "d_a": lambda: backward._down_projection_backward_act(
            o.d_out_TD, o.h_RcF, w_down, d_h_RcF, d_scores_R, None, None, a_RF, scores_R, offsets_E, o.token_R, scatter_R,
            "swiglu"),
        "d_x": lambda: backward._up_projection_backward_act(w_up, y_RD, o.h_RcF, None, offsets_E, True),
        "d_up": lambda: backward._up_projection_backward_weight(o.x_TD, d_w_up, o.h_RcF, offsets_E, o.token_R, True),
        "d_down": lambda: backward._down_projection_backward_weight(o.d_out_TD, o.a_RF, d_w_down, offsets_E, o.token_R)}


def liger(layer):
    from liger_kernel.ops import LigerFusedMoEFunction

    @torch.compile(dynamic=False)
    def route(x_TD, w_router_ED):
        scores_TK, ids_TK = (x_TD @ w_router_ED.t()).topk(layer.top_k, dim=-1)
        return ids_TK.int(), scores_TK.softmax(-1, dtype=torch.float32).to(x_TD.dtype)

    def forward():
        ids_TK, gate_TK = route(layer.x_TD, layer.w_router_ED)
        return LigerFusedMoEFunction.apply(layer.x_TD, layer.w_up_EcFD, layer.w_down_EDF, ids_TK, gate_TK)

    return forward


PEERS = {name: peer for name, package, peer in (("SonicMoE", "sonicmoe", sonic_moe), ("Liger", "liger_kernel", liger))
         if importlib.util.find_spec(package)}
PEER_PRODUCTS = {"SonicMoE": sonic_moe_products} if "SonicMoE" in PEERS else {}
