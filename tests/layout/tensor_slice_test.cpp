// Parts of tensors: the elements that two of them share, against a walk over every element.
#include "layout/tensor_slice.h"

#include <gtest/gtest.h>

#include <random>

namespace mw::test {
namespace {

// The global element behind each element of a slice, by counting coordinates.
std::vector<int64_t> elements_of(const std::vector<int64_t>& shape, const TensorSlice& slice) {
  int64_t total = 1, inner = 1;
  for (const int64_t n : shape) total *= n;
  for (size_t i = static_cast<size_t>(slice.axis) + 1; i < shape.size(); ++i) inner *= shape[i];
  std::vector<int64_t> box;
  for (int64_t at = 0; at < total; ++at) {
    const int64_t entry = at / inner % shape[static_cast<size_t>(slice.axis)];
    if (entry >= slice.begin && entry < slice.begin + slice.count) box.push_back(at);
  }
  EXPECT_EQ(static_cast<int64_t>(box.size()), box_elements(shape, slice));
  return {box.begin() + slice.first, box.begin() + slice.first + slice.size};
}

class Random {
 public:
  int64_t from(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  TensorSlice slice(const std::vector<int64_t>& shape) {
    const int axis = static_cast<int>(from(0, static_cast<int64_t>(shape.size()) - 1));
    const int64_t extent = shape[static_cast<size_t>(axis)], begin = from(0, extent - 1);
    TensorSlice s = whole_box(shape, axis, begin, from(1, extent - begin));
    if (from(0, 2) == 0) return s;
    const int64_t box = s.size;
    s.first = from(0, box);
    s.size = from(0, box - s.first);
    return s;
  }

 private:
  std::mt19937_64 engine_{11};
};

TEST(TensorSlice, SharesWhatAWalkOverEveryElementFinds) {
  Random random;
  int64_t shared = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::vector<int64_t> shape;
    for (int64_t rank = random.from(1, 4); rank > 0; --rank) shape.push_back(random.from(1, 6));
    const TensorSlice a = random.slice(shape), b = random.slice(shape);
    const std::vector<int64_t> of_a = elements_of(shape, a), of_b = elements_of(shape, b);
    std::vector<std::pair<int64_t, int64_t>> expected, got;
    for (size_t i = 0, j = 0; i < of_a.size() && j < of_b.size();) {
      if (of_a[i] == of_b[j]) expected.emplace_back(i, j);
      if (of_a[i] < of_b[j]) ++i;
      else ++j;
    }
    for_each_shared_run(shape, a, b, [&](int64_t a_at, int64_t b_at, int64_t count) {
      EXPECT_GT(count, 0);
      for (int64_t k = 0; k < count; ++k) got.emplace_back(a_at + k, b_at + k);
    });
    ASSERT_EQ(got, expected) << "trial " << trial;
    shared += static_cast<int64_t>(got.size());
  }
  EXPECT_GT(shared, 10000);
}

TEST(TensorSlice, RunsAreAsLongAsTheyCanBe) {
  const std::vector<int64_t> shape = {4, 6, 5};
  int runs = 0;
  const auto count = [&](int64_t, int64_t, int64_t) { ++runs; };
  for_each_shared_run(shape, whole_tensor(shape), whole_box(shape, 0, 1, 2), count);
  EXPECT_EQ(runs, 1);
  runs = 0;
  for_each_shared_run(shape, whole_tensor(shape), whole_box(shape, 1, 2, 3), count);
  EXPECT_EQ(runs, 4);
}

TEST(TensorSlice, IsCutIntoParts) {
  const std::vector<int64_t> shape = {4, 6, 5};
  const TensorSlice slice{1, 2, 3, 7, 11};
  EXPECT_EQ(cut_slice(slice, 11), std::vector<TensorSlice>{slice});
  EXPECT_EQ(cut_slice(slice, 4), (std::vector<TensorSlice>{{1, 2, 3, 7, 4}, {1, 2, 3, 11, 4}, {1, 2, 3, 15, 3}}));
  EXPECT_TRUE(cut_slice({1, 2, 3, 7, 0}, 4).empty());
}

TEST(TensorSlice, OfElementsHeldOfSeveralPieces) {
  const std::vector<int64_t> shape = {7, 3};
  const std::vector<SlicePiece> pieces = {{0, 5, 0, 2}, {0, 1, 2, 1}, {0, 3, 3, 1}};  // entries 5 6 1 3
  const auto all = held_slices(shape, pieces, {0, 12});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].slice, (TensorSlice{0, 5, 2, 0, 6}));
  EXPECT_EQ(all[2].slice, (TensorSlice{0, 3, 1, 0, 3}));
  EXPECT_EQ(all[2].at, 9);
  const auto part = held_slices(shape, pieces, {4, 6});  // from inside the first piece into the last
  ASSERT_EQ(part.size(), 3u);
  EXPECT_EQ(part[0].slice, (TensorSlice{0, 5, 2, 4, 2}));
  EXPECT_EQ(part[0].at, 0);
  EXPECT_EQ(part[1].slice, (TensorSlice{0, 1, 1, 0, 3}));
  EXPECT_EQ(part[1].at, 2);
  EXPECT_EQ(part[2].slice, (TensorSlice{0, 3, 1, 0, 1}));
  EXPECT_EQ(part[2].at, 5);
  EXPECT_TRUE(held_slices(shape, pieces, {6, 0}).empty());
  const auto columns = held_slices(shape, {{1, 1, 0, 2}}, {2, 5});
  ASSERT_EQ(columns.size(), 1u);
  EXPECT_EQ(columns[0].slice, (TensorSlice{1, 1, 2, 2, 5}));
}

}  // namespace
}  // namespace mw::test
