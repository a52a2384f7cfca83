// Tensors of more than 2^31 elements, where an index of 32 bits wraps. The rows of an operand repeat with a small
// period, so that each result must be that of a small call, row by row; the host never holds a large tensor.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "ops/device.h"
#include "support/op_case.h"

namespace mw::test {

inline constexpr int64_t kElements = int64_t{1} << 31, kFreeBytes = int64_t{24} << 30;
// No power of two is a multiple of the period, so that a wrapped index reads another row.
inline constexpr int64_t kPeriod = 640, kWidth = 4096, kRows = kElements / kWidth + 1000;

class LargeTensors : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "operands of 4 to 9 GiB would take minutes on a CPU";
    test_ = std::make_unique<TestStream>(2, size_t{2} << 30);
    const int64_t free = free_bytes(stream().device());
    if (free < kFreeBytes) GTEST_SKIP() << "needs " << kFreeBytes << " bytes of device memory, " << free << " are free";
  }
  Stream& stream() { return test_->stream; }

  // A tensor of `rows` rows (axis 0), of which row r is row r mod period of the small one.
  TensorView repeat(const Owned& small, int64_t rows) {
    TensorView view = small.view;
    view.shape[0] = rows;
    const auto bytes = static_cast<size_t>(view.bytes());
    memory_.push_back(reserve_on(stream().device())(bytes));
    memory_.back()->commit(bytes);
    std::byte* data = memory_.back()->data();
    view.data = data;
    size_t done = std::min(bytes, static_cast<size_t>(small.view.bytes()));
    stream().queue().copy(data, small.view.data, done);
    for (; done < bytes; done += std::min(done, bytes - done))
      stream().queue().copy(data + done, data, std::min(done, bytes - done));
    return view;
  }
  // A result of as many rows, in the shape of a small one, filled with what no operator writes.
  TensorView unwritten(const Owned& small, int64_t rows) {
    const TensorView& view = small.view;
    return repeat(make_output(view.dtype, {view.shape.begin(), view.shape.begin() + view.rank}), rows);
  }

  // A sum over rows, of which row r is row r mod period: `periods` times `whole`, over one period, and `rest`, over the
  // first rows of one.
  void expect_sum(const TensorView& sum, int64_t periods, const Owned& whole, const Owned& rest, double tolerance) {
    wait_for_device();
    const std::vector<float> of_whole = to_case_tensor(whole).values, of_rest = to_case_tensor(rest).values;
    std::vector<float> got(of_whole.size());
    std::vector<double> expected;
    stream().queue().copy(got.data(), sum.data, got.size() * sizeof(float));
    stream().wait();
    for (size_t i = 0; i < of_whole.size(); ++i)
      expected.push_back(static_cast<double>(periods) * static_cast<double>(of_whole[i]) +
                         static_cast<double>(of_rest[i]));
    EXPECT_LE(largest_error(got, expected), tolerance) << sum.describe();
  }

  // Row r of the result is row r mod period of the small one: at both ends, and around element 2^31. Bit for bit unless
  // there is a tolerance.
  void expect_repeats(const TensorView& large, const Owned& small, double tolerance = 0) {
    const int64_t rows = large.dim(0), period = small.view.dim(0), row_elements = large.numel() / rows;
    const int64_t row_bytes = row_elements * size_of(large.dtype), middle = std::min(rows, kElements / row_elements);
    wait_for_device();
    for (const int64_t first : {int64_t{0}, std::max<int64_t>(0, middle - period), rows - period}) {
      const int64_t count = std::min(2 * period, rows - first);
      Owned piece = make_output(large.dtype, {count, row_elements}),
            expected = make_output(large.dtype, {count, row_elements});
      stream().queue().copy(piece.view.data, static_cast<std::byte*>(large.data) + first * row_bytes,
                            static_cast<size_t>(count * row_bytes));
      stream().wait();
      const auto bytes = static_cast<size_t>(row_bytes);
      for (int64_t r = 0; r < count; ++r)
        std::memcpy(static_cast<std::byte*>(expected.view.data) + r * row_bytes,
                    static_cast<std::byte*>(small.view.data) + (first + r) % period * row_bytes, bytes);
      if (tolerance > 0) {
        const std::vector<float> wanted = to_case_tensor(expected).values;
        EXPECT_LE(largest_error(to_case_tensor(piece).values, {wanted.begin(), wanted.end()}), tolerance)
            << "rows from " << first << " of " << large.describe();
      } else {
        EXPECT_TRUE(piece.memory == expected.memory) << "rows from " << first << " of " << large.describe();
      }
    }
  }

 private:
  std::unique_ptr<TestStream> test_;
  std::vector<std::unique_ptr<Reservation>> memory_;
};

inline Owned random_rows(const char* name, DType dtype, std::vector<int64_t> shape = {kPeriod, kWidth}) {
  return to_operand(random_tensor(name, std::move(shape), dtype));
}

// Row r of a large tensor stands for row of(r) of another one: 32-bit indices, large and small.
struct Mirror {
  std::vector<int32_t> large, small;
};
inline Mirror mirrored_rows() {
  Mirror mirror;
  for (int64_t r = 0; r < kRows; ++r) mirror.large.push_back(static_cast<int32_t>(kRows - 1 - r));
  for (int64_t r = 0; r < kPeriod; ++r) mirror.small.push_back(static_cast<int32_t>((kRows - 1 - r) % kPeriod));
  return mirror;
}
inline DeviceVector<int32_t> on_device(const std::vector<int32_t>& values) { return {values.begin(), values.end()}; }
inline TensorView view_of(DeviceVector<int32_t>& values, std::initializer_list<int64_t> shape) {
  return {values.data(), DType::i32, shape};
}

}  // namespace mw::test
