// What the config.json of each family says in its own way.
#include <cmath>
#include <nlohmann/json.hpp>

#include "config/hf_config.h"
#include "layout/helpers.h"

namespace mw::test {
namespace {

using nlohmann::ordered_json;

ModelSpec parse(const ordered_json& config) { return parse_hf_config(config.dump(), "config.json"); }
ordered_json config_of(const std::string& name) { return ordered_json::parse(read_config(name)); }
ModelSpec model_of(const std::string& name) { return parse(config_of(name)); }
ModelSpec round_trip(const ModelSpec& model) { return parse_hf_config(write_hf_config(model, "float32"), "written"); }

ModelSpec with(const std::string& name, const std::vector<std::pair<const char*, ordered_json>>& changes) {
  ordered_json config = config_of(name);
  for (const auto& [key, value] : changes) config[key] = value;
  return parse(config);
}

// One key of the config of a model, changed; a discarded value: removed.
void refuse(const std::string& name, const char* key, const ordered_json& value, Exit code) {
  ordered_json config = config_of(name);
  if (value.is_discarded()) config.erase(key);
  else config[key] = value;
  const std::string message = error_of([&] { parse(config); }, code);
  EXPECT_TRUE(contains(message, key) || contains(message, "rope type")) << name << " " << key << ": " << message;
}
const ordered_json kAbsent(nlohmann::detail::value_t::discarded);

TEST(HfFamilies, AttentionIsAsTheFamilyHasIt) {
  const AttentionSpec glm = model_of("glm-4.5-air").layers.back().attention;
  EXPECT_TRUE(glm.qkv_bias && !glm.output_bias);
  EXPECT_EQ(glm.rotary_dim, 64);
  EXPECT_EQ(glm.qk_norm, QkNorm::none);
  EXPECT_EQ(model_of("glm-4.5").layers.back().attention.qk_norm, QkNorm::per_head);
  EXPECT_FALSE(with("glm-4.5-air", {{"attention_bias", false}}).layers.back().attention.qkv_bias);
  EXPECT_EQ(with("glm-4.5-air", {{"partial_rotary_factor", 1.0}}).layers.back().attention.rotary_dim, 0);
  const AttentionSpec dots = with("dots-llm1", {{"attention_bias", true}}).layers.back().attention;
  EXPECT_TRUE(dots.qkv_bias && dots.output_bias);
  EXPECT_EQ(dots.qk_norm, QkNorm::per_head);
  const AttentionSpec minimax = model_of("minimax-m2").layers.back().attention;
  EXPECT_EQ(minimax.qk_norm, QkNorm::full_width);
  EXPECT_EQ(minimax.rotary_dim, 64);
  EXPECT_TRUE(model_of("qwen1.5-moe-a2.7b").layers[0].attention.qkv_bias);  // where no key says so
  EXPECT_FALSE(with("qwen1.5-moe-a2.7b", {{"qkv_bias", false}}).layers[0].attention.qkv_bias);
  EXPECT_EQ(model_of("ernie-4.5-21b-a3b").layers[0].attention.rope_pairs, RopePairs::neighbours);
  const AttentionSpec hunyuan = model_of("hunyuan-a13b").layers[0].attention;
  EXPECT_TRUE(hunyuan.norm_after_rotary);
  EXPECT_NEAR(hunyuan.rope_theta, 1e4 * std::pow(1000, 128.0 / 126), 1e-3);
}

TEST(HfFamilies, AnyMayHaveYarn) {
  const ordered_json scaling = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  for (const char* name : {"qwen3-30b-a3b", "glm-4.5", "minimax-m2"}) {
    const ModelSpec model = with(name, {{"rope_scaling", scaling}, {"num_nextn_predict_layers", 0}});
    EXPECT_EQ(model.layers[0].attention.yarn, (YarnSpec{4, 0, 0, 32, 1, 32768})) << name;
    EXPECT_EQ(round_trip(model), model) << name;
  }
}

TEST(HfFamilies, RoutersAreAsTheFamilyHasThem) {
  const MoeSpec glm = model_of("glm-4.5").layers.back().moe;
  EXPECT_EQ(glm, (MoeSpec{160, 8, 1536, 1536, ScoreFunction::sigmoid, true, true, 2.5}));
  EXPECT_EQ(model_of("glm-4.7-flash").layers.back().moe,
            (MoeSpec{64, 4, 1536, 1536, ScoreFunction::sigmoid, true, true, 1.8}));
  EXPECT_EQ(model_of("hy3-preview").layers.back().moe,
            (MoeSpec{192, 8, 1536, 1536, ScoreFunction::sigmoid, true, true, 2.826}));
  const MoeSpec minimax = model_of("minimax-m2").layers.back().moe;
  EXPECT_EQ(minimax, (MoeSpec{256, 8, 1536, 0, ScoreFunction::sigmoid, true, true, 1.0}));
  MoeSpec qwen{60, 4, 1408, 5632, ScoreFunction::softmax, false, false, 1.0};
  qwen.shared_gate = true;
  EXPECT_EQ(model_of("qwen1.5-moe-a2.7b").layers.back().moe, qwen);
  MoeSpec ernie{64, 6, 1536, 3072, ScoreFunction::softmax, true, true, 1.0};
  ernie.least_sum = 1e-12;
  EXPECT_EQ(model_of("ernie-4.5-21b-a3b").layers.back().moe, ernie);
  EXPECT_EQ(model_of("hunyuan-a13b").layers.back().moe,
            (MoeSpec{64, 8, 3072, 3072, ScoreFunction::softmax, false, true, 1.0}));
}

// GLM-4.7-Flash and Hy3: mlp_layer_types, or without it all after the first.
TEST(HfFamilies, LayerTypesSayWhichLayersAreMoe) {
  const auto sparse = [](const ModelSpec& model) {
    std::string kinds;
    for (const LayerSpec& layer : model.layers) kinds += layer.feed_forward == FeedForwardKind::moe ? 's' : 'd';
    return kinds;
  };
  const ordered_json some = {"sparse", "dense", "sparse"}, first = {"dense", "dense", "sparse"};
  for (const char* name : {"glm-4.7-flash", "hy3-preview"}) {
    EXPECT_EQ(sparse(with(name, {{"num_hidden_layers", 3}, {"first_k_dense_replace", nullptr}})), "dss");
    ModelSpec model =
        with(name, {{"num_hidden_layers", 3}, {"mlp_layer_types", some}, {"first_k_dense_replace", nullptr}});
    EXPECT_EQ(sparse(model), "sds");
    model.mtp_layers = 0;
    EXPECT_EQ(round_trip(model), model);
    const ModelSpec both =
        with(name, {{"num_hidden_layers", 3}, {"mlp_layer_types", first}, {"first_k_dense_replace", 2}});
    EXPECT_EQ(sparse(both), "dds");
    EXPECT_EQ(ordered_json::parse(write_hf_config(both, "float32")).at("first_k_dense_replace"), 2);
    refuse(name, "first_k_dense_replace", 2, Exit::config);
    for (const ordered_json& bad : {ordered_json("dense"), some, ordered_json{1, 2}})
      refuse(name, "mlp_layer_types", bad, Exit::config);
  }
  refuse("solar-open-100b", "first_k_dense_replace", 1, Exit::unsupported);
  refuse("solar-open-100b", "partial_rotary_factor", 0.5, Exit::unsupported);
  EXPECT_EQ(with("hy3-preview", {{"num_nextn_predict_layers", nullptr}}).mtp_layers, 1);
}

TEST(HfFamilies, KimiIsDeepseekV3ByAnotherName) {
  const ModelSpec kimi = model_of("kimi-k2");
  EXPECT_EQ(kimi.family, "deepseek_v3");
  EXPECT_EQ(ordered_json::parse(write_hf_config(kimi, "float32")).at("model_type"), "deepseek_v3");
}

std::string kinds_of(const ModelSpec& model) {
  std::string kinds;
  for (const LayerSpec& layer : model.layers) kinds += layer.feed_forward == FeedForwardKind::moe ? 'M' : 'd';
  return kinds;
}

TEST(HfFamilies, ErniesMoeLayersAreARange) {
  const auto kinds = [](const ordered_json& start, const ordered_json& end, int step) {
    const ModelSpec model = with("ernie-4.5-21b-a3b", {{"num_hidden_layers", 7},
                                                       {"moe_layer_start_index", start},
                                                       {"moe_layer_end_index", end},
                                                       {"moe_layer_interval", step}});
    EXPECT_EQ(round_trip(model).layers, model.layers);
    return kinds_of(model);
  };
  EXPECT_EQ(kinds(1, 6, 1), "dMMMMMM");
  EXPECT_EQ(kinds(0, -1, 1), "MMMMMMM");
  EXPECT_EQ(kinds(2, nullptr, 1), "ddMMMMM");
  EXPECT_EQ(kinds(1, 4, 2), "dMdMddd");
  EXPECT_EQ(kinds(3, 4, 2), "dddMddd");
  refuse("ernie-4.5-21b-a3b", "moe_layer_interval", 0, Exit::config);
}

std::string windows_of(const ModelSpec& model) {
  std::string windows;
  for (const LayerSpec& layer : model.layers) windows += layer.attention.window > 0 ? 'w' : '-';
  return windows;
}

TEST(HfFamilies, WindowsAreOfSomeLayers) {
  const auto qwen = [](std::vector<std::pair<const char*, ordered_json>> changes) {
    changes.insert(changes.end(), {{"num_hidden_layers", 6}, {"sliding_window", 100}});
    const ModelSpec model = with("qwen1.5-moe-a2.7b", changes);
    EXPECT_EQ(round_trip(model), model);
    return windows_of(model);
  };
  EXPECT_EQ(qwen({{"use_sliding_window", true}, {"max_window_layers", 4}}), "w-w---");
  EXPECT_EQ(qwen({{"use_sliding_window", false}, {"max_window_layers", 4}}), "------");
  const ordered_json types = {"full_attention", "sliding_attention", "sliding_attention",
                              "full_attention", "full_attention",    "full_attention"};
  EXPECT_EQ(qwen({{"use_sliding_window", true}, {"max_window_layers", 4}, {"layer_types", types}}), "-ww---");
  const ModelSpec dots = with("dots-llm1", {{"num_hidden_layers", 5}, {"sliding_window", 9}, {"max_window_layers", 3}});
  EXPECT_EQ(windows_of(dots), "---ww");
  EXPECT_EQ(dots.layers.back().attention.window, 9);
  EXPECT_EQ(round_trip(dots), dots);

  ordered_json config = config_of("dots-llm1");
  config["sliding_window"] = 9;
  config["max_window_layers"] = 3;
  for (const ordered_json& wrong : {ordered_json(types), ordered_json("full_attention"), ordered_json({1, 2})}) {
    config["layer_types"] = wrong;
    EXPECT_TRUE(contains(error_of([&] { parse(config); }, Exit::config), "layer_types"));
  }
  config["num_hidden_layers"] = 6;
  config["layer_types"] = types;
  EXPECT_EQ(windows_of(parse(config)), "-ww---");
  config["layer_types"][5] = "chunked_attention";
  error_of([&] { parse(config); }, Exit::config);
}

// As transformers 5.17: who reads use_sliding_window, what is taken for an absent key, and for a null.
TEST(HfFamilies, WindowsOfAllLayersAndDefaults) {
  const auto all = [](const ModelSpec& model, int64_t window) {
    EXPECT_EQ(round_trip(model), model);
    for (const LayerSpec& layer : model.layers) EXPECT_EQ(layer.attention.window, window);
  };
  all(with("mixtral-8x7b", {{"sliding_window", 512}, {"use_sliding_window", false}}), 512);
  all(with("mixtral-8x7b", {{"sliding_window", nullptr}}), 0);
  all(with("qwen3-30b-a3b", {{"sliding_window", 512}, {"use_sliding_window", true}}), 512);
  all(with("qwen3-30b-a3b", {{"sliding_window", 512}, {"use_sliding_window", false}}), 0);
  ordered_json absent = config_of("qwen3-30b-a3b");
  for (const char* key : {"sliding_window", "use_sliding_window"}) absent.erase(key);
  all(parse(absent), 0);
  absent["use_sliding_window"] = true;
  all(parse(absent), 4096);

  ordered_json oss = config_of("gpt-oss-20b");
  oss.erase("sliding_window");
  EXPECT_EQ(parse(oss), model_of("gpt-oss-20b"));
  oss["use_sliding_window"] = false;
  EXPECT_EQ(parse(oss), model_of("gpt-oss-20b"));
  // A model without a window is written with one, which no layer has: transformers asks for it.
  const ModelSpec full = with("gpt-oss-20b", {{"sliding_window", nullptr}});
  EXPECT_EQ(ordered_json::parse(write_hf_config(full, "bfloat16"))["sliding_window"], 128);
  ordered_json dots = config_of("dots-llm1");
  for (const char* key : {"sliding_window", "max_window_layers", "layer_types", "use_sliding_window"}) dots.erase(key);
  dots["num_hidden_layers"] = 64;
  EXPECT_EQ(windows_of(parse(dots)), std::string(62, '-') + "ww");
}

TEST(HfFamilies, RareKeysAreReadAsTransformersReadsThem) {
  const YarnSpec inside = with("deepseek-v3", {}).layers[0].attention.yarn;
  ASSERT_GT(inside.factor, 1);
  EXPECT_EQ(with("deepseek-v3", {{"original_max_position_embeddings", 64}}).layers[0].attention.yarn.positions, 64);
  ordered_json config = config_of("deepseek-v3");
  config["rope_scaling"]["truncate"] = nullptr;
  EXPECT_FALSE(parse(config).layers[0].attention.yarn.truncate);
  const auto pairs = [](const char* name, const ordered_json& interleave) {
    return with(name, {{"rope_interleave", interleave}}).layers[0].attention.rope_pairs;
  };
  EXPECT_EQ(pairs("deepseek-v3", true), RopePairs::neighbours);
  EXPECT_EQ(pairs("deepseek-v3", nullptr), RopePairs::halves);
  EXPECT_EQ(pairs("deepseek-v2-lite", false), RopePairs::neighbours);  // which does not read it
  // The other name of a family's key.
  ordered_json ernie = config_of("ernie-4.5-21b-a3b");
  const ModelSpec as_it_is = parse(ernie);
  ernie["num_experts_per_tok"] = ernie["moe_k"];
  EXPECT_EQ(parse(ernie), as_it_is);
  ernie.erase("moe_k");
  EXPECT_EQ(parse(ernie), as_it_is);
  ernie["moe_k"] = 1;
  EXPECT_TRUE(contains(error_of([&] { parse(ernie); }, Exit::config), "its other name"));
  // Keys whose absence means something.
  ernie.erase("moe_k");
  ernie.erase("tie_word_embeddings");
  EXPECT_TRUE(parse(ernie).tie_embeddings);
  ordered_json v3 = config_of("deepseek-v3");
  v3["n_shared_experts"] = nullptr;
  EXPECT_EQ(parse(v3).layers.back().moe.shared_width, 0);
  v3.erase("n_shared_experts");
  EXPECT_TRUE(contains(error_of([&] { parse(v3); }, Exit::config), "n_shared_experts"));
}

TEST(HfFamilies, GptOssIsReadAndWritten) {
  const ModelSpec model = model_of("gpt-oss-20b");
  EXPECT_EQ(round_trip(model), model);
  EXPECT_EQ(windows_of(model), "w-w-w-w-w-w-w-w-w-w-w-w-");
  const LayerSpec& layer = model.layers.front();
  const AttentionSpec& a = layer.attention;
  EXPECT_TRUE(a.sinks && a.qkv_bias && a.output_bias);
  EXPECT_EQ(a.window, 128);
  EXPECT_EQ(a.yarn, (YarnSpec{32, 0, 0, 32, 1, 4096, false}));
  MoeSpec moe{32, 4, 2880, 0, ScoreFunction::softmax, false, true, 1.0};
  moe.bias = true;
  EXPECT_EQ(layer.moe, moe);
  EXPECT_EQ(layer.activation, Activation::clamped_swiglu);
  EXPECT_EQ(layer.swiglu_alpha, 1.702);
  EXPECT_EQ(layer.swiglu_limit, 7);
  EXPECT_EQ(windows_of(with("gpt-oss-20b", {{"layer_types", nullptr}})), windows_of(model));
  const ModelSpec other = with("gpt-oss-20b", {{"sliding_window", nullptr},
                                               {"attention_bias", false},
                                               {"swiglu_alpha", 1.5},
                                               {"swiglu_limit", 3.0},
                                               {"quantization_config", nullptr}});
  EXPECT_EQ(round_trip(other), other);
  EXPECT_EQ(windows_of(other), "------------------------");
  EXPECT_FALSE(other.layers[0].attention.qkv_bias || other.layers[0].attention.output_bias);
  EXPECT_EQ(other.layers[0].swiglu_alpha, 1.5);
  EXPECT_EQ(other.layers[0].swiglu_limit, 3);
  refuse("gpt-oss-20b", "experts_per_token", 2, Exit::unsupported);
  refuse("gpt-oss-20b", "swiglu_limit", 0, Exit::config);
  refuse("gpt-oss-20b", "rope_scaling", nullptr, Exit::unsupported);  // where transformers takes its own YaRN
  const ModelSpec plain = with("gpt-oss-20b", {{"rope_scaling", {{"rope_type", "default"}}}});
  EXPECT_EQ(plain.layers[0].attention.yarn, YarnSpec{});
  EXPECT_EQ(round_trip(plain), plain);
  ordered_json config = config_of("gpt-oss-20b");
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  EXPECT_TRUE(contains(error_of([&] { parse(config); }, Exit::unsupported), "mxfp4"));
}

TEST(HfFamilies, HunyuanMayHaveAnotherTopKInEachLayer) {
  ordered_json config = config_of("hunyuan-a13b");
  config["num_hidden_layers"] = 3;
  config["moe_topk"] = {2, 8, 1};
  const ModelSpec model = parse(config);
  EXPECT_EQ(model.layers[1].moe.top_k, 8);
  EXPECT_EQ(model.layers[2].moe.top_k, 1);
  EXPECT_EQ(round_trip(model), model);
  config["moe_topk"] = {2, 8};
  EXPECT_TRUE(contains(error_of([&] { parse(config); }, Exit::config), "moe_topk"));
  config["moe_topk"] = {2, 8, "1"};
  error_of([&] { parse(config); }, Exit::config);
}

TEST(HfFamilies, WhatTheyCannotBeIsRefused) {
  for (const char* name : {"dots-llm1", "glm-4.5-air"}) {
    for (const char* key : {"n_routed_experts", "num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor",
                            "first_k_dense_replace", "n_group", "rope_theta", "rms_norm_eps"})
      refuse(name, key, kAbsent, Exit::config);
    refuse(name, "rope_scaling", {{"type", "linear"}, {"factor", 4}}, Exit::unsupported);
  }
  refuse("glm-4.5-air", "partial_rotary_factor", kAbsent, Exit::config);
  refuse("glm-4.5-air", "partial_rotary_factor", 1.5, Exit::config);
  refuse("glm-4.5-air", "use_qk_norm", kAbsent, Exit::config);
  refuse("qwen3-30b-a3b", "partial_rotary_factor", 0.5, Exit::unsupported);
  for (const auto& [key, value] : std::vector<std::pair<const char*, ordered_json>>{{"scoring_func", "softmax"},
                                                                                    {"use_routing_bias", false},
                                                                                    {"use_qk_norm", false},
                                                                                    {"qk_norm_type", "per_head"},
                                                                                    {"shared_intermediate_size", 8},
                                                                                    {"attn_type_list", {1, 0}}})
    refuse("minimax-m2", key, value, Exit::unsupported);
  refuse("minimax-m2", "rotary_dim", 200, Exit::config);
  refuse("minimax-m2", "rotary_dim", 0, Exit::config);
  refuse("minimax-m2", "rotary_dim", 63, Exit::config);
  refuse("qwen2-57b-a14b", "shared_expert_intermediate_size", kAbsent, Exit::config);
  refuse("ernie-4.5-21b-a3b", "use_bias", true, Exit::unsupported);
  refuse("ernie-4.5-21b-a3b", "moe_norm_min", kAbsent, Exit::config);
  refuse("hunyuan-a13b", "use_cla", true, Exit::unsupported);
  refuse("hunyuan-a13b", "moe_intermediate_size", {3072, 1024}, Exit::unsupported);
  refuse("hunyuan-a13b", "num_shared_expert", 2, Exit::unsupported);
  refuse("hunyuan-a13b", "rope_scaling", {{"type", "dynamic"}, {"factor", 4}}, Exit::unsupported);
  refuse("qwen3-30b-a3b", "rope_scaling", {{"type", "dynamic"}, {"alpha", 4}}, Exit::unsupported);
}

}  // namespace
}  // namespace mw::test
