#include "ops/device.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/tensor_store.h"
#include "ops/elementwise.h"
#include "support/op_case.h"
#include "support/test_device.h"

namespace mw::test {
namespace {

// What is written is what the next operator reads, in memory of either kind.
TEST(Device, WritesReachItsArenas) {
  const Device device{device_kind(), 0};
  for (const Reserve& reserve : {arenas_of(device), host_arenas_of(device)})
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{77}, int64_t{3} << 20}) {
      TestStream test(2);
      TensorStore store({{"x", DType::f32, {count}, 0}, {"y", DType::f32, {count}, 0}}, reserve);
      const TensorView x = store.fixed("x"), y = store.fixed("y");
      std::vector<float> values(static_cast<size_t>(count));
      for (const float first : {1.0f, 5.0f}) {
        std::iota(values.begin(), values.end(), first);
        const size_t half = values.size() / 2;
        write_to(device, x.as<float>() + half, values.data() + half, 4 * (values.size() - half));
        write_to(device, x.data, values.data(), 4 * half);
        finish_writes(device);
        add(test.stream, x, x, y);
        wait_for_device();
        for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(y.as<float>()[i], 2 * values[i]) << i;
      }
    }
}

// What is written may change and be gone at once, however much is under way: several at a time, more than fits a stage.
void expect_writes_take_their_bytes_at_once(Stream stream) {
  constexpr int64_t kMost = 3 << 18;  // floats: 3 MiB
  const std::vector<int64_t> counts{1, 77, (1 << 18) - 5, 1 << 17, 0, kMost, 9, 1 << 18};
  std::vector<TensorSlot> slots{{"busy", DType::f32, {int64_t{1} << 24}, 0}};
  for (size_t i = 0; i < counts.size(); ++i) slots.push_back({std::to_string(i), DType::f32, {counts[i]}, 0});
  TensorStore store(slots, arenas_of(stream.device()));
  const TensorView busy = store.fixed("busy");
  fill_zero(stream, busy);
  for (int i = 0; i < 50; ++i) add(stream, busy, busy, busy);
  for (size_t i = 0; i < counts.size(); ++i) {
    std::vector<float> values(static_cast<size_t>(counts[i]), static_cast<float>(i) + 1);
    write_values<float>(stream, values, store.fixed(std::to_string(i)));
    std::fill(values.begin(), values.end(), -1.0f);
  }
  for (size_t i = 0; i < counts.size(); ++i)
    EXPECT_EQ(read_values<float>(stream, store.fixed(std::to_string(i))),
              std::vector<float>(static_cast<size_t>(counts[i]), static_cast<float>(i) + 1));
}

TEST(Device, WritesTakeTheirBytesAtOnce) { expect_writes_take_their_bytes_at_once(make_stream(2)); }

TEST(Device, StagedWritesTakeTheirBytesAtOnce) {
  expect_writes_take_their_bytes_at_once(make_stream(2, {.stage_writes = true}));
}

TEST(Device, RefusesProcessorsThatItCannotSetApart) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU has no queue to limit";
  for (const int processors : {7, 130, 1 << 20}) {  // pairs at least; Hopper takes multiples of 8
    try {
      make_stream(1, {.processors = processors});
      ADD_FAILURE() << processors << " were accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), device_kind() == DeviceKind::cuda ? Exit::config : Exit::unsupported) << error.what();
      EXPECT_FALSE(error.hint().empty());
    }
  }
}

// Reads are there after the next wait, in the order of the queue: several at a time, none, more than land together.
TEST(Device, ReadsAreThereAfterAWait) {
  TestStream test(2);
  Stream& stream = test.stream;
  constexpr int64_t kMost = 3 << 18;  // floats: 3 MiB
  TensorStore store({{"x", DType::f32, {kMost}, 0}}, arenas_of(stream.device()));
  const TensorView x = store.fixed("x");
  std::vector<float> values(static_cast<size_t>(kMost));
  std::iota(values.begin(), values.end(), 1.0f);
  write_values<float>(stream, values, x);
  std::vector<std::vector<float>> read, expected;
  for (const int64_t count :
       {int64_t{0}, int64_t{1}, int64_t{77}, int64_t{1} << 18, (int64_t{1} << 18) - 5, kMost, int64_t{9}}) {
    read.emplace_back(static_cast<size_t>(count), -1.0f);
    expected.emplace_back(values.begin(), values.begin() + count);
  }
  for (std::vector<float>& into : read) stream.queue().read(into.data(), x.data, into.size() * sizeof(float));
  fill_zero(stream, x);  // behind them
  stream.wait();
  EXPECT_EQ(read, expected);
  EXPECT_EQ(read_values<float>(stream, x), std::vector<float>(values.size(), 0.0f));
}

// Waiting for a mark hands out the reads in front of it. Those behind it may still be under way, and come later.
TEST(Device, ReadsBehindAMarkComeLater) {
  TestStream test(2);
  if (!on_gpu()) GTEST_SKIP() << "a CPU reads at once";
  DeviceQueue& queue = test.stream.queue();
  const Owned x = make_output(DType::f32, {1000});
  std::vector<float> values(1000, 1.0f), before(1000, -1.0f), behind(1000, -1.0f);
  write_values<float>(test.stream, values, x.view);
  queue.read(before.data(), x.view.data, before.size() * sizeof(float));
  const DeviceQueue::Mark mark = queue.mark();
  fill_zero(test.stream, x.view);
  queue.read(behind.data(), x.view.data, behind.size() * sizeof(float));
  queue.wait_until(mark);
  EXPECT_EQ(before, values);
  EXPECT_EQ(behind, std::vector<float>(1000, -1.0f));
  queue.wait();
  EXPECT_EQ(before, values);
  EXPECT_EQ(behind, std::vector<float>(1000, 0.0f));
}

}  // namespace
}  // namespace mw::test
