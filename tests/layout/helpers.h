// Shared by the tests of this room: what a reader of untrusted text did with it, and small models.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/model_spec.h"
#include "formats/helpers.h"
#include "layout/plan.h"

namespace mw::test {

// The Error that `work` gave, with a message and a hint; nothing on success. Whatever else it throws fails the test.
template <class Work>
std::optional<Error> refusal_of(Work work) {
  try {
    work();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()), "");
    EXPECT_NE(e.hint(), "") << e.what();
    for (const char c : std::string(e.what())) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20) << e.what();
    return e;
  } catch (const std::exception& e) {
    ADD_FAILURE() << "not an mw::Error: " << e.what();
  }
  return std::nullopt;
}

// As refusal_of, and the error must have one of these codes.
template <class Work>
std::optional<Error> refusal_of(Work work, std::initializer_list<Exit> allowed, const std::string& what) {
  const std::optional<Error> error = refusal_of(work);
  if (error) {
    bool listed = false;
    for (const Exit code : allowed) listed = listed || error->code() == code;
    EXPECT_TRUE(listed) << "exit code " << static_cast<int>(error->code()) << ": " << error->what() << "\nfor " << what;
  }
  return error;
}

inline std::string read_config(const std::string& name) {
  return read_raw(std::string(MOEWRIGHT_SOURCE_DIR) + "/tests/data/configs/" + name + ".json");
}

// Two layers, the first dense; shared experts; four heads and two key/value heads.
inline NativeModel small_native() {
  NativeModel n;
  n.vocab = 100;
  n.width = 48;
  n.layers = 2;
  n.heads = 4;
  n.kv_heads = 2;
  n.head_dim = 10;
  n.experts = 6;
  n.top_k = 3;
  n.expert_width = 20;
  n.shared_experts = 2;
  n.dense_layers = 1;
  n.dense_width = 70;
  return n;
}

// The same with latent attention, as DeepSeek-V3 has it.
inline NativeModel small_latent_native() {
  NativeModel n = small_native();
  n.kv_heads = n.head_dim = 0;
  n.attention = AttentionKind::latent;
  n.q_rank = 28;
  n.kv_rank = 24;
  n.nope_dim = 8;
  n.rope_dim = 6;
  n.value_dim = 7;
  return n;
}

inline RunSpec small_run() {
  RunSpec run;
  run.train.seq_len = 16;
  run.train.global_batch = 8;
  run.train.micro_batches = 2;
  return run;
}

inline Plan small_plan(const RunSpec& run, int world = 1, int rank = 0, const Platform& platform = {}) {
  return make_plan(build_native_model(small_native()), run, world, rank, platform);
}

// The row of this name, which must be there once.
inline ByteRow row_of(const std::vector<ByteRow>& rows, const std::string& name) {
  const ByteRow* found = nullptr;
  for (const ByteRow& row : rows) {
    if (row.name != name) continue;
    EXPECT_EQ(found, nullptr) << name << " stands twice";
    found = &row;
  }
  EXPECT_NE(found, nullptr) << name << " is not in the table";
  return found == nullptr ? ByteRow{} : *found;
}

}  // namespace mw::test
