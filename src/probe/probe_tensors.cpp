#include "probe/probe_tensors.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "ops/device.h"

namespace mw {

ProbeSizes sizes_for(DeviceKind device) {
  if (device == DeviceKind::cpu)
    return {{{512, 64}, {512, 128}, {512, 256}, {512, 512}, {512, 1024}, {512, 2048}},
            8,
            {8},
            {{16, 128}, {32, 256}, {64, 512}, {256, 512}, {512, 1024}},
            {64, 128, 256, 512, 1024, 2048},
            1024,
            8,
            2,
            {64, 64},
            {{8, 8}, {16, 16}, {32, 32}, {64, 64}, {128, 128}},
            512,
            int64_t{1} << 24};
  return {{{1024, 256}, {8192, 256}, {8192, 512}, {8192, 1024}, {8192, 2048}, {8192, 4096}, {8192, 8192}},
          16,
          {2, 16, 128},
          {{64, 512}, {128, 1024}, {256, 1536}, {1024, 1536}, {2048, 2048}, {4096, 4096}},
          {512, 1024, 2048, 4096, 8192, 16384},
          16384,
          32,
          4,
          {128, 128},
          {{64, 64}, {128, 128}, {192, 128}},  // the last is DeepSeek's
          4096,
          int64_t{1} << 28};
}

std::vector<Product> expert_products(const ProbeSizes& sizes, int64_t experts) {
  constexpr int64_t kMostElements = int64_t{1} << 30;
  std::vector<Product> products;
  for (const Product& p : sizes.expert)
    if (experts * std::max(p.rows, p.width) * p.width <= kMostElements) products.push_back(p);
  return products;
}

std::vector<DType> dtypes_on(DeviceKind device) {
  if (device == DeviceKind::cpu) return {DType::bf16, DType::f32};
  return {DType::bf16};
}

AttentionShape attention_shape(const ProbeSizes& sizes, int64_t seq_len, HeadWidth width) {
  return {std::max<int64_t>(1, sizes.attention_tokens / seq_len),    seq_len,    sizes.heads,
          width.keys == width.values ? sizes.kv_heads : sizes.heads, width.keys, width.values,
          1.0f / std::sqrt(static_cast<float>(width.keys))};
}

std::vector<AttentionShape> attention_shapes(const ProbeSizes& sizes) {
  std::vector<AttentionShape> shapes;
  for (const int64_t length : sizes.seq_lens) shapes.push_back(attention_shape(sizes, length, sizes.width));
  for (const HeadWidth width : sizes.widths) shapes.push_back(attention_shape(sizes, sizes.width_seq_len, width));
  return shapes;
}

namespace {

// Values that keep multipliers as busy as weights do: zeros would let a GPU run faster than it can.
void fill_random(Stream& stream, TensorView tensor) {
  constexpr int64_t kPiece = int64_t{1} << 16;  // small: the heap keeps it, which is taken for what libraries use
  std::mt19937 bits(7);
  std::uniform_real_distribution<float> value(-1.0f, 1.0f);
  std::vector<float> piece(static_cast<size_t>(std::min<int64_t>(tensor.numel(), kPiece)));
  for (float& v : piece) v = value(bits);
  std::vector<bf16> rounded(piece.size());
  std::transform(piece.begin(), piece.end(), rounded.begin(), to_bf16);
  for (int64_t done = 0; done < tensor.numel(); done += std::ssize(piece)) {
    const size_t count = static_cast<size_t>(std::min<int64_t>(std::ssize(piece), tensor.numel() - done));
    auto* to = static_cast<std::byte*>(tensor.data) + done * size_of(tensor.dtype);
    const void* from = tensor.dtype == DType::f32 ? static_cast<const void*>(piece.data()) : rounded.data();
    stream.queue().copy(to, from, count * static_cast<size_t>(size_of(tensor.dtype)));
  }
  stream.wait();
}

}  // namespace

ProbeTensors::ProbeTensors(Stream& stream, const std::vector<TensorSlot>& slots)
    : stream_(stream), store_(slots, arenas_of(stream.device())) {
  for (const TensorSlot& slot : slots)
    if (slot.dtype != DType::u8 && slot.dtype != DType::i32) fill_random(stream, store_.fixed(slot.name));
  // What libraries take is then of this measurement alone. A run has few shapes of products; a heap that has seen all
  // of the probe's keeps three times as much.
  ::malloc_trim(0);
}

std::vector<Weight> ProbeTensors::weights(DType dtype, int64_t count, int64_t n, int64_t k) {
  std::vector<Weight> all;
  const TensorView values = store_.fixed("values");
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == DType::f32) {
      all.push_back({n, k, values.at(i), {}, {}});
      continue;
    }
    const TensorView packed = store_.fixed("packed");
    Weight w{n, k, values.at(i), packed.at(2 * i), packed.at(2 * i + 1)};
    if (stream_.device().kind != DeviceKind::cpu) w.packed_backward = w.packed_forward;
    pack_weight(stream_, w);
    all.push_back(w);
  }
  return all;
}

std::vector<TensorSlot> weight_slots(Stream& stream, DType dtype, int64_t count, int64_t n, int64_t k) {
  std::vector<TensorSlot> slots = {{"values", DType::f32, {count, n, k}, 0}};
  const bool native = stream.device().kind != DeviceKind::cpu || cpu::matmul_traits().native_bf16;
  if (dtype == DType::bf16) slots.push_back({"packed", DType::u8, {2 * count, packed_weight_bytes(n, k, native)}, 0});
  return slots;
}

double net(double seconds, const PlatformProfile& profile) {
  return std::max(seconds - profile.operator_latency_s, 0.1 * seconds);
}

}  // namespace mw
