#include "config/hf_config.h"

#include <nlohmann/json.hpp>

#include "config/param_table.h"
#include "layout/helpers.h"

namespace mw::test {
namespace {

using nlohmann::ordered_json;

const std::vector<const char*> kGrouped = {"mixtral-8x7b", "mixtral-8x22b", "qwen3-30b-a3b", "qwen3-235b-a22b",
                                           "olmoe-1b-7b"};
const std::vector<const char*> kDeepseek = {"deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "kimi-k2"};

const std::vector<const char*> kOthers = {"dots-llm1",         "glm-4.5-air",  "glm-4.5",           "glm-4.7-flash",
                                          "solar-open-100b",   "minimax-m2",   "qwen1.5-moe-a2.7b", "qwen2-57b-a14b",
                                          "ernie-4.5-21b-a3b", "hunyuan-a13b", "hy3-preview",       "gpt-oss-20b",
                                          "gpt-oss-120b"};

std::vector<const char*> all_models() {
  std::vector<const char*> all = kGrouped;
  for (const auto& more : {kDeepseek, kOthers}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

ModelSpec parse(const std::string& text) { return parse_hf_config(text, "config.json"); }
ModelSpec parse(const ordered_json& config) { return parse(config.dump()); }
ordered_json config_of(const std::string& name) { return ordered_json::parse(read_config(name)); }

TEST(HfConfig, ParameterCountsAreExact) {
  const ordered_json exact = config_of("exact_parameters").at("exact_parameters");
  for (const char* name : all_models())
    EXPECT_EQ(parameter_count(parse(read_config(name))), exact.at(name).get<int64_t>()) << name;
}

TEST(HfConfig, ReadsEveryField) {
  const ModelSpec mixtral = parse(read_config("mixtral-8x7b"));
  EXPECT_EQ(mixtral.family, "mixtral");
  EXPECT_EQ(mixtral.vocab, 32000);
  EXPECT_EQ(mixtral.width, 4096);
  EXPECT_EQ(mixtral.layer_count(), 32);
  EXPECT_EQ(mixtral.moe_layer_count(), 32);
  EXPECT_EQ(mixtral.norm_eps, 1e-5);
  EXPECT_EQ(mixtral.aux_loss_coef, 0.02);
  EXPECT_FALSE(mixtral.tie_embeddings);
  const LayerSpec& m = mixtral.layers.back();
  EXPECT_EQ(m.attention, (AttentionSpec{32, 8, 128, QkNorm::none, 0, 1e6}));
  EXPECT_EQ(m.moe, (MoeSpec{8, 2, 14336, 0, ScoreFunction::softmax, false, true, 1.0}));

  const LayerSpec q = parse(read_config("qwen3-30b-a3b")).layers.front();
  EXPECT_EQ(q.attention, (AttentionSpec{32, 4, 128, QkNorm::per_head, 0, 1e6}));  // head_dim is not width / heads
  EXPECT_EQ(q.moe, (MoeSpec{128, 8, 768, 0, ScoreFunction::softmax, false, true, 1.0}));

  const LayerSpec o = parse(read_config("olmoe-1b-7b")).layers.front();
  EXPECT_EQ(o.attention, (AttentionSpec{16, 16, 128, QkNorm::full_width, 0, 1e4}));
  EXPECT_EQ(o.moe, (MoeSpec{64, 8, 1024, 0, ScoreFunction::softmax, false, false, 1.0}));
  ordered_json clipped = config_of("olmoe-1b-7b");
  clipped["clip_qkv"] = 8;
  EXPECT_EQ(parse(clipped).layers.front().attention.clip_qkv, 8.0);
}

TEST(HfConfig, ReadsEveryFieldOfDeepseek) {
  const ModelSpec lite = parse(read_config("deepseek-v2-lite"));
  EXPECT_EQ(lite.family, "deepseek_v2");
  EXPECT_EQ(lite.layer_count(), 27);
  EXPECT_EQ(lite.moe_layer_count(), 26);
  EXPECT_EQ(lite.aux_loss_coef, 0.001);
  EXPECT_TRUE(lite.sequence_aux);
  EXPECT_EQ(lite.mtp_layers, 0);
  EXPECT_EQ(lite.layers.front().feed_forward, FeedForwardKind::dense);
  EXPECT_EQ(lite.layers.front().dense_width, 10944);
  EXPECT_EQ(lite.layers.front().attention, lite.layers.back().attention);
  AttentionSpec a;
  a.heads = a.kv_heads = 16;
  a.head_dim = 192;
  a.kind = AttentionKind::latent;
  a.latent = {0, 512, 128, 64, 128};
  a.rope_pairs = RopePairs::neighbours;
  a.yarn = {40, 0.707, 0.707, 32, 1, 4096};
  EXPECT_EQ(lite.layers.back().attention, a);
  EXPECT_EQ(lite.layers.back().moe, (MoeSpec{64, 6, 1408, 2816, ScoreFunction::softmax, false, false, 1.0}));

  const LayerSpec v2 = parse(read_config("deepseek-v2")).layers.back();
  EXPECT_EQ(v2.attention.latent.q_rank, 1536);
  EXPECT_EQ(v2.moe, (MoeSpec{160, 6, 1536, 3072, ScoreFunction::softmax, false, false, 16.0, 8, 3, 1}));

  const ModelSpec v3 = parse(read_config("deepseek-v3"));
  EXPECT_EQ(v3.mtp_layers, 1);
  EXPECT_EQ(v3.moe_layer_count(), 58);
  EXPECT_EQ(v3.layers.back().moe, (MoeSpec{256, 8, 2048, 2048, ScoreFunction::sigmoid, true, true, 2.5, 8, 4, 2}));
  a.heads = a.kv_heads = 128;
  a.latent.q_rank = 1536;
  a.yarn.mscale = a.yarn.mscale_all_dim = 1;
  EXPECT_EQ(v3.layers.back().attention, a);

  ordered_json config = config_of("deepseek-v3");
  config["rope_interleave"] = false;
  config["rope_scaling"] = nullptr;
  for (const char* key : {"aux_loss_alpha", "seq_aux", "scoring_func", "topk_method", "num_nextn_predict_layers"})
    config.erase(key);  // as transformers 5 writes it
  const ModelSpec plain = parse(config);
  EXPECT_EQ(plain.layers.back().attention.rope_pairs, RopePairs::halves);
  EXPECT_EQ(plain.layers.back().attention.yarn, YarnSpec{});
  EXPECT_EQ(plain.layers.back().moe, v3.layers.back().moe);
  EXPECT_EQ(plain.aux_loss_coef, 0);
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 1}, {"original_max_position_embeddings", 4096}};
  EXPECT_EQ(parse(config).layers.back().attention.yarn, YarnSpec{});  // stretches nothing
}

TEST(HfConfig, YarnScalesAreThoseOfTheModels) {
  const YarnSpec lite = parse(read_config("deepseek-v2-lite")).layers.back().attention.yarn;
  EXPECT_EQ(lite.table_scale(), 1);
  EXPECT_NEAR(lite.score_scale(), 1.5896, 1e-4);
  EXPECT_NEAR(parse(read_config("deepseek-v3")).layers.back().attention.yarn.score_scale(), 1.8739, 1e-4);
  const YarnSpec bare{40, 0, 0, 32, 1, 4096};
  EXPECT_NEAR(bare.table_scale(), 1.368888, 1e-6);
  EXPECT_EQ(bare.score_scale(), 1);
  EXPECT_EQ(YarnSpec{}.table_scale(), 1);
}

TEST(HfConfig, WhatDeepseekModelsCannotBeIsRefused) {
  const auto refuse = [](const char* name, const char* key, const ordered_json& value, Exit code) {
    ordered_json config = config_of(name);
    if (value.is_discarded()) config.erase(key);
    else config[key] = value;
    const std::string message = error_of([&] { parse(config); }, code);
    if (code == Exit::config && !value.is_discarded()) return;
    EXPECT_TRUE(contains(message, code == Exit::config ? key : "not supported")) << message;
  };
  const ordered_json absent(nlohmann::detail::value_t::discarded);
  for (const char* name : kDeepseek) {
    const bool v3 = !contains(name, "v2");
    for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts",
                            "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "routed_scaling_factor",
                            "first_k_dense_replace", "intermediate_size", "rope_theta", "rms_norm_eps", "seq_aux"})
      refuse(name, key, absent, Exit::config);
    refuse(name, "num_key_value_heads", 2, Exit::config);
    refuse(name, "qk_rope_head_dim", 63, Exit::config);
    refuse(name, "qk_rope_head_dim", int64_t{1} << 61, Exit::config);
    refuse(name, "qk_nope_head_dim", int64_t{1} << 61, Exit::config);
    refuse(name, "moe_intermediate_size", int64_t{1} << 61, Exit::config);
    refuse(name, "kv_lora_rank", 0, Exit::config);
    refuse(name, "first_k_dense_replace", 1000, Exit::config);
    refuse(name, "rope_scaling", {{"type", "yarn"}, {"factor", 4}}, Exit::config);
    refuse(name, "rope_scaling", {{"type", "yarn"}, {"rope_type", "default"}}, Exit::config);
    refuse(name, "rope_scaling", {{"type", "linear"}, {"factor", 4}}, Exit::unsupported);
    refuse(name, "moe_layer_freq", 2, Exit::unsupported);
    refuse(name, "attention_bias", true, Exit::unsupported);
    refuse(name, "scoring_func", v3 ? "softmax" : "sigmoid", Exit::unsupported);
    refuse(name, "topk_method", v3 ? "greedy" : "noaux_tc", Exit::unsupported);
    if (!v3) refuse(name, "norm_topk_prob", true, Exit::unsupported);
  }
  refuse("deepseek-v2", "topk_method", absent, Exit::config);
  refuse("deepseek-v2", "n_group", 7, Exit::config);
  refuse("deepseek-v2", "n_group", absent, Exit::config);
  refuse("deepseek-v3", "topk_group", 9, Exit::config);
  refuse("deepseek-v3", "n_group", 256, Exit::config);  // a group of one expert has no two best
  ordered_json config = config_of("deepseek-v3");
  config["rope_scaling"]["attention_factor"] = 2;
  EXPECT_TRUE(contains(error_of([&] { parse(config); }, Exit::unsupported), "attention_factor"));
}

TEST(HfConfig, KnowsWhichLayersAreDense) {
  ordered_json config = config_of("qwen3-30b-a3b");
  config["num_hidden_layers"] = 7;
  config["decoder_sparse_step"] = 2;
  config["mlp_only_layers"] = {3, 6, 100, -1};
  const ModelSpec model = parse(config);
  std::string kinds;
  for (const LayerSpec& layer : model.layers) kinds += layer.feed_forward == FeedForwardKind::moe ? 'M' : 'd';
  EXPECT_EQ(kinds, "dMdddMd");
  EXPECT_EQ(model.layers[0].dense_width, 6144);
  EXPECT_EQ(model.layers[0].moe, MoeSpec{});
  EXPECT_EQ(parse(write_hf_config(model, "float32")), model);
}

// What transformers 5 writes for the same model.
ordered_json to_v5(ordered_json config) {
  ordered_json rope = {{"rope_theta", config.at("rope_theta")}, {"rope_type", "default"}};
  if (config.contains("rope_scaling") && !config["rope_scaling"].is_null()) {
    rope.update(config.at("rope_scaling"));
    if (rope.contains("type")) rope["rope_type"] = rope.at("type");
    rope.erase("type");
  }
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config["rope_parameters"] = rope;
  config["dtype"] = "bfloat16";
  config["hidden_act"] = "silu";
  if (config.contains("num_experts")) {
    config["num_local_experts"] = config["num_experts"];
    config.erase("num_experts");
  }
  return config;
}

TEST(HfConfig, BothDialectsGiveTheSameModel) {
  for (const char* name : all_models()) {
    ordered_json v4 = config_of(name);
    if (!v4.contains("rope_scaling")) v4["rope_scaling"] = nullptr;
    v4["torch_dtype"] = "bfloat16";
    EXPECT_EQ(parse(v4), parse(to_v5(v4))) << name;
    ordered_json both = to_v5(v4);  // names of both dialects, in agreement
    both["rope_theta"] = v4["rope_theta"];
    both["rope_scaling"] = v4["rope_scaling"];
    EXPECT_EQ(parse(both), parse(v4)) << name;
    both["rope_theta"] = 7;
    EXPECT_TRUE(contains(error_of([&] { parse(both); }, Exit::config), "rope_theta")) << name;
  }
}

TEST(HfConfig, ExpertCountsMayNotContradictEachOther) {
  for (const char* name : kGrouped) {
    ordered_json both = to_v5(config_of(name));
    both["num_experts"] = both["num_local_experts"];
    EXPECT_EQ(parse(both), parse(read_config(name))) << name;
    both["num_experts"] = 7;
    EXPECT_TRUE(contains(error_of([&] { parse(both); }, Exit::config), "num_")) << name;
  }
}

TEST(HfConfig, RoundTrips) {
  for (const char* name : all_models()) {
    ordered_json config = config_of(name);
    config["tie_word_embeddings"] = true;
    config["initializer_range"] = 0.017;
    if (std::string(name).rfind("olmoe", 0) == 0) config["clip_qkv"] = 6.5;
    if (config.contains("num_nextn_predict_layers")) config["num_nextn_predict_layers"] = 0;  // none is written
    const ModelSpec model = parse(config);
    const std::string written = write_hf_config(model, "bfloat16");
    EXPECT_EQ(parse(written), model) << name;
    EXPECT_EQ(ordered_json::parse(written).at("torch_dtype"), "bfloat16");
    EXPECT_EQ(ordered_json::parse(written).at("architectures").at(0), config.at("architectures").at(0));
  }
  error_of([] { write_hf_config(build_native_model(NativeModel{}), "float32"); }, Exit::unsupported);
  ordered_json dense = config_of("qwen3-30b-a3b");
  dense["decoder_sparse_step"] = 1000;
  error_of([&] { write_hf_config(parse(dense), "float32"); }, Exit::unsupported);
}

TEST(HfConfig, IsExtendedByWhatItDoesNotSay) {
  for (const char* name : all_models()) {
    ordered_json source = config_of(name);
    source["num_nextn_predict_layers"] = 0;
    source["eos_token_id"] = {7, 8};
    source["auto_map"]["AutoConfig"] = "file.Class";
    source["dtype"] = "float16";
    source["transformers_version"] = "9";
    const ModelSpec model = parse(source);
    const std::string written = extend_hf_config(write_hf_config(model, "bfloat16"), source.dump(), "config.json");
    EXPECT_EQ(parse(written), model) << name;
    const ordered_json config = ordered_json::parse(written);
    EXPECT_EQ(config.at("eos_token_id"), source.at("eos_token_id"));
    EXPECT_EQ(config.at("auto_map"), source.at("auto_map"));
    EXPECT_EQ(hf_weight_dtype(written, "config.json"), "bfloat16");
    for (const char* key : {"dtype", "rope_parameters", "quantization_config", "transformers_version"})
      EXPECT_FALSE(config.contains(key)) << name << " " << key;
  }
  EXPECT_EQ(hf_weight_dtype("{\"dtype\": \"float32\"}", "c"), "float32");
  EXPECT_EQ(hf_weight_dtype("{\"torch_dtype\": null}", "c"), "");
  error_of([] { hf_weight_dtype("{\"dtype\": 3}", "c"); }, Exit::config);
  error_of([] { extend_hf_config("{}", "[]", "c"); }, Exit::config);
}

TEST(HfConfig, NothingIsTakenFromClassDefaults) {
  for (const char* name : kGrouped) {
    const bool qwen = contains(name, "qwen"), olmoe = contains(name, "olmoe"), mixtral = contains(name, "mixtral");
    std::vector<const char*> required = {"model_type",          "vocab_size",          "hidden_size",
                                         "num_hidden_layers",   "num_attention_heads", "num_key_value_heads",
                                         "num_experts_per_tok", "rope_theta",          "router_aux_loss_coef"};
    required.push_back(mixtral ? "num_local_experts" : "num_experts");
    required.push_back(qwen ? "moe_intermediate_size" : "intermediate_size");
    if (!mixtral) required.push_back("norm_topk_prob");
    if (!olmoe) required.push_back("rms_norm_eps");
    for (const char* key : required) {
      ordered_json config = config_of(name);
      ASSERT_EQ(config.erase(key), 1u) << name << " " << key;
      const std::string message = error_of([&] { parse(config); }, Exit::config);
      EXPECT_TRUE(contains(message, key)) << message;
    }
  }
  ordered_json all_heads = config_of("mixtral-8x7b");
  all_heads["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse(all_heads).layers[0].attention.kv_heads, 32);
}

TEST(HfConfig, WhatChangesNumbersIsNotIgnored) {
  const auto refuse = [](const char* name, const char* key, const ordered_json& value) {
    ordered_json config = config_of(name);
    config[key] = value;
    const std::string message = error_of([&] { parse(config); }, Exit::unsupported);
    EXPECT_TRUE(contains(message, "not supported")) << message;
    config["hidden_act"] = "silu";
    if (std::string(key) != "hidden_act") error_of([&] { parse(config); }, Exit::unsupported);
  };
  for (const char* name : kGrouped) {
    refuse(name, "attention_bias", true);
    refuse(name, "hidden_act", "gelu");
    refuse(name, "attention_dropout", 0.1);
    refuse(name, "router_jitter_noise", 0.1);
    refuse(name, "is_causal", false);
    refuse(name, "quantization_config", {{"quant_method", "fp8"}});
    refuse(name, "rope_scaling", {{"rope_type", "llama3"}});
    refuse(name, "rope_parameters", {{"rope_type", "linear"}, {"rope_theta", 1e6}});
    refuse(name, "rope_parameters",
           {{"full_attention", {{"rope_type", "default"}}}, {"sliding_attention", {{"rope_type", "default"}}}});
    ordered_json off = config_of(name);
    off["sliding_window"] = nullptr;
    off["attention_dropout"] = 0.0;
    off["is_causal"] = true;
    off["rope_scaling"] = {{"rope_type", "default"}};
    EXPECT_EQ(parse(off), parse(config_of(name)));
  }
  refuse("olmoe-1b-7b", "sliding_window", 1024);
  for (const char* type : {"llama", "mixtrall", "", "Mixtral"}) {
    ordered_json config = config_of("mixtral-8x7b");
    config["model_type"] = type;
    error_of([&] { parse(config); }, Exit::config);
  }
}

TEST(HfConfig, MessagesNameFileAndField) {
  const ScratchDir dir;
  ordered_json config = config_of("olmoe-1b-7b");
  config["num_experts"] = "many";
  write_raw(dir / "config.json", config.dump());
  const std::string message = error_of([&] { read_hf_config(dir / "config.json"); }, Exit::config);
  EXPECT_TRUE(contains(message, dir / "config.json") &&
              contains(message, "\"num_experts\" expects an integer, got \"many\""))
      << message;
  EXPECT_TRUE(contains(error_of([&] { read_hf_config(dir / "absent.json"); }, Exit::config), "absent.json"));
  EXPECT_TRUE(contains(error_of([&] { read_hf_config(dir.path()); }, Exit::config), "not a regular file"));
}

}  // namespace
}  // namespace mw::test
