"""Small models of [model] tables, one for each Hugging Face family that a table can fit, and token files to train them
on."""

import pathlib
import random
import struct

TABLES = {
    "mixtral": "kv_heads = 2\nrope_theta = 50000.0",
    "qwen3_moe": 'kv_heads = 2\nhead_dim = 12\nqk_norm = "per_head"\ndense_layers = 1\ndense_width = 40\n'
                 "tie_embeddings = true",
    "olmoe": 'kv_heads = 2\nqk_norm = "full_width"\nrenormalise = false\nclip_qkv = 2.5\nnorm_eps = 1e-5',
    "minimax_m2": 'kv_heads = 2\nqk_norm = "full_width"\nscore = "sigmoid"\nselection_bias = true',
    "glm4_moe": 'kv_heads = 2\nhead_dim = 12\nqk_norm = "per_head"\nscore = "sigmoid"\nselection_bias = true\n'
                "routed_scale = 1.5\nshared_experts = 2\ndense_layers = 1\ndense_width = 40\nexpert_groups = 4\n"
                "kept_groups = 2\ngroup_best = 2",
    "deepseek_v2": 'attention = "latent"\nq_rank = 20\nkv_rank = 24\nnope_dim = 10\nrope_dim = 6\nvalue_dim = 14\n'
                   "renormalise = false\nrouted_scale = 2.0\nshared_experts = 2\ndense_layers = 1\ndense_width = 40\n"
                   "expert_groups = 4\nkept_groups = 2",
    "deepseek_v3": 'attention = "latent"\nkv_rank = 24\nnope_dim = 8\nrope_dim = 8\nvalue_dim = 12\n'
                   'score = "sigmoid"\nselection_bias = true\nrouted_scale = 2.5\nshared_experts = 1\ndense_layers = 1\n'
                   "dense_width = 40\nexpert_groups = 4\nkept_groups = 2\ngroup_best = 2",
}

RUN = """
[model]
vocab = 67
width = 32
layers = 3
heads = 4
experts = 8
top_k = 3
expert_width = 12
init_std = 0.12
{table}

[data]
kind = "megatron"
path = "tokens"

[train]
steps = 4
seq_len = 24
global_batch = 8
micro_batches = 2
lr = 5e-3
schedule = "constant"
dtype = "fp32"
val_batches = 0
threads = 1

[moe]
bias_rate = 0.02
"""


def write_run(family):
    """A run file for the family; its name."""
    path = pathlib.Path(f"{family}.toml")
    path.write_text(RUN.format(table=TABLES[family]))
    return path


def write_tokens(prefix="tokens", count=6000, vocab=64, seed=3):
    """Megatron .bin and .idx of one document of 32-bit ids, with some order in them."""
    random.seed(seed)
    ids = [1]
    while len(ids) < count:
        ids.append((ids[-1] * 5 + random.choice([1, 2, 7])) % vocab)
    pathlib.Path(prefix + ".bin").write_bytes(struct.pack(f"<{count}i", *ids))
    pathlib.Path(prefix + ".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2) + struct.pack("<i", count) + struct.pack("<q", 0)
        + struct.pack("<2q", 0, 1))
