// Shared by the tests of this room: tokens from memory, and batches of them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/rng.h"
#include "engine/engine.h"
#include "engine/step.h"
#include "formats/helpers.h"
#include "formats/tokens/token_file.h"
#include "support/small_run.h"

namespace mw::test {

// Tokens that a test made up.
class MemoryTokens final : public TokenSource {
 public:
  explicit MemoryTokens(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}
  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
  void read(int64_t first, std::span<int32_t> out) const override {
    check_range(first, out.size());
    std::copy_n(tokens_.begin() + first, out.size(), out.begin());
  }
  std::string describe() const override { return "tokens of a test"; }

 private:
  std::vector<int32_t> tokens_;
};

// 0, 1, 2, ...: a token tells where it stood.
inline std::unique_ptr<TokenSource> counting_tokens(int64_t size) {
  std::vector<int32_t> tokens(static_cast<size_t>(size));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  return std::make_unique<MemoryTokens>(std::move(tokens));
}

// Random tokens for every micro-batch of a plan; each token's label is the one after it.
inline std::vector<MicroBatch> random_batches(const Plan& plan) {
  std::vector<MicroBatch> batches;
  for (int64_t j = 0; j < plan.run.train.micro_batches; ++j) {
    MicroBatch batch{{}, {}, plan.batch.sequences, plan.batch.seq_len};
    const RngKey key = make_rng_key(5, fmt::format("batch.{}", j));
    const auto token = [&](int64_t i) {
      return static_cast<int32_t>(bits_at(key, static_cast<uint64_t>(i)) % static_cast<uint64_t>(plan.model.vocab));
    };
    for (int64_t t = 0; t < plan.batch.tokens(); ++t) {
      batch.ids.push_back(token(t));
      batch.labels.push_back(token(t + 1));
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

// Initial weights, and one update from random batches.
inline void take_first_step(Engine& engine) {
  engine.params.initialise(3, engine.stream);
  engine.params.repack(engine.stream);
  apply_update(engine, accumulate_gradients(engine, stage(engine, random_batches(engine.plan))), {1e-3, 1});
}

}  // namespace mw::test
