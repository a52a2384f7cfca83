// The counting sort of GPUs: the very source, run on the CPU.
#include "ops/gpu/counting_sort.h"  // with the stand-in of launch.h

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/rng.h"
#include "emulated/stream.h"

namespace mw::gpu {
namespace {

struct KeyAt {
  const int32_t* keys;
  int32_t operator()(int64_t i) const { return keys[i]; }
};
struct StorePlace {
  const int32_t* keys;
  int32_t* places;
  void operator()(int64_t i, int32_t key, int32_t place) const { places[i] = key == keys[i] && key >= 0 ? place : -1; }
};

// Every seventh item has no key.
void check(int64_t items, int64_t keys) {
  SCOPED_TRACE(testing::Message() << items << " items, " << keys << " keys");
  const RngKey rng = make_rng_key(3, "keys");
  std::vector<int32_t> key_of, order(static_cast<size_t>(items)), expected(static_cast<size_t>(items), -1);
  std::vector<int32_t> key_at(static_cast<size_t>(keys));
  std::vector<int64_t> expected_counts(static_cast<size_t>(keys)), counts(static_cast<size_t>(keys), -1);
  for (int64_t i = 0; i < items; ++i)
    key_of.push_back(i % 7 == 6 ? -1 : static_cast<int32_t>(bits_at(rng, static_cast<uint64_t>(i)) % keys));
  for (int64_t k = 0; k < keys; ++k) key_at[static_cast<size_t>(k)] = static_cast<int32_t>(keys - 1 - k);
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t i) { return key_of[static_cast<size_t>(i)] < 0; });
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return key_of[static_cast<size_t>(a)] < key_of[static_cast<size_t>(b)];
  });
  for (size_t place = 0; place < order.size(); ++place) {
    const auto item = static_cast<size_t>(order[place]);
    expected[item] = static_cast<int32_t>(place);
    ++expected_counts[static_cast<size_t>(keys - 1 - key_of[item])];
  }

  emulated::EmulatedStream emulated(counting_sort_bytes(items, keys));
  WorkspaceFrame frame(emulated.stream.workspace());
  const CountingSort sort = take_counting_sort(frame, items, keys);
  std::vector<int32_t> places(static_cast<size_t>(items), -2);
  sort_items(emulated.stream, sort, KeyAt{key_of.data()}, StorePlace{key_of.data(), places.data()}, key_at.data(),
             counts.data());
  EXPECT_EQ(places, expected);
  EXPECT_EQ(counts, expected_counts);
  EXPECT_EQ(*sort.total, std::ssize(order));
  int64_t first = 0;
  for (int64_t k = 0; k < keys; first += expected_counts[static_cast<size_t>(keys - 1 - k)], ++k)
    EXPECT_EQ(sort.first_k[k], first);
}

// Several chunks, each of several turns; more keys than threads and than shared memory holds.
TEST(CountingSortOfGpus, IsStable) {
  for (const auto& [items, keys] : {std::pair<int64_t, int64_t>{0, 3},
                                    {1, 1},
                                    {63, 2},
                                    {1025, 7},
                                    {9000, 128},
                                    {5000, 1500},
                                    {3000, 5000},
                                    {300000, 5}})
    check(items, keys);
}

}  // namespace
}  // namespace mw::gpu
