// Which keys are set and change nothing.
#include "config/idle_keys.h"

#include <gtest/gtest.h>

#include "config/model_spec.h"

namespace mw::test {
namespace {

std::vector<std::string> idle(const std::string& text) {
  const RunSpec run = parse_run_text(text, "test", {});
  return describe_idle_keys(run, build_native_model(run.native));
}

TEST(IdleKeys, SayWhatTheyNeed) {
  EXPECT_EQ(idle("[moe]\nbalance_every = 5"),
            std::vector<std::string>{"moe.balance_every = 5 has no effect: it needs moe.balance = \"swap\""});
  EXPECT_EQ(idle("[data]\nkind = \"megatron\"\nsuffixes = [\".h\"]"),
            std::vector<std::string>{"data.suffixes = [\".h\"] has no effect: it needs data.kind = \"text\""});
  EXPECT_EQ(idle("[data]\nval_path = \"a\"\nval_fraction = 0.1").size(), 1u);
  EXPECT_EQ(idle("[data]\nkind = \"megatron\"\ndocument_token = 5\ndocument_mask = true").size(), 1u);
  EXPECT_EQ(idle("[data]\nkind = \"shards\"\ndocument_token = 5").size(), 1u);
  EXPECT_EQ(idle("[train]\nschedule = \"constant\"\nmin_lr_ratio = 0.5\nspike_window = 5").size(), 2u);
  EXPECT_EQ(idle("[train]\nval_every = 5\nval_batches = 0").size(), 1u);
  EXPECT_EQ(idle("[model]\ndense_width = 64\nq_rank = 8\nkv_rank = 8").size(), 3u);
  EXPECT_EQ(idle("[moe]\nbias_rate = 0.1\ncapacity_domain = \"rank\"\ntransport = \"flat\"\nweight_slots = 3").size(),
            3u);
}

TEST(IdleKeys, AreNotThoseWithAnEffect) {
  const std::vector<std::string> none;
  EXPECT_EQ(idle(""), none);
  EXPECT_EQ(idle(to_toml(RunSpec())), none);  // every key, at its default
  EXPECT_EQ(idle("[data]\nval_path = \"a\"\nval_fraction = 0"), none);
  EXPECT_EQ(idle("[data]\nkind = \"shards\"\ndocument_token = 5\nwhole_documents = true"), none);
  EXPECT_EQ(idle("[train]\nschedule = \"wsd\"\nmin_lr_ratio = 0.5\nskip_spikes = 3\nspike_window = 5"), none);
  EXPECT_EQ(idle("[model]\nscore = \"sigmoid\"\nselection_bias = true\n[moe]\nbias_rate = 0.1"), none);
  EXPECT_EQ(idle("[model]\ndense_layers = 1\ndense_width = 64"), none);
  EXPECT_EQ(idle("[moe]\ntransport = \"gather_weights\"\nweight_slots = 3\n[mesh]\nep = 2"), none);
  EXPECT_EQ(idle("[moe]\nweight_slots = 3"), none);  // "auto" may choose it
}

TEST(IdleKeys, OfATableAreNotAskedOfAModelFolder) {
  RunSpec run;
  const ModelSpec model = build_native_model(run.native);
  run.hf_dir = "model";
  run.native.dense_width = 64;
  EXPECT_TRUE(describe_idle_keys(run, model).empty());
}

TEST(IdleKeys, AreTolerancesOfAnotherDtype) {
  RunSpec run;
  run.verify.tolerance = 1e-4;
  run.verify.loss_tolerance_bf16 = run.verify.grad_tolerance_bf16 = 0.1;
  run.train.dtype = DType::bf16;
  EXPECT_EQ(describe_idle_tolerances(run),
            std::vector<std::string>{"verify.tolerance = 0.0001 has no effect: it needs train.dtype = \"fp32\""});
  run.train.dtype = DType::f32;
  EXPECT_EQ(
      describe_idle_tolerances(run),
      (std::vector<std::string>{"verify.loss_tolerance_bf16 = 0.1 has no effect: it needs train.dtype = \"bf16\"",
                                "verify.grad_tolerance_bf16 = 0.1 has no effect: it needs train.dtype = \"bf16\""}));
  EXPECT_TRUE(describe_idle_tolerances(RunSpec()).empty());
}

TEST(UnreachedValues, AreThoseBehindTheLastStep) {
  TrainSpec train;
  train.steps = 10;
  train.lr = 1e-3;
  train.warmup = 10;
  train.global_batch = 8;
  train.micro_batches = 4;
  train.batch_ramp = {"4 2", "9 4"};
  EXPECT_TRUE(describe_unreached(train).empty());
  train.steps = 9;
  EXPECT_EQ(describe_unreached(train),
            (std::vector<std::string>{"train.warmup = 10 is longer than the run, train.steps = 9: the learning rate "
                                      "ends at 0.0009 and never reaches train.lr = 0.001",
                                      "train.batch_ramp is longer than the run, train.steps = 9: steps have at most 4 "
                                      "samples and never train.global_batch = 8"}));
  train.warmup = 9;
  train.batch_ramp.clear();
  EXPECT_TRUE(describe_unreached(train).empty());
}

}  // namespace
}  // namespace mw::test
