#include "ops/index.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/op_case.h"

namespace mw::test {
namespace {

template <class T>
TensorView view_of(DeviceVector<T>& values) {
  return {values.data(), DTypeOf<T>::value, {static_cast<int64_t>(values.size())}};
}

std::vector<int32_t> filled(const std::vector<IndexRun>& runs, int64_t count) {
  TestStream test;
  DeviceVector<int32_t> out(static_cast<size_t>(count), 99);
  fill_index(test.stream, runs, view_of(out));
  wait_for_device();
  return {out.begin(), out.end()};
}

TEST(FillIndex, WritesRunsAndMarksTheRest) {
  EXPECT_EQ(filled({{1, 7, 2}, {3, 0, 0}, {3, 20, 1}, {6, 5, 1}}, 8),
            (std::vector<int32_t>{-1, 7, 8, 20, -1, -1, 5, -1}));
  EXPECT_EQ(filled({{1, 7, 3, 0}, {5, 2, 2}}, 7), (std::vector<int32_t>{-1, 7, 7, 7, -1, 2, 3}));  // one that repeats
  EXPECT_EQ(filled({}, 2), (std::vector<int32_t>{-1, -1}));
  EXPECT_EQ(filled({{0, 3, 0}}, 0), std::vector<int32_t>());
}

TEST(FillIndex, LongRunsCrossTheBlocksOfThreads) {
  constexpr int64_t kRows = 50000;
  std::vector<IndexRun> runs;
  std::vector<int32_t> expected(kRows, -1);
  for (int64_t to = 3, i = 0; to < kRows; ++i) {
    const int64_t count = std::min<int64_t>(kRows - to, (i * 7919) % 20011);
    runs.push_back({to, 10 * i, count});
    std::iota(expected.begin() + to, expected.begin() + to + count, static_cast<int32_t>(10 * i));
    to += count + i % 2;
  }
  EXPECT_EQ(filled(runs, kRows), expected);
}

TEST(FillIndex, RefusesRunsOutOfOrderAndBeyondTheEnd) {
  for (const std::vector<IndexRun>& runs :
       {std::vector<IndexRun>{{2, 0, 2}, {3, 0, 1}}, {{6, 0, 3}}, {{0, 0, -1}}, {{0, -1, 1}}, {{0, INT32_MAX, 1}}})
    EXPECT_THROW(filled(runs, 8), Error);
}

TEST(GatherValues, TakesWhatTheIndexNames) {
  TestStream test;
  DeviceVector<float> numbers{0.5f, 1.5f, 2.5f}, chosen(4, 9.0f);
  DeviceVector<int32_t> ids{10, 11, 12}, index{2, -1, 0, 2};
  gather_values(test.stream, view_of(numbers), view_of(index), view_of(chosen));
  gather_values(test.stream, view_of(ids), view_of(index), view_of(index));  // in place
  wait_for_device();
  EXPECT_EQ(chosen, (DeviceVector<float>{2.5f, 0.0f, 0.5f, 2.5f}));
  EXPECT_EQ(index, (DeviceVector<int32_t>{12, -1, 10, 12}));
  EXPECT_THROW(gather_values(test.stream, view_of(ids), view_of(index), view_of(chosen)), Error);
}

TEST(ScatterValues, WritesWhereTheIndexPointsAndLeavesTheRest) {
  TestStream test;
  DeviceVector<float> numbers{0.5f, 7.0f, 1.5f}, all(4, 9.0f);
  DeviceVector<int32_t> index{3, -1, 1};
  scatter_values(test.stream, view_of(numbers), view_of(index), view_of(all));
  wait_for_device();
  EXPECT_EQ(all, (DeviceVector<float>{9.0f, 1.5f, 9.0f, 0.5f}));
  DeviceVector<float> fewer(2);
  EXPECT_THROW(scatter_values(test.stream, view_of(fewer), view_of(index), view_of(all)), Error);
}

}  // namespace
}  // namespace mw::test
