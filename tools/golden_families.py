"""Models of make_golden.py that have what the first ones of their families lack: name -> family, seed, sequence length,
config dialect, config."""

MODELS = {
    # Query and key norm, biases, a rotated part of 6 of 20 elements, groups of experts, all layers MoE, tied embeddings.
    "glm4_groups": dict(
        family="glm4_moe", seed=111, seq=19, dialect="v5",
        config=dict(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=20, intermediate_size=44,
            moe_intermediate_size=12, n_routed_experts=12, n_shared_experts=2, num_experts_per_tok=4, n_group=3,
            topk_group=2, norm_topk_prob=False, routed_scaling_factor=1.5, num_hidden_layers=2, first_k_dense_replace=0,
            attention_bias=True, use_qk_norm=True, rms_norm_eps=1e-4, vocab_size=83, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=3000.0, partial_rotary_factor=0.3),
        ),
    ),
    # Biases of all projections, the output's too.
    "dots1_bias": dict(
        family="dots1", seed=112, seq=21, dialect="v4",
        config=dict(
            hidden_size=36, num_attention_heads=3, num_key_value_heads=1, head_dim=12, intermediate_size=52,
            moe_intermediate_size=16, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=1,
            topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, num_hidden_layers=3, first_k_dense_replace=1,
            attention_bias=True, sliding_window=None, rms_norm_eps=1e-5, vocab_size=79, tie_word_embeddings=False,
            rope_theta=20000.0,
        ),
    ),
    # Grouped heads of 12 elements of which 6 rotate, one key/value head, tied embeddings.
    "minimax_m2_v4": dict(
        family="minimax_m2", seed=113, seq=20, dialect="v4",
        config=dict(
            hidden_size=36, num_attention_heads=3, num_key_value_heads=1, head_dim=12, rotary_dim=6,
            intermediate_size=16, num_local_experts=10, num_experts_per_tok=4, num_hidden_layers=2, rms_norm_eps=1e-4,
            vocab_size=77, tie_word_embeddings=True, router_aux_loss_coef=0.05,
            rope_parameters=dict(rope_type="default", rope_theta=3000.0, partial_rotary_factor=0.5),
        ),
    ),
    # Windows of 5 tokens on layers 0 and 2 of 5 (below layer 3), a dense layer, renormalised weights.
    "qwen2_window": dict(
        family="qwen2_moe", seed=114, seq=23, dialect="v5",
        config=dict(
            hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=44,
            moe_intermediate_size=12, shared_expert_intermediate_size=20, num_experts=9, num_experts_per_tok=3,
            norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1], num_hidden_layers=5,
            use_sliding_window=True, sliding_window=5, max_window_layers=3, rms_norm_eps=1e-5, vocab_size=81,
            tie_word_embeddings=False, router_aux_loss_coef=0.04, rope_theta=20000.0,
        ),
    ),
    # Windows from layer 1 on, longer than some sequences' half.
    "dots1_window": dict(
        family="dots1", seed=115, seq=18, dialect="v5",
        config=dict(
            hidden_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=12, intermediate_size=28,
            moe_intermediate_size=12, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, n_group=1,
            topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5, num_hidden_layers=3, first_k_dense_replace=0,
            attention_bias=False, sliding_window=11, max_window_layers=1, rms_norm_eps=1e-5, vocab_size=71,
            tie_word_embeddings=True, rope_theta=10000.0,
        ),
    ),
    # Every second layer of a range is MoE; no shared experts; an output head of its own.
    "ernie_range": dict(
        family="ernie4_5_moe", seed=116, seq=21, dialect="v5",
        config=dict(
            hidden_size=40, num_attention_heads=5, num_key_value_heads=1, head_dim=8, intermediate_size=48,
            moe_intermediate_size=20, moe_num_experts=7, moe_k=2, moe_num_shared_experts=0, moe_layer_start_index=1,
            moe_layer_end_index=4, moe_layer_interval=2, moe_norm_min=1e-12, num_hidden_layers=6, use_bias=False,
            rms_norm_eps=1e-5, vocab_size=75, tie_word_embeddings=False, router_aux_loss_coef=0.05, rope_theta=5000.0,
        ),
    ),
    # Another number of experts in each layer, biases of all projections, an output head of its own.
    "hunyuan_list": dict(
        family="hunyuan_v1_moe", seed=117, seq=22, dialect="v5",
        config=dict(
            hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=20,
            num_experts=8, moe_topk=[2, 4, 3], num_hidden_layers=3, attention_bias=True, rms_norm_eps=1e-5,
            vocab_size=85, tie_word_embeddings=False, rope_theta=2000.0,
        ),
    ),
    # YaRN with grouped heads: the table of sines is scaled, the scores are not.
    "qwen3_yarn": dict(
        family="qwen3_moe", seed=118, seq=20, dialect="v4",
        config=dict(
            hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=40,
            moe_intermediate_size=12, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1,
            mlp_only_layers=[], num_hidden_layers=2, tie_word_embeddings=False, attention_bias=False,
            use_sliding_window=False, rms_norm_eps=1e-6, vocab_size=69, router_aux_loss_coef=0.03,
            max_position_embeddings=128,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=1000.0, factor=8.0, beta_fast=4, beta_slow=0.5,
                original_max_position_embeddings=16,
            ),
        ),
    ),
    # Windows on other layers than the class has by itself, no biases of attention, tied embeddings, plain rotary
    # embedding.
    "gpt_oss_tied": dict(
        family="gpt_oss", seed=119, seq=21, dialect="v5",
        config=dict(
            hidden_size=40, num_attention_heads=6, num_key_value_heads=3, head_dim=12, intermediate_size=20,
            num_local_experts=7, num_experts_per_tok=2, num_hidden_layers=3, sliding_window=4,
            layer_types=["full_attention", "sliding_attention", "sliding_attention"], attention_bias=False,
            rms_norm_eps=1e-6, vocab_size=77, tie_word_embeddings=True, router_aux_loss_coef=0.05, rope_theta=3000.0,
        ),
    ),
    # Latent attention, heads of 12 + 8 elements and values of 20, two groups of experts, dense layers as first_k_dense_replace
    # and the class say.
    "glm4_lite": dict(
        family="glm4_moe_lite", seed=120, seq=19, dialect="v4",
        config=dict(
            hidden_size=40, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=24, kv_lora_rank=16,
            qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=20, intermediate_size=44, moe_intermediate_size=12,
            n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=2, topk_group=1, norm_topk_prob=True,
            routed_scaling_factor=1.8, num_hidden_layers=3, attention_bias=False, rms_norm_eps=1e-5, vocab_size=79,
            tie_word_embeddings=False, rope_theta=3000.0,
        ),
    ),
    # A dense layer between two MoE layers, queries without a low rank, rotated halves, tied embeddings.
    "glm4_lite_types": dict(
        family="glm4_moe_lite", seed=121, seq=18, dialect="v5",
        config=dict(
            hidden_size=36, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=12,
            qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10, rope_interleave=False, intermediate_size=40,
            moe_intermediate_size=16, n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=2, n_group=1,
            topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0, num_hidden_layers=3,
            mlp_layer_types=["sparse", "dense", "sparse"], attention_bias=False, rms_norm_eps=1e-6, vocab_size=73,
            tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=20000.0),
        ),
    ),
    # Biases of queries, keys and values, YaRN, groups of experts.
    "solar_open": dict(
        family="solar_open", seed=122, seq=20, dialect="v5",
        config=dict(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=12, moe_intermediate_size=12,
            n_routed_experts=9, n_shared_experts=1, num_experts_per_tok=3, n_group=3, topk_group=2, norm_topk_prob=True,
            routed_scaling_factor=1.5, num_hidden_layers=2, attention_bias=True, rms_norm_eps=1e-5, vocab_size=81,
            tie_word_embeddings=False, max_position_embeddings=128,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=2000.0, factor=4.0, original_max_position_embeddings=32,
                partial_rotary_factor=1.0,
            ),
        ),
    ),
    # One dense layer, as the class has by itself; no biases.
    "hy_v3": dict(
        family="hy_v3", seed=123, seq=21, dialect="v4",
        config=dict(
            hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=44,
            moe_intermediate_size=12, num_experts=7, num_shared_experts=1, num_experts_per_tok=3,
            router_scaling_factor=2.5, num_hidden_layers=3, attention_bias=False, rms_norm_eps=1e-5, vocab_size=77,
            tie_word_embeddings=False, rope_theta=5000.0,
        ),
    ),
    # A dense layer behind a MoE layer, biases of all projections, two shared experts, tied embeddings.
    "hy_v3_types": dict(
        family="hy_v3", seed=124, seq=19, dialect="v5",
        config=dict(
            hidden_size=36, num_attention_heads=3, num_key_value_heads=1, head_dim=8, intermediate_size=28,
            moe_intermediate_size=20, num_experts=6, num_shared_experts=2, num_experts_per_tok=2,
            router_scaling_factor=1.5, num_hidden_layers=2, mlp_layer_types=["sparse", "dense"], attention_bias=True,
            rms_norm_eps=1e-6, vocab_size=71, tie_word_embeddings=True, rope_theta=2000.0,
        ),
    ),
}
