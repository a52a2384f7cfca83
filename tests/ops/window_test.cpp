// Sliding windows: the mask, and attention under it.
#include "ops/window.h"

#include "ops/attention_problem.h"

namespace mw::test {
namespace {

// starts: beginnings of documents in the sequence of each token, or empty.
std::vector<int> first_keys(Stream& stream, int64_t tokens, int64_t seq_len, int64_t window,
                            const std::vector<int>& starts, int64_t past = 0) {
  const Owned start = starts.empty() ? Owned{} : to_operand(integer_tensor({tokens}, starts)),
              first = make_output(DType::i32, {tokens});
  first_keys_of_window(stream, seq_len, window, start.view, first.view, past);
  const std::vector<float> values = to_case_tensor(first).values;
  return {values.begin(), values.end()};
}

TEST(Window, SeesSoManyKeysOfItsDocument) {
  TestStream test;
  constexpr int64_t kLength = 30, kTokens = 3 * kLength;
  std::vector<int> starts;
  for (int64_t t = 0; t < kTokens; ++t) starts.push_back(static_cast<int>(t % kLength / 7 * 7));
  for (const int64_t window : {1, 2, 7, 29, 30, 1000})
    for (const std::vector<int>& documents : {std::vector<int>{}, starts}) {
      const std::vector<int> first = first_keys(test.stream, kTokens, kLength, window, documents);
      for (int64_t t = 0; t < kTokens; ++t) {
        int64_t key = t % kLength;  // the first that is still seen, found by walking back
        const int64_t begin = documents.empty() ? 0 : documents[static_cast<size_t>(t)];
        while (key > begin && t % kLength - (key - 1) < window) --key;
        ASSERT_EQ(first[static_cast<size_t>(t)], key) << window << " " << t;
      }
    }
}

// Tokens that follow others see what the same tokens of a whole sequence do.
TEST(Window, FollowsEarlierTokens) {
  TestStream test;
  const std::vector<int> whole = first_keys(test.stream, 30, 30, 7, {});
  const std::vector<int> first = first_keys(test.stream, 8, 4, 7, {0, 0, 0, 0, 25, 25, 25, 25}, 26);
  EXPECT_TRUE(std::equal(whole.begin() + 26, whole.end(), first.begin()));
  EXPECT_EQ(std::vector<int>(first.begin() + 4, first.end()), (std::vector<int>{25, 25, 25, 25}));
}

// Shorter than a tile of 64, on its border, longer, and longer than the sequence.
std::vector<Problem> window_problems(Stream& stream) {
  std::vector<Problem> problems;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t window : {1, 5, 64, 100, 500}) {
      problems.push_back(make_problem(2, 200, 4, 2, 16, 24, dtype));
      Problem& problem = problems.back();
      problem.shape.documents = true;
      problem.first = first_keys(stream, 400, 200, window, {});
    }
  return problems;
}

TEST(Window, AttentionMatchesReference) {
  TestStream test;
  for (const Problem& problem : window_problems(test.stream)) {
    check_forward(make_case(problem), test.stream);
    check_backward(problem, test.stream);
  }
}

TEST(Window, AttentionGradientMatchesFiniteDifferences) {
  TestStream test;
  Problem problem = make_problem(2, 70, 2, 1, 8, 6, DType::f32);
  problem.shape.documents = true;
  problem.first = first_keys(test.stream, 140, 70, 9, {});
  check_gradient(make_case(problem), test.stream);
}

}  // namespace
}  // namespace mw::test
