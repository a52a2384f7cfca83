"""MoE layers of other projects' kernels, for bench/moe_layer_torch.py: SonicMoE and Liger Kernel, as published on PyPI.

A peer is a function from a Layer of bench/moe_layer_torch.py to a forward pass without arguments, which calls what the
project documents for training. PEERS lists those that can be imported. Both leave routing in bf16 and write weight
gradients in bf16.

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
