"""`verify` passes in every layout, on the CPU or with MOEWRIGHT_TEST_DEVICE=gpu on the GPUs: a selection that covers ranks, expert-parallel sizes, placements, transports, expert
counts and kinds of model. One commit runs a quarter of them, or all with MOEWRIGHT_TEST_ALL=1. Each run is a layout against one process on the same global batch."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Checks, SOURCE, gpus, in_turn, run  # noqa: E402

DP_FIRST, PADDED, UNEVEN = "mesh.placement=dp_first", "moe.transport=padded", "model.experts=10"
GATHER, TOKENS = "moe.transport=gather_weights", "moe.transport=gather_tokens"
WHOLE_NORM = "model.qk_norm=full_width"
# Of sequences that begin with the same token twice there are many: at a capacity's border one of the two is dropped.
TWINS = "moe.capacity_factor=1.0 model.vocab=16 train.global_batch=128 train.micro_batches=1 train.seed=2"

LATENT = (
    "model.attention=latent model.kv_heads=0 model.head_dim=0 model.qk_norm=none model.q_rank=20 model.kv_rank=12 "
    "model.nope_dim=6 model.rope_dim=4 model.value_dim=5 model.expert_groups=4 model.kept_groups=2 model.group_best=2 "
    "model.score=sigmoid model.selection_bias=true model.routed_scale=2.5"
)

CASES = [  # ranks, overrides of examples/verify.toml
    (2, "mesh.ep=1 moe.transport=in_place verify.steps=2"),
    (2, f"mesh.ep=1 model.top_k=8 {DP_FIRST}"),
    (2, "mesh.ep=2 verify.steps=2"),
    (2, f"mesh.ep=2 {PADDED} model.top_k=1"),
    (2, "mesh.ep=2 moe.row_chunks=3 model.top_k=8 moe.transport=flat"),
    (4, "mesh.ep=1 model.top_k=1"),
    (4, "mesh.ep=2 model.top_k=8"),
    (4, f"mesh.ep=2 {DP_FIRST} {PADDED} verify.steps=2"),
    (4, f"mesh.ep=4 {UNEVEN} model.top_k=1"),
    (4, f"mesh.ep=4 {UNEVEN} {PADDED} moe.row_chunks=3"),
    (8, "mesh.ep=1 moe.transport=in_place"),
    (8, f"mesh.ep=2 {DP_FIRST} {UNEVEN}"),
    (8, "mesh.ep=4 verify.steps=2"),
    (8, f"mesh.ep=4 {DP_FIRST} {PADDED} model.top_k=8 {UNEVEN}"),
    (8, "mesh.ep=8 moe.row_chunks=2"),
    (8, f"mesh.ep=8 {UNEVEN} model.top_k=1"),
    (8, f"mesh.ep=8 {DP_FIRST} {PADDED} model.top_k=8"),
    (2, "mesh.ep=1 moe.transport=flat model.top_k=6"),
    (4, f"mesh.ep=4 {DP_FIRST} model.top_k=5"),
    (8, f"mesh.ep=2 {PADDED} model.top_k=3"),
    # Muon: matrices that tensor parallelism, ZeRO or slices of experts split.
    (4, "train.optimizer=muon mesh.ep=4 verify.steps=2"),
    (4, "train.optimizer=muon mesh.ep=2 mesh.zero=1 train.muon_router=true verify.steps=2"),
    (4, "train.optimizer=muon mesh.tp=2 mesh.ep=4 verify.steps=2"),
    (8, "train.optimizer=muon mesh.tp=4 mesh.ep=2 mesh.zero=1 moe.tp_mode=ted train.muon_nesterov=false"),
    (8, f"train.optimizer=muon mesh.pp=2 mesh.tp=2 mesh.ep=4 mesh.zero=1 {TOKENS} train.muon_scale=original"),
    # Hostile loads: every row on one expert (all ranks but one are without rows), or an expert without any.
    (8, "mesh.ep=8 moe.forced_load=one_expert model.top_k=1"),
    (4, f"mesh.ep=4 moe.forced_load=one_expert model.top_k=1 moe.row_chunks=3 {DP_FIRST}"),
    (4, f"mesh.ep=2 moe.forced_load=one_expert {PADDED}"),
    (4, f"mesh.ep=4 moe.forced_load=skip_expert {UNEVEN}"),
    (8, "mesh.ep=8 moe.forced_load=skip_expert model.experts=8 model.top_k=7"),  # rank 0 is without rows
    (4, "mesh.ep=4 moe.forced_load=hot_rank moe.capacity_factor=1.0"),
    (4, "mesh.ep=2 mesh.zero=1 debug.migrate=true verify.steps=2"),
    (4, f"mesh.tp=2 mesh.ep=4 {GATHER} debug.migrate=true verify.steps=2"),
    (4, "mesh.ep=2 mesh.pp=2 moe.forced_load=idle_experts mesh.shares=3,1"),
    # Kinds of model and of auxiliary terms.
    (4, "mesh.ep=4 model.activation=gelu model.kv_heads=8 moe.aux_scope=model"),
    (4, f"mesh.ep=2 model.activation=relu model.tie_embeddings=true {PADDED} moe.z_loss_coef=0"),
    (4, f"mesh.ep=4 model.score=sigmoid model.selection_bias=true model.routed_scale=2.5 verify.steps=3 {DP_FIRST}"),
    (8, "mesh.ep=4 moe.capacity_factor=1.0 moe.row_chunks=3"),  # drops rows, per sequence
    (4, f"mesh.ep=4 moe.capacity_factor=1.0 moe.aux_scope=model {PADDED}"),
    (4, "mesh.ep=2 model.qk_norm=full_width model.clip_qkv=0.5 moe.z_loss_coef=0.1 verify.ignore_fraction=0.5"),
    (4, "mesh.ep=4 model.shared_experts=0 model.dense_layers=0 model.renormalise=false model.top_k=2"),
    (4, "mesh.ep=4 train.dtype=bf16 model.vocab=256"),
    (2, f"mesh.ep=2 train.dtype=bf16 {PADDED} verify.steps=2"),
    # What is computed again in backward, against a reference that keeps everything.
    (4, "mesh.ep=2 memory.recompute=selective moe.row_chunks=3 verify.steps=2"),
    (4, f"mesh.ep=4 memory.recompute=moe {UNEVEN} {PADDED} moe.row_chunks=3"),
    (4, f"mesh.ep=2 memory.recompute=moe {DP_FIRST} model.activation=gelu moe.aux_scope=model"),
    (8, "mesh.ep=4 memory.recompute=moe moe.forced_load=one_expert model.top_k=1"),
    (2, "mesh.ep=1 memory.recompute=full moe.transport=in_place model.qk_norm=full_width model.clip_qkv=0.5"),
    (4, "mesh.ep=4 memory.recompute=full moe.capacity_factor=1.0 moe.row_chunks=3 verify.steps=2"),
    (4, f"mesh.ep=2 memory.recompute=full {PADDED} model.score=sigmoid model.selection_bias=true moe.capacity_factor=1.0"),
    (4, "mesh.ep=4 memory.recompute=full train.dtype=bf16 model.vocab=256"),
    (4, "mesh.pp=2 mesh.ep=2 memory.recompute=selective mesh.schedule=gpipe moe.aux_scope=model"),
    (4, "mesh.pp=2 mesh.ep=2 memory.recompute=moe mesh.schedule=interleaved train.micro_batches=8"),
    (8, f"mesh.pp=2 mesh.ep=4 memory.recompute=full {PADDED} moe.aux_scope=model"),
    (4, "mesh.pp=4 memory.recompute=full moe.aux_scope=model model.tie_embeddings=true"),
    (4, "mesh.tp=2 mesh.ep=2 memory.recompute=selective model.dense_width=70"),
    (8, "mesh.tp=2 mesh.ep=4 memory.recompute=moe moe.row_chunks=3 mesh.zero=1"),
    (8, f"mesh.tp=4 mesh.pp=2 mesh.ep=4 memory.recompute=full {PADDED} moe.aux_scope=model"),
    # Weights of experts come to the tokens.
    (2, f"mesh.ep=2 {GATHER} moe.row_chunks=3 model.top_k=8 verify.steps=2"),
    (4, f"mesh.ep=4 {GATHER} {UNEVEN} moe.row_chunks=3 moe.weight_slots=3 moe.forced_load=skip_expert"),
    (4, f"mesh.ep=4 {GATHER} memory.recompute=full moe.capacity_factor=1.0 moe.row_chunks=3 moe.weight_slots=0 verify.steps=2"),
    (4, f"mesh.ep=2 {GATHER} memory.recompute=moe model.activation=gelu mesh.zero=1 moe.weight_slots=1 {DP_FIRST}"),
    (4, f"mesh.ep=4 {GATHER} train.dtype=bf16 model.vocab=256 memory.recompute=selective moe.weight_slots=0 verify.steps=2"),
    (8, f"mesh.ep=4 {GATHER} train.dtype=bf16 mesh.zero=1 moe.row_chunks=2 moe.weight_slots=3 {UNEVEN} verify.steps=2"),
    (4, f"mesh.pp=2 mesh.ep=2 {GATHER} mesh.schedule=zb_h1 memory.recompute=moe moe.weight_slots=0 {UNEVEN}"),
    (4, f"mesh.tp=2 mesh.ep=4 {GATHER} moe.row_chunks=2 mesh.zero=1 moe.aux_scope=model"),
    (8, f"mesh.tp=2 mesh.pp=2 mesh.ep=4 {GATHER} mesh.schedule=zb_v mesh.zero=1 moe.row_chunks=3 moe.weight_slots=0 verify.steps=2"),
    (4, "mesh.ep=4 moe.transport=flat*3,gather_weights*4 moe.weight_slots=3 moe.forced_load=one_expert model.top_k=1"),
    (4, f"mesh.tp=2 mesh.ep=2 moe.tp_mode=ted {GATHER} mesh.shares=1,3"),
    (3, f"mesh.ep=3 {GATHER} {UNEVEN} mesh.shares=5,2,1 train.micro_batches=1"),
    # Tokens come to slices of all experts.
    (2, f"mesh.ep=2 {TOKENS} model.top_k=8 mesh.width_shares=1,3 verify.steps=2"),
    (4, f"mesh.ep=4 {TOKENS} {UNEVEN} moe.row_chunks=3 moe.forced_load=skip_expert model.top_k=1"),
    (4, f"mesh.ep=4 {TOKENS} memory.recompute=full moe.capacity_factor=1.0 moe.row_chunks=4 verify.steps=2"),
    (4, f"mesh.ep=2 {TOKENS} memory.recompute=moe model.activation=gelu mesh.zero=1 {DP_FIRST} mesh.width_shares=5,1"),
    (4, f"mesh.ep=4 {TOKENS} train.dtype=bf16 model.vocab=256 memory.recompute=selective moe.row_chunks=2 verify.steps=2"),
    (8, f"mesh.ep=4 {TOKENS} train.dtype=bf16 mesh.zero=1 mesh.width_shares=4,3,2,1 verify.steps=2"),
    (4, f"mesh.ep=2 {TOKENS} train.dtype=bf16 memory.expert_gradients=bf16 mesh.zero=1 verify.steps=2"),
    (4, f"mesh.pp=2 mesh.ep=2 {TOKENS} mesh.schedule=zb_h1 memory.recompute=moe model.shared_experts=0"),
    (4, f"mesh.tp=2 mesh.ep=4 {TOKENS} moe.row_chunks=2 mesh.zero=1 moe.aux_scope=model"),
    (8, f"mesh.tp=2 mesh.pp=2 mesh.ep=4 {TOKENS} mesh.schedule=zb_v mesh.zero=1 moe.row_chunks=3 mesh.width_shares=1,2,3,4"),
    (4, "mesh.ep=4 moe.transport=flat*3,gather_tokens*4 moe.forced_load=one_expert model.top_k=1"),
    (8, f"mesh.tp=8 mesh.ep=8 {TOKENS} train.seq_len=3 train.global_batch=8 train.micro_batches=4"),  # ranks without a token
    (3, f"mesh.ep=3 {TOKENS} {UNEVEN} mesh.shares=5,2,1 mesh.width_shares=1,2,2 train.micro_batches=1"),
    # Ranks with unequal shares of the samples; a transport for each MoE layer.
    (2, "mesh.ep=2 mesh.shares=3,1 data.document_mask=true moe.capacity_factor=1.0"),
    (3, f"mesh.ep=3 mesh.shares=5,2,1 train.micro_batches=1 memory.recompute=full {UNEVEN} moe.aux_scope=model"),
    (4, "mesh.tp=2 mesh.ep=2 moe.tp_mode=ted mesh.shares=1,3 mesh.zero=1"),
    (4, "mesh.ep=4 moe.transport=flat,padded model.layers=3 mesh.shares=1,1,2,1 train.dtype=bf16 model.vocab=256"),
    # Samples of several documents.
    (2, "data.document_mask=true mesh.ep=2 verify.steps=2"),
    (2, "data.document_mask=true mesh.pp=2 mesh.schedule=interleaved mesh.chunks=4 memory.recompute=full"),
    (2, f"data.document_mask=true mesh.tp=2 {LATENT}"),
    (4, f"data.document_mask=true mesh.pp=2 mesh.tp=2 mesh.schedule=zb_v mesh.ep=2 {LATENT}"),
    # Pipelines. The auxiliary loss of Hugging Face couples all layers.
    (2, "mesh.pp=2 verify.steps=2"),
    (2, "mesh.pp=2 mesh.schedule=gpipe mesh.stage_layers=1,7 moe.aux_scope=model"),
    (4, "mesh.pp=4 moe.aux_scope=model model.tie_embeddings=true verify.steps=2"),
    (4, "mesh.pp=4 mesh.schedule=gpipe train.micro_batches=8 model.activation=gelu"),
    (2, "mesh.pp=2 mesh.schedule=interleaved mesh.chunks=4 moe.aux_scope=model"),
    (4, "mesh.pp=2 mesh.ep=2 mesh.schedule=interleaved train.micro_batches=8 model.tie_embeddings=true"),
    (8, f"mesh.pp=2 mesh.ep=2 {DP_FIRST} {UNEVEN} moe.aux_scope=model"),
    (8, "mesh.pp=4 mesh.ep=2 mesh.schedule=interleaved moe.aux_scope=model model.score=sigmoid"),
    (8, "mesh.pp=8 train.micro_batches=8 moe.capacity_factor=1.0"),
    (8, f"mesh.pp=2 mesh.ep=4 {PADDED} moe.forced_load=skip_expert"),
    (4, "mesh.pp=4 train.dtype=bf16 train.micro_batches=2"),
    # Backward in two parts, with every kind of block and of memory.
    (2, "mesh.pp=2 mesh.schedule=zb_h1 model.tie_embeddings=true verify.steps=2"),
    (2, "mesh.pp=2 mesh.schedule=zb_v moe.aux_scope=model verify.steps=2"),
    (4, "mesh.pp=4 mesh.schedule=zb_h1 memory.recompute=selective moe.aux_scope=model train.micro_batches=8"),
    (4, "mesh.pp=4 mesh.schedule=zb_v model.tie_embeddings=true model.activation=gelu moe.aux_scope=model"),
    (4, f"mesh.pp=2 mesh.ep=2 mesh.schedule=zb_v memory.recompute=moe mesh.zero=1 {UNEVEN}"),
    (4, f"mesh.pp=2 mesh.ep=2 mesh.schedule=zb_h1 {PADDED} model.clip_qkv=0.5 model.qk_norm=full_width"),
    (4, "mesh.pp=4 mesh.schedule=zb_v train.micro_batches=1 model.score=sigmoid model.selection_bias=true"),
    (4, "mesh.pp=2 mesh.ep=2 mesh.schedule=zb_h1 train.dtype=bf16 model.vocab=256 verify.steps=2"),
    (8, f"mesh.pp=4 mesh.ep=2 mesh.schedule=zb_h1 moe.forced_load=one_expert model.top_k=1 {DP_FIRST}"),
    (8, "mesh.pp=2 mesh.tp=2 mesh.ep=4 mesh.schedule=zb_h1 mesh.zero=1 model.dense_width=70 moe.capacity_factor=1.0"),
    (8, "mesh.pp=2 mesh.tp=4 mesh.ep=2 mesh.schedule=zb_v moe.row_chunks=3 memory.recompute=selective"),
    (8, "mesh.pp=4 mesh.tp=2 mesh.ep=2 verify.steps=2"),
    (8, f"mesh.pp=4 mesh.tp=2 mesh.ep=1 mesh.zero=1 mesh.schedule=zb_v memory.recompute=moe {UNEVEN}"),
    (8, "mesh.pp=4 mesh.ep=1 mesh.zero=1 mesh.schedule=interleaved mesh.chunks=2 train.micro_batches=4 verify.steps=2"),
    (8, "mesh.pp=4 mesh.tp=2 mesh.schedule=gpipe memory.recompute=full model.tie_embeddings=true mesh.zero=1"),
    (8, "mesh.pp=2 mesh.tp=4 mesh.ep=4 mesh.schedule=interleaved mesh.chunks=2 memory.recompute=moe train.micro_batches=4"),
    (8, "mesh.pp=2 mesh.tp=2 mesh.ep=2 moe.tp_mode=ted mesh.zero=1 mesh.schedule=zb_v verify.steps=2"),
    (8, "mesh.pp=4 mesh.tp=2 moe.tp_mode=ted mesh.schedule=interleaved mesh.chunks=2 train.micro_batches=4 memory.recompute=full"),
    (4, "mesh.pp=2 mesh.tp=2 moe.tp_mode=ted mesh.schedule=gpipe memory.recompute=moe model.tie_embeddings=true"),
    (8, "mesh.pp=2 mesh.tp=2 mesh.ep=4 mesh.zero=1 memory.recompute=full model.score=sigmoid model.selection_bias=true"),
    # Latent attention as DeepSeek-V3 and V2 have it, groups of experts, the auxiliary loss of each sequence.
    (4, f"mesh.ep=4 {LATENT} moe.aux_scope=sequence verify.steps=2"),
    (4, f"mesh.ep=2 mesh.pp=2 {LATENT} memory.recompute=full mesh.zero=1"),
    (4, f"mesh.tp=4 mesh.ep=2 {LATENT} memory.recompute=moe"),
    (4, f"mesh.tp=2 mesh.ep=4 {LATENT} moe.aux_scope=sequence model.q_rank=0 model.score=softmax model.selection_bias=false"),
    (2, f"mesh.pp=2 mesh.schedule=zb_v {LATENT} moe.aux_scope=sequence"),
    (4, f"mesh.pp=2 mesh.tp=2 mesh.schedule=zb_h1 {LATENT} model.q_rank=0"),
    (4, f"mesh.ep=2 {LATENT} train.dtype=bf16 model.vocab=256 memory.recompute=full"),
    # Tensor parallelism with sequence-sharded MoE blocks: shared key/value heads, token counts that TP does not divide
    # and ranks without a token, experts over TP x DP in either order.
    (2, "mesh.tp=2 verify.steps=2"),
    (4, "mesh.tp=4 mesh.ep=2 moe.aux_scope=model"),
    (8, f"mesh.tp=2 mesh.ep=4 {DP_FIRST} {UNEVEN} verify.steps=2"),
    (8, "mesh.tp=8 mesh.ep=8 train.seq_len=3 train.global_batch=8 train.micro_batches=4"),
    (8, "mesh.tp=4 mesh.ep=8 model.kv_heads=4 model.activation=gelu model.dense_width=70 moe.row_chunks=3"),
    (4, f"mesh.tp=2 mesh.ep=2 {PADDED} model.tie_embeddings=true moe.capacity_factor=1.0"),
    # Documents of one token, whose gradients of queries and keys are rounding noise.
    (2, "mesh.tp=2 mesh.ep=2 data.document_mask=true train.seq_len=3 model.qk_norm=full_width model.layers=4"),
    (4, "mesh.tp=4 mesh.ep=4 data.document_mask=true train.seq_len=4 model.score=sigmoid model.kv_heads=1"),
    # Rounding decides what is dropped, or chosen, and later layers follow.
    (2, f"mesh.tp=2 {TWINS} verify.steps=2"),
    (2, "mesh.tp=2 model.experts=24 moe.aux_scope=sequence model.renormalise=false moe.aux_loss_coef=0"),
    (4, "mesh.tp=2 mesh.pp=2 mesh.ep=2 moe.aux_scope=model model.tie_embeddings=true"),
    (8, "mesh.tp=2 mesh.pp=2 mesh.ep=4 mesh.zero=1 mesh.schedule=interleaved model.clip_qkv=0.5"),
    (8, "mesh.tp=2 mesh.ep=4 mesh.zero=1 train.dtype=bf16 verify.steps=2"),
    # Query and key norms over the heads of all ranks, which have key/value heads of their own or share them.
    (2, f"mesh.tp=2 {WHOLE_NORM} model.clip_qkv=0.5 verify.steps=2"),
    (3, f"mesh.tp=3 {WHOLE_NORM} model.heads=6 model.kv_heads=1 data.document_mask=true"),
    (4, f"mesh.tp=4 mesh.ep=2 {WHOLE_NORM} memory.recompute=full mesh.zero=1"),
    (8, f"mesh.tp=2 mesh.pp=2 mesh.ep=4 {WHOLE_NORM} mesh.schedule=zb_h1 mesh.zero=1 model.kv_heads=8"),
    (4, f"mesh.tp=4 {WHOLE_NORM} model.kv_heads=4 train.dtype=bf16 model.vocab=256"),
    # Heads that TP does not divide: of their own keys, of keys that ranks share, of latents.
    (4, f"mesh.tp=4 {WHOLE_NORM} model.heads=6 model.kv_heads=6 mesh.zero=1"),
    (8, f"mesh.tp=4 mesh.pp=2 {WHOLE_NORM} model.heads=6 model.kv_heads=2 memory.recompute=full mesh.ep=2"),
    (3, "mesh.tp=3 model.heads=8 model.kv_heads=4 mesh.ep=3 model.experts=12 train.dtype=bf16 verify.steps=2"),
    (4, f"mesh.tp=4 {LATENT} model.heads=6 mesh.zero=1"),
    # Embedding and head cut by a vocabulary that TP does not divide, or that leaves ranks without a row.
    (4, "mesh.tp=4 model.vocab=29 verify.steps=2"),
    (4, "mesh.tp=4 model.vocab=30 model.tie_embeddings=true verify.ignore_fraction=0.5 verify.steps=2"),
    (8, "mesh.tp=8 model.vocab=5 mesh.ep=4"),
    (8, "mesh.tp=4 model.vocab=3 model.tie_embeddings=true mesh.zero=1"),
    (4, "mesh.tp=2 mesh.pp=2 model.vocab=29 model.tie_embeddings=true mesh.schedule=zb_v"),
    (8, "mesh.tp=4 mesh.pp=2 model.vocab=3 model.tie_embeddings=true mesh.schedule=interleaved"),
    (4, "mesh.tp=4 model.vocab=4100 model.tie_embeddings=true"),  # parts of whole 64s, but for the last
    (8, "mesh.tp=4 model.vocab=3 train.dtype=bf16 mesh.zero=1 verify.steps=2"),
    (4, "mesh.tp=4 model.vocab=150 model.tie_embeddings=true train.dtype=bf16 verify.steps=2"),
    # Several chunks of logits, the last of fewer rows.
    (2, "mesh.tp=2 model.vocab=131071 model.layers=2 train.seq_len=9 train.global_batch=10 train.micro_batches=1"),
    # Tensor-sharded experts, for comparison: every rank of TP routes all tokens of its data-parallel rank.
    (2, "mesh.tp=2 moe.tp_mode=ted verify.steps=2"),
    (4, "mesh.tp=4 moe.tp_mode=ted memory.recompute=full model.score=sigmoid model.selection_bias=true"),
    (8, f"mesh.tp=2 mesh.ep=2 moe.tp_mode=ted mesh.zero=1 {DP_FIRST} {UNEVEN} model.expert_width=17 verify.steps=2"),
    (8, f"mesh.tp=2 mesh.ep=4 moe.tp_mode=ted {PADDED} moe.capacity_factor=1.0 moe.aux_scope=model"),
    (8, "mesh.tp=2 mesh.pp=2 mesh.ep=2 moe.tp_mode=ted mesh.schedule=zb_h1 moe.row_chunks=3"),
    (4, "mesh.tp=2 mesh.ep=2 moe.tp_mode=ted train.dtype=bf16 mesh.zero=1 memory.recompute=moe verify.steps=2"),
    (4, "mesh.tp=2 mesh.ep=2 moe.tp_mode=ted moe.forced_load=one_expert model.top_k=1 model.shared_experts=0"),
    (4, "mesh.tp=4 moe.tp_mode=ted model.vocab=29 model.tie_embeddings=true mesh.zero=1"),
    # Optimizer states cut over replicas: of all weights, of experts with two replicas and more, of none of the experts.
    (2, "mesh.ep=1 mesh.zero=1 verify.steps=2"),
    (4, "mesh.ep=2 mesh.zero=1 verify.steps=2"),
    (4, f"mesh.ep=2 mesh.zero=1 {DP_FIRST} {PADDED} model.tie_embeddings=true"),
    (8, f"mesh.ep=4 mesh.zero=1 {UNEVEN}"),
    (4, "mesh.ep=4 mesh.zero=1 model.score=sigmoid model.selection_bias=true"),
    (4, "mesh.ep=1 mesh.zero=1 train.dtype=bf16 verify.steps=2"),
    (8, f"mesh.ep=4 mesh.zero=1 train.dtype=bf16 {UNEVEN} model.tie_embeddings=true"),
    (4, "mesh.ep=2 train.dtype=bf16 memory.expert_gradients=bf16 verify.steps=2"),
    (4, "mesh.ep=1 mesh.zero=1 mesh.pp=2 train.dtype=bf16 memory.expert_gradients=bf16 verify.steps=2"),
    (4, "mesh.ep=2 mesh.zero=1 mesh.tp=2 memory.moments=bf16 verify.steps=2"),
    (4, "mesh.ep=2 mesh.tp=2 train.dtype=bf16 memory.logits=bf16 model.vocab=29 verify.steps=2"),
]

if gpus():
    CASES += [  # optimizer states in the host's memory
        (2, "mesh.ep=2 memory.offload=optimizer verify.steps=2"),
        (2, "mesh.ep=1 mesh.zero=1 memory.offload=optimizer train.dtype=bf16 verify.steps=2"),
    ]

checks = Checks()
for ranks, overrides in in_turn(CASES, 4):
    if gpus() and ranks > max(2, gpus()):  # two ranks may share one GPU
        print(f"skipped: -np {ranks} {overrides}")
        continue
    keys = overrides.split()
    steps = [] if any(key.startswith("verify.steps") for key in keys) else ["verify.steps=1"]
    result = run(ranks, "verify", SOURCE / "examples" / "verify.toml", *keys, *steps)
    print(f"{result.seconds:5.1f} s  -np {ranks} {overrides}", flush=True)
    checks.expect(result.code == 0 and "verify: passed" in result.output,
                  f"-np {ranks} {overrides}: exit {result.code}", result.output)
    if TWINS in overrides:
        checks.expect("redone with the reference's routing" in result.output,
                      f"-np {ranks} {overrides}: rounding decided nothing", result.output)
    if "capacity_factor" in overrides:
        checks.expect(re.search(r"equal, [1-9]\d* dropped", result.output),
                      f"-np {ranks} {overrides}: no drops to compare", result.output)
if gpus():
    result = run(1, "verify", SOURCE / "examples" / "verify.toml", "mesh.ep=1", "debug.processors=7")
    checks.expect(result.code == 3 and "debug.processors: 7 of the " in result.output,
                  f"7 processors: exit {result.code}, but no driver sets so few apart", result.output)
    ran = [ranks for ranks, _ in CASES if ranks <= max(2, gpus())]
    alone = sum(1 < ranks <= gpus() for ranks in ran)
    print(f"{gpus()} GPUs: {len(ran)} of {len(CASES)} layouts, {alone} of them with a GPU for each of several ranks")
checks.finish()
