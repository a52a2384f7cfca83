// Configs that are cut, damaged or hostile: an Error, or a valid model; never anything else.
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "config/hf_config.h"
#include "config/param_table.h"
#include "layout/helpers.h"

namespace mw::test {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;  // key, value as JSON text

std::optional<Error> try_config(const std::string& text) {
  return refusal_of(
      [&] {
        ModelSpec model = parse_hf_config(text, "config.json");
        validate(model, "config.json");
        EXPECT_GE(parameter_count(model), active_parameter_count(model));
        if (model.moe_layer_count() == 0) return;  // no family to export to
        model.mtp_layers = 0;                      // none are written
        const std::string written = write_hf_config(model, "float32");
        EXPECT_EQ(parse_hf_config(written, "written"), model);
        EXPECT_EQ(parse_hf_config(extend_hf_config(written, text, "config.json"), "extended"), model);
      },
      {Exit::config, Exit::unsupported}, printable(text, 1000));
}

std::string join(const Fields& fields) {
  std::string text = "{";
  for (const auto& [key, value] : fields) text += (text.size() > 1 ? ",\n  \"" : "\n  \"") + key + "\": " + value;
  return text + "\n}\n";
}

// A small model of each family, with every key that the reader knows.
std::vector<Fields> small_configs() {
  const Fields common = {{"vocab_size", "97"},
                         {"hidden_size", "40"},
                         {"num_hidden_layers", "4"},
                         {"num_attention_heads", "5"},
                         {"num_key_value_heads", "1"},
                         {"head_dim", "8"},
                         {"hidden_act", "\"silu\""},
                         {"rms_norm_eps", "1e-05"},
                         {"tie_word_embeddings", "true"},
                         {"initializer_range", "0.02"},
                         {"router_aux_loss_coef", "0.02"},
                         {"attention_bias", "false"},
                         {"sliding_window", "null"},
                         {"max_position_embeddings", "128"},
                         {"intermediate_size", "28"},
                         {"torch_dtype", "\"float32\""},
                         {"quantization_config", "null"}};
  const Fields v4 = {{"rope_theta", "10000.0"}, {"rope_scaling", "{\"rope_type\": \"default\"}"}};
  const Fields v5 = {{"rope_parameters", "{\"rope_theta\": 10000.0, \"rope_type\": \"default\"}"}};
  const Fields families[] = {{{"model_type", "\"mixtral\""}, {"num_experts_per_tok", "2"}, {"num_local_experts", "6"}},
                             {{"model_type", "\"qwen3_moe\""},
                              {"num_experts_per_tok", "2"},
                              {"num_experts", "6"},
                              {"moe_intermediate_size", "12"},
                              {"norm_topk_prob", "true"},
                              {"decoder_sparse_step", "2"},
                              {"mlp_only_layers", "[1]"},
                              {"use_sliding_window", "false"}},
                             {{"model_type", "\"olmoe\""},
                              {"num_experts_per_tok", "2"},
                              {"num_experts", "6"},
                              {"norm_topk_prob", "false"},
                              {"clip_qkv", "4.5"}},
                             {{"model_type", "\"glm4_moe\""},
                              {"num_experts_per_tok", "2"},
                              {"n_routed_experts", "6"},
                              {"moe_intermediate_size", "12"},
                              {"n_shared_experts", "1"},
                              {"first_k_dense_replace", "1"},
                              {"norm_topk_prob", "true"},
                              {"routed_scaling_factor", "1.5"},
                              {"n_group", "2"},
                              {"topk_group", "2"},
                              {"use_qk_norm", "true"},
                              {"partial_rotary_factor", "0.5"}},
                             {{"model_type", "\"solar_open\""},
                              {"num_experts_per_tok", "2"},
                              {"n_routed_experts", "6"},
                              {"moe_intermediate_size", "12"},
                              {"n_shared_experts", "1"},
                              {"first_k_dense_replace", "0"},
                              {"use_qk_norm", "false"},
                              {"norm_topk_prob", "true"},
                              {"routed_scaling_factor", "1.5"},
                              {"n_group", "2"},
                              {"topk_group", "2"}},
                             {{"model_type", "\"hy_v3\""},
                              {"num_experts_per_tok", "2"},
                              {"num_experts", "6"},
                              {"num_shared_experts", "1"},
                              {"moe_intermediate_size", "12"},
                              {"router_scaling_factor", "2.5"},
                              {"mlp_layer_types", "[\"dense\", \"sparse\", \"sparse\", \"sparse\"]"}},
                             {{"model_type", "\"minimax_m2\""},
                              {"num_experts_per_tok", "2"},
                              {"num_local_experts", "6"},
                              {"rotary_dim", "4"},
                              {"scoring_func", "\"sigmoid\""},
                              {"attn_type_list", "[1, 1]"}},
                             {{"model_type", "\"qwen2_moe\""},
                              {"num_experts_per_tok", "2"},
                              {"num_experts", "6"},
                              {"moe_intermediate_size", "12"},
                              {"shared_expert_intermediate_size", "20"},
                              {"norm_topk_prob", "true"},
                              {"qkv_bias", "true"},
                              {"use_sliding_window", "true"},
                              {"max_window_layers", "2"}},
                             {{"model_type", "\"ernie4_5_moe\""},
                              {"moe_num_experts", "6"},
                              {"moe_k", "2"},
                              {"moe_intermediate_size", "12"},
                              {"moe_num_shared_experts", "1"},
                              {"moe_layer_start_index", "1"},
                              {"moe_layer_end_index", "-1"},
                              {"moe_layer_interval", "1"},
                              {"moe_norm_min", "1e-12"},
                              {"use_bias", "false"}},
                             {{"model_type", "\"hunyuan_v1_moe\""},
                              {"num_experts", "6"},
                              {"moe_topk", "[2, 2, 1, 2]"},
                              {"use_cla", "false"},
                              {"num_shared_expert", "[1, 1]"}},
                             {{"model_type", "\"gpt_oss\""},
                              {"num_experts_per_tok", "2"},
                              {"num_local_experts", "6"},
                              {"swiglu_limit", "7.0"},
                              {"swiglu_alpha", "1.5"}}};
  std::vector<Fields> configs;
  for (Fields fields : families)
    for (const Fields& rope : {v4, v5}) {
      Fields config = fields;
      config.insert(config.end(), common.begin(), common.end());
      config.insert(config.end(), rope.begin(), rope.end());
      configs.push_back(config);
    }
  return configs;
}

const char* const kValues[] = {"-1",
                               "0",
                               "1",
                               "2147483648",
                               "9223372036854775807",
                               "9223372036854775808",
                               "-9223372036854775808",
                               "18446744073709551615",
                               "99999999999999999999999",
                               "0.5",
                               "-0.5",
                               "1e-320",
                               "1e308",
                               "-0.0",
                               "null",
                               "true",
                               "false",
                               "\"\"",
                               "\"7\"",
                               "\"NaN\"",
                               "\"\\u0000\"",
                               "[]",
                               "[0]",
                               "[null]",
                               "[9223372036854775808]",
                               "[[1]]",
                               "{}",
                               "{\"rope_theta\": null}",
                               "{\"rope_type\": 3}",
                               "{\"type\": []}",
                               "{\"rope_theta\": -1}",
                               "{\"rope_theta\": \"x\"}"};
const char* const kNotJson[] = {"NaN",    "-NaN", "nan",  "Infinity", "-Infinity",  "1e400", "-1e400",
                                "01",     "+1",   "0x10", ".5",       "1.",         "'x'",   "",
                                "\"open", "[",    "{",    "\"\xff\"", "\"\\ud800\""};

TEST(HfConfigLimits, TheSmallConfigsAreValid) {
  for (const Fields& fields : small_configs()) EXPECT_FALSE(try_config(join(fields))) << join(fields);
}

TEST(HfConfigLimits, EveryFieldTakesEveryValueOrRefusesIt) {
  for (const Fields& fields : small_configs())
    for (size_t i = 0; i < fields.size(); ++i) {
      Fields changed = fields;
      for (const char* value : kValues) {
        changed[i].second = value;
        try_config(join(changed));
      }
      for (const char* value : kNotJson) {
        changed[i].second = value;
        EXPECT_TRUE(try_config(join(changed))) << join(changed);
      }
      changed = fields;
      changed.push_back(fields[i]);
      EXPECT_TRUE(try_config(join(changed))) << "duplicate " << fields[i].first;
      changed = fields;
      changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(i));
      try_config(join(changed));
      changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(i), {fields[i].first + "_", fields[i].second});
      try_config(join(changed));
    }
}

