#include "core/tensor_store.h"

#include <algorithm>
#include <cstdint>

#include "formats/helpers.h"

namespace mw::test {
namespace {

const std::vector<TensorSlot> kSlots = {
    {"a", DType::f32, {3, 5}, 0},  // 60 bytes, 64 in the block
    {"grow", DType::bf16, {10, 2, 8}, 1000000},
    {"b", DType::u8, {1}, 0},  // 1 byte, 64 in the block
    {"rows_only", DType::i32, {4}, 100},
    {"none", DType::f32, {0, 5}, 0},
    {"c", DType::i64, {9}, 0},  // 72 bytes, 128 in the block
};

bool is_zero(TensorView t) {
  const auto* bytes = static_cast<const unsigned char*>(t.data);
  return std::all_of(bytes, bytes + t.bytes(), [](unsigned char b) { return b == 0; });
}

TEST(TensorStore, LaysFixedTensorsBackToBack) {
  TensorStore store(kSlots);
  int64_t sum = 0;
  for (const TensorSlot& slot : kSlots)
    if (slot.max_rows == 0) sum += slot.bytes();
  EXPECT_EQ(sum, 64 + 64 + 0 + 128);
  EXPECT_EQ(store.fixed_bytes(), sum);
  const auto address = [&](const char* name) { return reinterpret_cast<uintptr_t>(store.fixed(name).data); };
  EXPECT_EQ(address("b") - address("a"), 64u);
  EXPECT_EQ(address("c") - address("a"), 128u);
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_EQ(address(name) % kTensorAlignment, 0u);
    EXPECT_TRUE(is_zero(store.fixed(name)));
  }
  EXPECT_EQ(store.fixed("a").describe(), "f32[3, 5]");
  EXPECT_EQ(store.fixed("none").numel(), 0);
}

TEST(TensorStore, GrowsWithoutMoving) {
  TensorStore store(kSlots);
  GrowingTensor rows = store.rows("grow");
  const TensorView first = rows.take(10);
  EXPECT_EQ(first.describe(), "bf16[10, 2, 8]");
  EXPECT_EQ(store.arena_grows(), 0);
  first.as<bf16>()[159].bits = 0x1234;
  int64_t grows = 0, committed = rows.committed_rows();
  for (const int64_t count : {11, 12, 13, 5000, 5001, 600000, 1000000}) {
    const TensorView view = rows.take(count);
    EXPECT_EQ(view.data, first.data);
    EXPECT_EQ(view.dim(0), count);
    EXPECT_EQ(first.as<bf16>()[159].bits, 0x1234);
    view.as<bf16>()[view.numel() - 1].bits = 1;  // the last row is there
    grows += count > committed ? 1 : 0;
    EXPECT_EQ(rows.grows(), grows) << count;
    EXPECT_GE(rows.committed_rows(), count);
    EXPECT_LE(rows.committed_rows(), 1000000);
    committed = rows.committed_rows();
  }
  EXPECT_EQ(store.arena_grows(), grows);
  EXPECT_EQ(rows.committed_rows(), 1000000);                // the reserve stops at the bound
  EXPECT_EQ(store.rows("grow").committed_rows(), 1000000);  // copies see the same memory
  EXPECT_EQ(rows.take(3).data, first.data);                 // fewer rows again
  EXPECT_EQ(rows.take(2, 3).data, first.at(2).data);
  EXPECT_EQ(rows.take(2, 3).dim(0), 3);
  EXPECT_EQ(rows.grows(), grows);
  EXPECT_EQ(store.peak_growing_bytes(), 1000000 * 32);
  error_of([&] { rows.take(1000001); }, Exit::internal);
  error_of([&] { rows.take(-1); }, Exit::internal);
}

// Memory with room for so many bytes.
class ScarceMemory : public Reservation {
 public:
  ScarceMemory(size_t bytes, size_t room) : memory_(reserve_host(bytes)), room_(room) {}
  std::byte* data() const override { return memory_->data(); }
  size_t committed() const override { return memory_->committed(); }
  size_t reserved() const override { return memory_->reserved(); }
  void commit(size_t bytes) override {
    if (bytes > room_) fail(Exit::memory, "no more", "");
    memory_->commit(bytes);
  }
  void zero(size_t bytes) override { memory_->zero(bytes); }

