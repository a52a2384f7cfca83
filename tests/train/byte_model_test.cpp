#include "train/loop/byte_model.h"

#include <cmath>

#include "train/helpers.h"

namespace mw::test {
namespace {

// P(next) after one byte, and after two, from what windows cost.
double order1(const ByteCountModel& model, int32_t context, int32_t next) {
  return std::exp(-model.window_loss(std::vector<int32_t>{context}, std::vector<int32_t>{next}));
}
double order2(const ByteCountModel& model, int32_t before, int32_t context, int32_t next) {
  const std::vector<int32_t> ids = {before, context}, labels = {context, next};
  return std::exp(-model.window_loss(ids, labels)) / order1(model, before, context);
}

ByteCountModel random_model(size_t size) {
  std::vector<int32_t> tokens(size);
  const RngKey key = make_rng_key(1, "bytes");
  for (size_t i = 0; i < size; ++i) tokens[i] = static_cast<int32_t>(bits_at(key, i) % 7 * 40 + (i % 3));
  return ByteCountModel(MemoryTokens(tokens));
}

TEST(ByteCountModel, ProbabilitiesSumToOne) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{500}, size_t{70000}}) {
    const ByteCountModel model = random_model(size);
    for (const int32_t context : {0, 1, 40, 41, 200, 255}) {
      double sum1 = 0, sum2 = 0;
      for (int32_t next = 0; next < 256; ++next) {
        sum1 += order1(model, context, next);
        sum2 += order2(model, 81, context, next);
      }
      EXPECT_NEAR(sum1, 1, 1e-9) << size << " tokens, after " << context;
      EXPECT_NEAR(sum2, 1, 1e-9) << size << " tokens, after 81 " << context;
    }
  }
}

TEST(ByteCountModel, LearnsWhatFollowsTwoBytes) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < 1000; ++i) tokens.insert(tokens.end(), {'a', 'b', 'c', 'x', 'b', 'd'});
  const ByteCountModel model{MemoryTokens(tokens)};
  EXPECT_GT(order2(model, 'a', 'b', 'c'), 0.99);
  EXPECT_GT(order2(model, 'x', 'b', 'd'), 0.99);
  EXPECT_NEAR(order1(model, 'b', 'c'), 0.5, 0.01);
  EXPECT_GT(order2(model, 'q', 'q', 'q'), 0);  // never seen, never impossible
}

TEST(ByteCountModel, LossIsTheSumOverTheWindow) {
  const ByteCountModel model = random_model(5000);
  const std::vector<int32_t> ids = {0, 41, 82, 1}, labels = {41, 82, 1, 42};
  double sum = -std::log(order1(model, 0, 41));
  for (size_t t = 1; t < ids.size(); ++t) sum -= std::log(order2(model, ids[t - 1], ids[t], labels[t]));
  EXPECT_NEAR(model.window_loss(ids, labels), sum, 1e-9);
}

}  // namespace
}  // namespace mw::test