TEST(HfConfigLimits, SizesHaveBounds) {
  for (const Fields& fields : small_configs())
    for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "num_key_value_heads", "num_experts_per_tok", "moe_k", "head_dim"})
      for (const char* value :
           {"-1", "0", "2147483648", "9223372036854775808", "4611686018427387904", "1e400", "1.5", "\"8\"", "[8]"}) {
        Fields changed = fields;
        bool is_there = false;
        for (auto& field : changed)
          if (field.first == key) field.second = value, is_there = true;
        if (!is_there) continue;  // another family's key
        const auto error = try_config(join(changed));
        ASSERT_TRUE(error) << key << " = " << value;
        EXPECT_EQ(error->code(), Exit::config) << error->what();
      }
}

// Each size is in range, their product is not.
TEST(HfConfigLimits, ProductsHaveBounds) {
  for (const Fields& fields : small_configs()) {
    Fields changed = fields;
    for (auto& [key, value] : changed) {
      if (key == "hidden_size" || key == "vocab_size" || key == "intermediate_size" || key == "moe_intermediate_size")
        value = "16777216";
      if (key == "num_experts" || key == "num_local_experts") value = "65536";
      if (key == "num_hidden_layers") value = "10000";
    }
    EXPECT_TRUE(try_config(join(changed)));
    for (auto& [key, value] : changed)
      if (key == "vocab_size" || key == "hidden_size" || key == "intermediate_size" || key == "moe_intermediate_size")
        value = "65536";
    EXPECT_TRUE(try_config(join(changed)));
  }
}

