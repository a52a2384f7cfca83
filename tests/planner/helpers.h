// Shared by the tests of this room: shipped profiles, model configs, small runs.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "config/hf_config.h"
#include "layout/plan.h"
#include "layout/platform_profile.h"
#include "planner/search.h"

namespace mw::test {

inline std::string source_path(const std::string& path) { return std::string(MOEWRIGHT_SOURCE_DIR) + "/" + path; }

inline PlatformProfile shipped_profile(const std::string& name) {
  return read_platform_profile(source_path("profiles/" + name + ".json"));
}

inline ModelSpec config_model(const std::string& name) {
  return read_hf_config(source_path("tests/data/configs/" + name + ".json"));
}

// Seven layers, the first two dense; shared experts; sizes that divide badly.
inline ModelSpec odd_model(bool tied = false) {
  NativeModel n;
  n.vocab = 331;
  n.width = 72;
  n.layers = 7;
  n.heads = 8;
  n.kv_heads = 4;
  n.head_dim = 10;
  n.experts = 13;
  n.top_k = 3;
  n.expert_width = 36;
  n.shared_experts = 1;
  n.dense_layers = 2;
  n.dense_width = 90;
  n.qk_norm = QkNorm::per_head;
  n.score = ScoreFunction::sigmoid;
  n.selection_bias = true;
  n.tie_embeddings = tied;
  return build_native_model(n);
}

// A run of 48 sequences a step.
inline RunSpec small_run() {
  RunSpec run;
  run.train.seq_len = 24;
  run.train.global_batch = 48;
  return run;
}

inline Request odd_on(int ranks) {
  Request request;
  request.model = odd_model();
  request.run = small_run();
  request.profile = shipped_profile("xeon_amx_2_cores");
  request.ranks = ranks;
  return request;
}

}  // namespace mw::test
