"""The DeepSeek models of make_golden.py: name -> family, seed, sequence length, config dialect, config."""

# What the DeepSeek models share; the rotated width is small beside the head.
LATENT = dict(
    qk_nope_head_dim=10, qk_rope_head_dim=12, v_head_dim=14, kv_lora_rank=20, n_shared_experts=1, vocab_size=83,
    tie_word_embeddings=False, attention_bias=False, rms_norm_eps=1e-5,
)  # fmt: skip
MODELS = {
    # Compressed queries, YaRN that scales the scores, three groups of experts ranked by their best.
    "deepseek_v2_groups": dict(
        family="deepseek_v2", seed=107, seq=22, dialect="v4",
        config=LATENT | dict(
            hidden_size=36, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=28, intermediate_size=52,
            moe_intermediate_size=16, n_routed_experts=12, num_experts_per_tok=4, n_group=3, topk_group=2,
            topk_method="group_limited_greedy", n_shared_experts=2, norm_topk_prob=False, routed_scaling_factor=4.0,
            num_hidden_layers=3, first_k_dense_replace=1, max_position_embeddings=160,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=500.0, factor=20.0, mscale=0.707, mscale_all_dim=0.707, beta_fast=2,
                beta_slow=0.25, original_max_position_embeddings=8,
            ),
        ),
    ),
    # No dense layer, one expert per token, tied embeddings.
    "deepseek_v2_top1": dict(
        family="deepseek_v2", seed=108, seq=19, dialect="v5",
        config=LATENT | dict(
            hidden_size=40, num_attention_heads=5, num_key_value_heads=5, q_lora_rank=None, intermediate_size=24,
            moe_intermediate_size=12, n_routed_experts=5, num_experts_per_tok=1, n_group=1, topk_group=1,
            topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.5, num_hidden_layers=2,
            first_k_dense_replace=0, tie_word_embeddings=True, rope_theta=3000.0,
        ),
    ),
    # YaRN that scales the table too, three groups ranked by their two best.
    "deepseek_v3_groups": dict(
        family="deepseek_v3", seed=109, seq=21, dialect="v5",
        config=LATENT | dict(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24, intermediate_size=44,
            moe_intermediate_size=20, n_routed_experts=12, num_experts_per_tok=4, n_group=3, topk_group=2,
            norm_topk_prob=True, routed_scaling_factor=2.5, num_hidden_layers=3, first_k_dense_replace=1,
            max_position_embeddings=2560,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=10000.0, factor=40.0, mscale=1.0, mscale_all_dim=0.8, beta_fast=32,
                beta_slow=1, original_max_position_embeddings=64,
            ),
        ),
    ),
    # Uncompressed queries, rotated by halves, gate weights as they are.
    "deepseek_v3_halves": dict(
        family="deepseek_v3", seed=110, seq=18, dialect="v4",
        config=LATENT | dict(
            hidden_size=32, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=None, intermediate_size=24,
            moe_intermediate_size=12, n_routed_experts=16, num_experts_per_tok=5, n_group=4, topk_group=3,
            norm_topk_prob=False, routed_scaling_factor=1.5, num_hidden_layers=2, first_k_dense_replace=0,
            n_shared_experts=2, rope_interleave=False, rope_theta=7000.0,
        ),
    ),
}