TEST(HfConfigLimits, CutAtEveryByte) {
  for (const Fields& fields : small_configs()) {
    const std::string text = join(fields);
    const size_t whole = text.find_last_of('}') + 1;
    for (size_t size = 0; size < whole; ++size) EXPECT_TRUE(try_config(text.substr(0, size))) << size;
  }
}

TEST(HfConfigLimits, DamagedBytes) {
  const std::string bytes("\0\x01\x7f\x80\xff\"\\[]{}:,-+.eE019 \ntnf", 26);
  size_t next = 0;
  for (const Fields& fields : small_configs()) {
    const std::string text = join(fields);
    for (size_t at = 0; at < text.size(); ++at)
      for (int k = 0; k < 2; ++k) {
        std::string damaged = text;
        damaged[at] = bytes[next++ % bytes.size()];
        try_config(damaged);
        damaged = text;
        damaged.insert(at, 1, bytes[next++ % bytes.size()]);
        try_config(damaged);
      }
  }
}

TEST(HfConfigLimits, ZeroBytes) {
  const std::string text = join(small_configs().front()), zero(1, '\0');
  for (const std::string& damaged :
       {zero, text + zero, zero + text, text + zero + "garbage", std::string(text).insert(20, zero)}) {
    const auto error = try_config(damaged);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), Exit::config);
  }
}

TEST(HfConfigLimits, NestingIsBounded) {
  const std::string deep(100'000, '[');
  for (const std::string& value : {deep, deep + std::string(100'000, ']')}) {
    EXPECT_TRUE(try_config(value));
    for (const char* key : {"auto_map", "mlp_only_layers", "rope_parameters", "model_type"}) {
      Fields fields = small_configs()[2];
      fields.emplace_back(key, value);
      EXPECT_TRUE(try_config(join(fields)));
    }
  }
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"rope_parameters\":";
  EXPECT_TRUE(try_config(objects));
}

TEST(HfConfigLimits, WhatIsNoObject) {
  for (const char* text :
       {"", "null", "3", "\"mixtral\"", "[]", "[{}]", "{}", "true", "{\"model_type\": null}", "{\"model_type\": {}}"})
    EXPECT_TRUE(try_config(text)) << text;
}

// A list of layers is read once, not once per layer.
TEST(HfConfigLimits, LongListsAreQuick) {
  Fields fields = small_configs()[2];
  std::string list = "[1";
  for (int i = 0; i < 200'000; ++i) list += ",7";
  for (auto& [key, value] : fields) {
    if (key == "mlp_only_layers") value = list + "]";
    if (key == "num_hidden_layers") value = "5000";
  }
  EXPECT_FALSE(try_config(join(fields)));
}

}  // namespace
}  // namespace mw::test
