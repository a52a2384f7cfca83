#include "config/model_spec.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "config/hf_config.h"
#include "config/param_table.h"
#include "config/presets.h"
#include "config/run_spec.h"
#include "layout/helpers.h"
#include "layout/shards.h"

namespace mw::test {
namespace {

ModelSpec preset_model(const std::string& name) {
  NativeModel native;
  native.preset = name;
  return build_native_model(native);
}

TEST(Presets, ParameterCountsAreThoseOfThePapers) {
  const nlohmann::json exact = nlohmann::json::parse(read_config("exact_parameters")).at("exact_parameters");
  int papers = 0;
  for (const std::string& name : preset_names()) {
    const ModelSpec model = preset_model(name);
    if (model.family != "native") continue;
    ++papers;
    // Their formula, L * (2*E*D*F + 4*D*D), leaves out the embedding, the head, norms and routers.
    int64_t count = 0;
    for (const ParamRow& row : param_table(model))
      if (row.layer >= 0 && row.role == ParamRole::matrix) count += row.numel();
    EXPECT_EQ(count, exact.at(name).get<int64_t>()) << name;
    const LayerSpec& layer = model.layers.back();
    EXPECT_EQ(count, model.layer_count() *
                         (2 * layer.moe.experts * model.width * layer.moe.width + 4 * model.width * model.width));
  }
  EXPECT_EQ(papers, 7);
}

TEST(Presets, PublicModelsEqualTheirConfigs) {
  const nlohmann::json exact = nlohmann::json::parse(read_config("exact_parameters")).at("exact_parameters");
  for (const char* name :
       {"mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "olmoe-1b-7b", "deepseek-v2-lite", "deepseek-v3", "kimi-k2",
        "dots-llm1", "glm-4.5-air", "glm-4.5", "glm-4.7-flash", "minimax-m2", "qwen1.5-moe-a2.7b", "qwen2-57b-a14b",
        "ernie-4.5-21b-a3b", "hunyuan-a13b", "gpt-oss-20b", "gpt-oss-120b"}) {
    const ModelSpec model = preset_model(name);
    ModelSpec expected = parse_hf_config(read_config(name), name);
    expected.mtp_layers = 0;  // a preset has no folder that could hold such layers
    EXPECT_TRUE(model == expected) << name;
    EXPECT_EQ(parameter_count(model), exact.at(name).get<int64_t>()) << name;
  }
}

TEST(Presets, AnUnknownNameGetsTheListOfAll) {
  EXPECT_TRUE(contains(error_of([] { preset_model("x-moe-smal"); }, Exit::config), "did you mean \"x-moe-small\""));
  const auto refused = refusal_of([] { parse_run_text("[model]\npreset = \"mixtral-8x7\"\n", "run.toml", {}); });
  ASSERT_TRUE(refused.has_value());
  for (const std::string& name : preset_names()) EXPECT_TRUE(contains(refused->hint(), name)) << name;
}

// One line for each row whose name starts with `prefix`.
std::string list_rows(const ModelSpec& model, const std::string& prefix = "") {
  std::string text;
  for (const ParamRow& row : param_table(model)) {
    if (row.name.rfind(prefix, 0) != 0) continue;
    text += row.name + " [";
    for (size_t i = 0; i < row.shape.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", row.shape[i]);
    text += fmt::format("]{}{}{}\n", row.expert ? " expert" : "", row.trained ? "" : " fixed",
                        row.decay ? "" : " no decay");
  }
  return text;
}

TEST(ParamTable, ListsEveryTensorOfASmallModel) {
  NativeModel n = small_native();
  n.qk_norm = QkNorm::per_head;
  n.score = ScoreFunction::sigmoid;
  n.selection_bias = true;
  EXPECT_EQ(list_rows(build_native_model(n)),
            "embed [100, 48]\n"
            "layers.0.attn_norm [48] no decay\n"
            "layers.0.attn.wq [40, 48]\n"
            "layers.0.attn.wk [20, 48]\n"
            "layers.0.attn.wv [20, 48]\n"
            "layers.0.attn.wo [48, 40]\n"
            "layers.0.attn.q_norm [10] no decay\n"
            "layers.0.attn.k_norm [10] no decay\n"
            "layers.0.ffn_norm [48] no decay\n"
            "layers.0.ffn.w_up [2, 70, 48]\n"
            "layers.0.ffn.w_down [48, 70]\n"
            "layers.1.attn_norm [48] no decay\n"
            "layers.1.attn.wq [40, 48]\n"
            "layers.1.attn.wk [20, 48]\n"
            "layers.1.attn.wv [20, 48]\n"
            "layers.1.attn.wo [48, 40]\n"
            "layers.1.attn.q_norm [10] no decay\n"
            "layers.1.attn.k_norm [10] no decay\n"
            "layers.1.ffn_norm [48] no decay\n"
            "layers.1.moe.router [6, 48]\n"
            "layers.1.moe.bias [6] fixed no decay\n"
            "layers.1.moe.w_up [6, 2, 20, 48] expert\n"
            "layers.1.moe.w_down [6, 48, 20] expert\n"
            "layers.1.moe.shared.w_up [2, 40, 48]\n"
            "layers.1.moe.shared.w_down [48, 40]\n"
            "final_norm [48] no decay\n"
            "head [100, 48]\n");
}

TEST(ParamTable, ListsLatentAttention) {
  NativeModel n = small_latent_native();
  EXPECT_EQ(list_rows(build_native_model(n), "layers.1.attn"),
            "layers.1.attn_norm [48] no decay\n"
            "layers.1.attn.wq_a [28, 48]\n"
            "layers.1.attn.q_norm [28] no decay\n"
            "layers.1.attn.wq_b [56, 28]\n"
            "layers.1.attn.wkv_a [30, 48]\n"
            "layers.1.attn.kv_norm [24] no decay\n"
            "layers.1.attn.wkv_b [60, 24]\n"
            "layers.1.attn.wo [48, 28]\n");
  n.q_rank = 0;
  EXPECT_EQ(list_rows(build_native_model(n), "layers.1.attn.wq"), "layers.1.attn.wq [56, 48]\n");
}

TEST(ParamTable, CountsAddUp) {
  const ModelSpec model = build_native_model(small_native());
  const int64_t attention = (40 + 20 + 20 + 40) * 48, norms = 2 * 48;
  const int64_t dense = 3 * 70 * 48, shared = 3 * 40 * 48, expert = 3 * 20 * 48, router = 6 * 48;
  const int64_t outside = 2 * 100 * 48 + 48;
  EXPECT_EQ(parameter_count(model), outside + 2 * (attention + norms) + dense + router + shared + 6 * expert);
  EXPECT_EQ(active_parameter_count(model), outside + 2 * (attention + norms) + dense + router + shared + 3 * expert);
  NativeModel tied = small_native();
  tied.tie_embeddings = true;
  EXPECT_EQ(parameter_count(build_native_model(tied)), parameter_count(model) - 100 * 48);
  NativeModel two = small_native();
  two.activation = Activation::relu;  // two matrices
  EXPECT_EQ(parameter_count(build_native_model(two)), parameter_count(model) - (dense + shared + 6 * expert) / 3);
}

TEST(ParamTable, MatricesAsProductsSeeThem) {
  const ModelSpec model = build_native_model(small_native());
  const Mesh mesh = make_mesh({}, 1);
  const std::vector<ExpertPlacement> placements(model.layers.size(), make_block_placement(6, 1));
  for (const ParamRow& row : param_table(model)) {
    if (row.role != ParamRole::matrix) continue;
    const LocalParam local = local_param(row, model, placements, mesh, coords_of(mesh, 0));
    EXPECT_EQ(local.matrices, row.expert ? row.shape[0] : 1) << row.name;
    EXPECT_EQ(local.matrices * local.n * local.k, row.numel()) << row.name;
    EXPECT_GT(row.init_std, 0) << row.name;
    if (row.name == "layers.1.moe.w_up") {
      EXPECT_EQ(local.n, 40);  // gate and up folded
      EXPECT_EQ(local.k, 48);
    }
  }
  std::set<std::string> names;
  for (const ParamRow& row : param_table(build_native_model(small_native())))
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
}

TEST(Flops, ClosedFormOfASmallModel) {
  const ModelSpec model = build_native_model(small_native());
  constexpr double kSeq = 33;
  // Two per multiply-add: projections, then scores and values over (S + 1) / 2 visible positions on average.
  const double attention = 2.0 * 48 * (40 + 20 + 20 + 40) + 2.0 * 2.0 * ((kSeq + 1) / 2) * 40;
  const double dense = 2.0 * 3 * 48 * 70;
  const double moe = 2.0 * 3 * 48 * (3 * 20 + 40) + 2.0 * 48 * 6;
  const double head = 2.0 * 48 * 100;
  EXPECT_DOUBLE_EQ(forward_flops_per_token(model, 33), 2 * attention + dense + moe + head);

  NativeModel gelu = small_native();
  gelu.activation = Activation::gelu;
  EXPECT_DOUBLE_EQ(forward_flops_per_token(build_native_model(gelu), 33),
                   2 * attention + dense * 2 / 3 + 2.0 * 2 * 48 * (3 * 20 + 40) + 2.0 * 48 * 6 + head);
  // One position sees itself alone: the products are twice the active matrices.
  double matrices = 0;
  for (const ParamRow& row : param_table(model))
    if (row.role == ParamRole::matrix || row.role == ParamRole::router)
      matrices += static_cast<double>(row.numel()) * (row.expert ? 3.0 / 6.0 : 1.0);
  EXPECT_DOUBLE_EQ(forward_flops_per_token(model, 1), 2 * matrices + 2 * (2.0 * 2.0 * 40));
}

TEST(Flops, ClosedFormOfLatentAttention) {
  NativeModel n = small_latent_native();
  n.layers = n.dense_layers = 1;
  constexpr double kSeq = 33;
  const double head = 2.0 * 48 * 100, dense = 2.0 * 3 * 48 * 70;
  // Four heads of 8 + 6 and values of 7 over (S + 1) / 2 visible positions on average.
  const double scores = 2.0 * ((kSeq + 1) / 2) * 4 * (14 + 7);
  const double rest = 48 * (24 + 6) + 24 * 4 * (8 + 7) + 4 * 7 * 48;
  EXPECT_DOUBLE_EQ(forward_flops_per_token(build_native_model(n), 33),
                   head + dense + scores + 2.0 * (48 * 28 + 28 * 56 + rest));
  n.q_rank = 0;
  EXPECT_DOUBLE_EQ(forward_flops_per_token(build_native_model(n), 33), head + dense + scores + 2.0 * (48 * 56 + rest));
}

TEST(NativeModelTable, DefaultsFollow) {
  NativeModel n;
  n.width = 64;
  n.heads = 4;
  n.dense_layers = 1;
  const ModelSpec model = build_native_model(n);
  EXPECT_EQ(model.layers[0].attention.kv_heads, 4);
  EXPECT_EQ(model.layers[0].attention.head_dim, 16);
  EXPECT_EQ(model.layers[0].dense_width, 256);
  EXPECT_EQ(model.layers[0].moe, MoeSpec{});
  EXPECT_EQ(model.moe_layer_count(), 3);
  EXPECT_TRUE(contains(summary(model), "4 layers")) << summary(model);
  EXPECT_TRUE(contains(summary(model), "3 MoE layers of 8 experts")) << summary(model);
}

TEST(NativeModelTable, HintsNameTheKeyAndAValueThatWorks) {
  const auto hint_of = [](auto change) {
    NativeModel n = small_native();
    change(n);
    const auto error = refusal_of([&] { build_native_model(n); });
    return error ? error->hint() : "accepted";
  };
  EXPECT_EQ(hint_of([](NativeModel& n) { n.kv_heads = 3; }), "set model.kv_heads to 2");
  EXPECT_EQ(hint_of([](NativeModel& n) { n.top_k = 7; }), "set model.top_k to at most 6");
  EXPECT_EQ(hint_of([](NativeModel& n) { n.head_dim = 9; }), "set model.head_dim to an even number, such as 10");
  EXPECT_EQ(hint_of([](NativeModel& n) { n.expert_groups = 4; }), "set model.expert_groups to 3");
  EXPECT_EQ(hint_of([](NativeModel& n) { n.expert_groups = 3; }),
            "set model.kept_groups to at least 2, or model.top_k to at most 2");
  EXPECT_EQ(hint_of([](NativeModel& n) { n.expert_groups = 3, n.kept_groups = 2, n.group_best = 3; }),
            "set model.expert_groups to 2");
}

TEST(NativeModelTable, RefusesWhatDoesNotFit) {
  const auto refuse = [](auto change, const char* why) {
    NativeModel n = small_native();
    change(n);
    const auto error = refusal_of([&] { build_native_model(n); });
    ASSERT_TRUE(error) << why;
    EXPECT_EQ(error->code(), Exit::config);
    EXPECT_TRUE(contains(error->what(), why)) << error->what();
  };
  refuse([](NativeModel& n) { n.kv_heads = 3; }, "heads = 4 is not a multiple of kv_heads = 3");
  refuse([](NativeModel& n) { n.kv_heads = 8; }, "kv_heads = 8, expected 1 to 4");
  refuse([](NativeModel& n) { n.head_dim = 9; }, "odd");
  refuse([](NativeModel& n) { n.head_dim = 0, n.heads = 5; }, "not a multiple of heads = 5");
  refuse([](NativeModel& n) { n.top_k = 7; }, "top_k = 7, expected 1 to 6");
  refuse([](NativeModel& n) { n.top_k = 0; }, "top_k = 0, expected 1 to 6");
  refuse([](NativeModel& n) { n.dense_layers = 3; }, "dense_layers");
  refuse([](NativeModel& n) { n.selection_bias = true; }, "sigmoid");
  refuse([](NativeModel& n) { n.rope_theta = std::numeric_limits<double>::quiet_NaN(); }, "rope_theta");
  refuse([](NativeModel& n) { n.norm_eps = std::numeric_limits<double>::infinity(); }, "norm_eps");
  refuse([](NativeModel& n) { n.vocab = int64_t{1} << 62; }, "vocab = ");
  refuse([](NativeModel& n) { n.width = n.vocab = 1 << 24, n.expert_width = 1 << 24, n.experts = 1 << 16; }, "");
  refuse([](NativeModel& n) { n.layers = 10000, n.experts = 1 << 16, n.width = 1 << 14, n.expert_width = 1 << 16; },
         "2^48");
  refuse([](NativeModel& n) { n.expert_groups = 4; }, "experts = 6 is not a multiple of expert_groups = 4");
  refuse([](NativeModel& n) { n.expert_groups = 3, n.kept_groups = 4; }, "kept_groups = 4, expected 1 to 3");
  refuse([](NativeModel& n) { n.expert_groups = 3; }, "kept_groups = 1 of 2 experts each are too few for top_k = 3");
  refuse([](NativeModel& n) { n.expert_groups = 3, n.kept_groups = 2, n.group_best = 3; },
         "the 3 best experts rank a group, but expert_groups = 3 leaves 2");
  refuse([](NativeModel& n) { n.attention = AttentionKind::latent; }, "head_dim");
  refuse([](NativeModel& n) { n = small_latent_native(), n.kv_heads = 2; },
         "latent attention does not use model.kv_heads");
  refuse([](NativeModel& n) { n = small_latent_native(), n.qk_norm = QkNorm::per_head; },
         "latent attention does not use model.qk_norm");
  refuse([](NativeModel& n) { n = small_latent_native(), n.rope_dim = 7; }, "odd");
  refuse([](NativeModel& n) { n = small_latent_native(), n.kv_rank = int64_t{1} << 62; }, "rank");
  refuse([](NativeModel& n) { n.preset = "x-moe-small"; }, "other keys of [model]");
  refuse([](NativeModel& n) { n.layers = std::numeric_limits<int64_t>::max(); }, "layers");
  refuse([](NativeModel& n) { n.heads = std::numeric_limits<int64_t>::min(); }, "heads");
}

TEST(ModelSpec, AWindowSavesTheScoresOfHiddenKeys) {
  for (const int64_t seq_len : {1, 6, 30})
    for (const int64_t window : {0, 1, 5, 6, 7, 100}) {
      AttentionSpec a;
      a.window = window;
      double pairs = 0;
      for (int64_t query = 0; query < seq_len; ++query)
        for (int64_t key = 0; key <= query; ++key)
          if (window == 0 || query - key < window) ++pairs;
      EXPECT_NEAR(a.mean_keys(seq_len), pairs / static_cast<double>(seq_len), 1e-12) << seq_len << " " << window;
    }
  ModelSpec model = preset_model("qwen1.5-moe-a2.7b");
  const double full = forward_flops_per_token(model, 1000);
  const AttentionSpec whole = model.layers[0].attention;
  model.layers[0].attention.window = 100;
  const double keys = whole.mean_keys(1000) - model.layers[0].attention.mean_keys(1000);
  EXPECT_NEAR(full - forward_flops_per_token(model, 1000), 2 * keys * static_cast<double>(16 * (128 + 128)), 1);
}

}  // namespace
}  // namespace mw::test
