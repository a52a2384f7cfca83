// Softmax cross-entropy of GPUs: the very source, run on the CPU, against plain loops.
#include "ops/gpu/cross_entropy.cu"  // with the stand-in of launch.h

#include <gtest/gtest.h>

#include <vector>

#include "core/rng.h"
#include "emulated/shifted.h"
#include "emulated/stream.h"

namespace mw::gpu {
namespace {

struct Case {
  int64_t columns;
  int kept;  // logits that a block has room to keep
  int64_t shift = 0;
};

// The first label, one in the middle, the last, none, and a wrong one.
std::vector<int32_t> labels_of(int64_t columns) {
  return {0, static_cast<int32_t>(columns / 2), static_cast<int32_t>(columns - 1), kIgnoreLabel,
          static_cast<int32_t>(columns)};
}

template <class L, class T>
void check(const Case& c, bool in_place = false) {
  SCOPED_TRACE(testing::Message() << c.columns << " columns, " << c.kept << " kept, shifted by " << c.shift);
  shared_bytes_of_processor = kRowsOfProcessor * (c.kept * static_cast<int>(sizeof(L)) + int{kOtherSharedBytes});
  const auto dtype_of = [](auto type) { return std::is_same_v<decltype(type), float> ? DType::f32 : DType::bf16; };
  constexpr DType kLogits = dtype_of(L()), kType = dtype_of(T());
  constexpr float kScale = 0.5f;
  std::vector<int32_t> labels = labels_of(c.columns);
  const int64_t rows = std::ssize(labels), columns = c.columns;
  const RngKey key = make_rng_key(7, "logits");
  emulated::Shifted<L> logits(rows * columns, c.shift);
  std::vector<double> x;
  for (int64_t i = 0; i < rows * columns; ++i) {
    logits.data()[i] = from_float<L>(4 * normal_at(key, static_cast<uint64_t>(i)));
    x.push_back(to_float(logits.data()[i]));
  }
  std::vector<float> loss(static_cast<size_t>(rows), -1.0f);
  emulated::Shifted<T> apart(rows * columns, c.shift);
  T* const d = in_place ? reinterpret_cast<T*>(logits.data()) : apart.data();
  emulated::EmulatedStream emulated(64);
  gpu::cross_entropy(emulated.stream, {logits.data(), kLogits, {rows, columns}}, {labels.data(), DType::i32, {rows}},
                     kScale, {loss.data(), DType::f32, {rows}}, {d, kType, {rows, columns}});
  for (int64_t row = 0; row < rows; ++row) {
    const double* const own = x.data() + row * columns;
    const int32_t label = labels[static_cast<size_t>(row)];
    const bool ignored = label == kIgnoreLabel, wrong = label == columns;
    double sum = 0;
    for (int64_t i = 0; i < columns; ++i) sum += std::exp(own[i]);
    const double expected = ignored ? 0 : wrong ? NAN : std::log(sum) - own[label];
    if (wrong) EXPECT_TRUE(std::isnan(loss[static_cast<size_t>(row)]));
    else EXPECT_NEAR(loss[static_cast<size_t>(row)], expected, 1e-5) << row;
    for (int64_t i = 0; i < columns; ++i) {
      const double gradient = kScale * (std::exp(own[i]) / sum - (i == label ? 1 : 0));
      const float got = to_float(d[row * columns + i]);
      if (wrong) ASSERT_TRUE(std::isnan(got)) << row << ' ' << i;
      else if (ignored) ASSERT_EQ(got, 0.0f) << row << ' ' << i;
      else ASSERT_NEAR(got, gradient, std::abs(gradient) * (kType == DType::f32 ? 1e-5 : 4e-3)) << row << ' ' << i;
    }
  }
}

// Rows that a block keeps as a whole, in part and not at all, with packs of four logits and without.
TEST(CrossEntropyKernel, KeepsWhatThereIsRoomFor) {
  for (const Case& c : {Case{4100, 5000}, Case{4100, 4100}, Case{8204, 4096}, Case{12300, 4099}, Case{8204, 0},
                        Case{8201, 1000}, Case{8204, 3000, 1}, Case{3, 100}, Case{20, 7}}) {
    check<float, bf16>(c);
    check<float, float>(c, true);
    check<bf16, bf16>(c);
    check<bf16, bf16>(c, true);
  }
}

// Rows of just what a kernel would get without asking if it had no arrays of its own: also what is left of a processor
// with 100 KiB for two blocks, whatever the row. Forgets what the kernels asked for before.
TEST(CrossEntropyKernel, AsksForSharedMemory) {
  for (const int64_t bytes : {int64_t{48} << 10, (int64_t{48} << 10) - 256}) {
    allowed_shared_bytes.clear();
    check<float, bf16>({bytes / 4, static_cast<int>(bytes / 4)});
    check<bf16, bf16>({bytes / 2, static_cast<int>(bytes / 2)});
    check<float, float>({bytes / 4 + 100, static_cast<int>(bytes / 4)});
  }
}

TEST(CrossEntropyKernel, GivesTheLossWithoutAGradientToo) {
  const int64_t columns = 5000;
  std::vector<float> logits(static_cast<size_t>(columns), 1.0f), loss(1);
  std::vector<int32_t> label = {17};
  emulated::EmulatedStream emulated(64);
  gpu::cross_entropy(emulated.stream, {logits.data(), DType::f32, {1, columns}}, {label.data(), DType::i32, {1}}, 1.0f,
                     {loss.data(), DType::f32, {1}}, {});
  EXPECT_NEAR(loss[0], std::log(5000.0), 1e-5);
}

// The statistics of one part are those of the whole row, to the bit.
TEST(CrossEntropyKernel, OnePartIsTheWhole) {
  shared_bytes_of_processor = 16 << 10;
  const int64_t rows = 3, columns = 9004;
  const RngKey key = make_rng_key(8, "logits");
  std::vector<float> logits, loss(3), part_loss(3), statistics(9);
  for (int64_t i = 0; i < rows * columns; ++i) logits.push_back(normal_at(key, static_cast<uint64_t>(i)));
  std::vector<int32_t> labels = {5, 9003, kIgnoreLabel};
  std::vector<bf16> d(logits.size()), part_d(logits.size());
  const TensorView x(logits.data(), DType::f32, {rows, columns}), y(labels.data(), DType::i32, {rows});
  const VocabPart part{0, columns};
  emulated::EmulatedStream emulated(64);
  gpu::cross_entropy(emulated.stream, x, y, 1.0f, {loss.data(), DType::f32, {rows}},
                     {d.data(), DType::bf16, {rows, columns}});
  gpu::softmax_statistics(emulated.stream, x, part, y, {statistics.data(), DType::f32, {rows, 3}});
  gpu::cross_entropy_of_part(emulated.stream, x, part, y, {statistics.data(), DType::f32, {1, rows, 3}}, 1.0f,
                             {part_loss.data(), DType::f32, {rows}}, {part_d.data(), DType::bf16, {rows, columns}});
  EXPECT_EQ(part_loss, loss);
  for (size_t i = 0; i < d.size(); ++i) ASSERT_EQ(part_d[i].bits, d[i].bits) << i;
}

}  // namespace
}  // namespace mw::gpu
