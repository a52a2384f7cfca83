#include "config/hf_family.h"

#include "config/hf_config.h"
#include "layout/helpers.h"

namespace mw::test {
namespace {

NativeModel grouped() {
  NativeModel n = small_native();
  n.shared_experts = 0;
  n.dense_layers = 0;
  return n;
}

NativeModel latent() { return small_latent_native(); }

std::string family_of(const NativeModel& native) { return fit_hf_family(build_native_model(native)).family; }

TEST(HfFamily, IsTheOneThatHasTheFeatures) {
  NativeModel n = grouped();
  EXPECT_EQ(family_of(n), "mixtral");
  n.qk_norm = QkNorm::per_head;
  EXPECT_EQ(family_of(n), "qwen3_moe");
  n.renormalise = false;
  n.dense_layers = 1;
  EXPECT_EQ(family_of(n), "qwen3_moe");
  n = grouped();
  n.qk_norm = QkNorm::full_width;
  n.head_dim = 12;
  n.clip_qkv = 3;
  EXPECT_EQ(family_of(n), "olmoe");
  n = grouped();
  n.score = ScoreFunction::sigmoid;
  n.selection_bias = true;
  EXPECT_EQ(family_of(n), "glm4_moe");
  n.shared_experts = 1;
  n.dense_layers = 1;
  n.qk_norm = QkNorm::per_head;
  n.routed_scale = 2.5;
  EXPECT_EQ(family_of(n), "glm4_moe");
  n = grouped();
  n.score = ScoreFunction::sigmoid;
  n.selection_bias = true;
  n.qk_norm = QkNorm::full_width;
  EXPECT_EQ(family_of(n), "minimax_m2");
  n = latent();
  n.renormalise = false;
  EXPECT_EQ(family_of(n), "deepseek_v2");
  n = latent();
  n.score = ScoreFunction::sigmoid;
  n.selection_bias = true;
  EXPECT_EQ(family_of(n), "deepseek_v3");
  n.expert_groups = 2;
  n.group_best = 2;
  EXPECT_EQ(family_of(n), "deepseek_v3");
}

// config.json says all that the table said: nothing else could be lost.
TEST(HfFamily, ConfigSaysAllOfTheModel) {
  for (const bool is_latent : {false, true})
    for (const QkNorm norm : {QkNorm::none, QkNorm::per_head, QkNorm::full_width})
      for (const ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid})
        for (const bool renormalise : {false, true})
          for (const int64_t groups : {1, 2})
            for (const int64_t best : {1, 2, 3})
              for (const int64_t dense : {0, 1}) {
                NativeModel n = is_latent ? latent() : grouped();
                n.qk_norm = norm;
                n.score = score;
                n.selection_bias = n.score == ScoreFunction::sigmoid;
                n.renormalise = renormalise;
                n.expert_groups = groups;
                n.kept_groups = groups;
                n.group_best = best;
                n.dense_layers = dense;
                n.routed_scale = is_latent ? 1.5 : 1;
                n.tie_embeddings = dense == 0;
                n.head_dim = is_latent ? 0 : 12;
                refusal_of(
                    [&] {
                      const ModelSpec native = build_native_model(n);
                      const ModelSpec model = fit_hf_family(native);
                      EXPECT_EQ(parse_hf_config(write_hf_config(model, "float32"), "written"), model);
                      ModelSpec same = model;
                      same.family = "native";
                      same.layers = groups > 1 ? same.layers : native.layers;
                      EXPECT_EQ(same, native);
                    },
                    {Exit::unsupported, Exit::config},
                    fmt::format("{} {} {} {}", word_of(norm), word_of(score), groups, best));
              }
}

TEST(HfFamily, NamesWhatFitsNone) {
  const auto says = [](const NativeModel& n, const std::string& part) {
    const std::string message = error_of([&] { family_of(n); }, Exit::unsupported);
    EXPECT_TRUE(contains(message, "fits no Hugging Face family") && contains(message, part)) << message;
  };
  NativeModel n = grouped();
  n.activation = Activation::relu;
  says(n, "none supports activation = \"relu\"");
  n.activation = Activation::clamped_swiglu;
  says(n, "none supports activation = \"clamped_swiglu\"");
  n = grouped();
  n.renormalise = false;
  says(n, "mixtral does not support renormalise = false; olmoe does not support qk_norm other than");
  n = grouped();
  n.score = ScoreFunction::sigmoid;
  says(n, "sigmoid\" without selection_bias");
  n = small_native();
  n.dense_layers = 0;
  says(n, "mixtral does not support shared_experts");
  n = latent();
  says(n, "deepseek_v2 does not support renormalise; deepseek_v3 does not support score = \"softmax\"");
  n.renormalise = false;
  n.kv_rank += 1;
  says(n, "deepseek_v2 does not support odd nope_dim or kv_rank");
  n.kv_rank -= 1;
  n.heads = 7;
  n.kv_heads = 7;
  says(n, "deepseek_v2 does not support a width that is no multiple of heads");
  n = latent();
  n.score = ScoreFunction::sigmoid;
  n.selection_bias = true;
  n.expert_groups = 2;
  says(n, "group_best other than 2");
  n = grouped();
  n.dense_layers = n.layers;
  says(n, "no MoE layers");
}

TEST(HfFamily, OfAFolderStays) {
  const ModelSpec model = parse_hf_config(read_config("olmoe-1b-7b"), "config.json");
  EXPECT_EQ(fit_hf_family(model), model);
}

}  // namespace
}  // namespace mw::test