 private:
  std::unique_ptr<Reservation> memory_;
  size_t room_;
};

// What is taken beyond the rows that are needed is left where there is no room for it.
TEST(TensorStore, GrowsToTheLastRowThatFits) {
  const auto scarce = [](size_t bytes) { return std::make_unique<ScarceMemory>(bytes, size_t{32} * 6400); };
  TensorStore store({{"grow", DType::bf16, {10, 2, 8}, 100000}}, scarce);
  GrowingTensor rows = store.rows("grow");
  EXPECT_EQ(rows.take(6400).dim(0), 6400);
  EXPECT_EQ(rows.committed_rows(), 6400);
  error_of([&] { rows.take(6401); }, Exit::memory);
  EXPECT_EQ(rows.committed_rows(), 6400);
}

TEST(TensorStore, GrownMemoryIsZero) {
  TensorStore store(kSlots);
  EXPECT_TRUE(is_zero(store.rows("grow").take(1000000)));
}

TEST(TensorStore, TakesNoRows) {
  TensorStore store({{"r", DType::f32, {0, 4}, 8}});
  GrowingTensor rows = store.rows("r");
  EXPECT_EQ(rows.take(0).numel(), 0);
  EXPECT_EQ(rows.grows(), 0);
  EXPECT_EQ(store.peak_growing_bytes(), 0);
  rows.take(8);
  EXPECT_EQ(rows.grows(), 1);
}

TEST(TensorStore, GivesRowsOfFixedTensors) {
  TensorStore store(kSlots);
  GrowingTensor rows = store.rows("a");
  EXPECT_EQ(rows.committed_rows(), 3);
  EXPECT_EQ(rows.take(2).describe(), "f32[2, 5]");
  EXPECT_EQ(rows.take(3).data, store.fixed("a").data);
  EXPECT_EQ(rows.grows(), 0);
  error_of([&] { rows.take(4); }, Exit::internal);
}

TEST(TensorStore, KnowsWhatWasNeverUsed) {
  TensorStore store(kSlots);
  store.fixed("a");
  store.rows("grow");
  EXPECT_TRUE(store.has("c"));  // asking is not using
  EXPECT_EQ(store.unused(), (std::vector<std::string>{"b", "c", "none", "rows_only"}));
}

TEST(TensorStore, RefusesBrokenTables) {
  TensorStore store(kSlots);
  EXPECT_TRUE(contains(error_of([&] { store.fixed("absent"); }, Exit::internal), "absent"));
  EXPECT_TRUE(contains(error_of([&] { store.rows("absent"); }, Exit::internal), "absent"));
  EXPECT_TRUE(contains(error_of([&] { store.fixed("grow"); }, Exit::internal), "grow"));
  error_of([] { TensorStore({{"x", DType::f32, {1}, 0}, {"x", DType::f32, {1}, 0}}); }, Exit::internal);
  error_of([] { TensorStore({{"x", DType::f32, {1 << 20, 4}, 8}}); }, Exit::internal);  // more at start than the bound
  TensorStore empty({});
  EXPECT_EQ(empty.fixed_bytes(), 0);
}

TEST(TensorStore, TooMuchIsAMemoryError) {
  const std::string message = error_of(
      [] {
        TensorStore({{"x", DType::f32, {1, 1 << 20}, int64_t{1} << 36}});
      },
      Exit::memory);
  EXPECT_TRUE(contains(message, "PiB") || contains(message, "TiB")) << message;
  error_of([] { TensorStore({{"x", DType::f32, {int64_t{1} << 58}, 0}}); }, Exit::memory);
}

TEST(Reservation, CommitsPagesOnDemand) {
  const std::unique_ptr<Reservation> memory = reserve_host(10 << 20);
  Reservation& range = *memory;
  EXPECT_EQ(range.committed(), 0u);
  EXPECT_GE(range.reserved(), size_t{10} << 20);
  range.commit(1);
  const size_t page = range.committed();
  EXPECT_GT(page, 0u);
  std::byte* const data = range.data();
  range.commit(0);
  EXPECT_EQ(range.committed(), page);  // never shrinks
  range.commit(10 << 20);
  EXPECT_EQ(range.data(), data);
  data[(10 << 20) - 1] = std::byte{1};
  error_of([&] { range.commit(range.reserved() + 1); }, Exit::internal);
}

}  // namespace
}  // namespace mw::test
