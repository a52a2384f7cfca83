#include "ops/index.h"

#include <algorithm>

#include "ops/cpu/loops.h"
#include "ops/cpu/operators.h"

namespace mw::cpu {
namespace {

constexpr int64_t kBlock = 8192;

template <class T>
void gather(Stream& stream, const T* values, const int32_t* index, int64_t count, T missing, T* out) {
  for_blocks(stream, count, kBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = index[i] < 0 ? missing : values[index[i]];
  });
}

}  // namespace

void fill_index(Stream& stream, std::span<const IndexRun> runs, TensorView out) {
  int32_t* to = out.as<int32_t>();
  for_blocks(stream, out.numel(), kBlock, [=](int64_t begin, int64_t end) {
    std::fill(to + begin, to + end, -1);
    auto run =
        std::partition_point(runs.begin(), runs.end(), [=](const IndexRun& r) { return r.to + r.count <= begin; });
    for (; run != runs.end() && run->to < end; ++run)
      for (int64_t i = std::max(begin, run->to); i < std::min(end, run->to + run->count); ++i)
        to[i] = static_cast<int32_t>(run->from + run->step * (i - run->to));
  });
}

int64_t index_workspace_bytes(int64_t) { return 0; }

void gather_values(Stream& stream, TensorView values, TensorView index, TensorView out) {
  if (out.dtype == DType::f32)
    return gather(stream, values.as<float>(), index.as<int32_t>(), out.numel(), 0.0f, out.as<float>());
  gather(stream, values.as<int32_t>(), index.as<int32_t>(), out.numel(), -1, out.as<int32_t>());
}

void scatter_values(Stream& stream, TensorView values, TensorView index, TensorView out) {
  const float* from = values.as<float>();
  const int32_t* to = index.as<int32_t>();
  float* all = out.as<float>();
  for_blocks(stream, values.numel(), kBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (to[i] >= 0) all[to[i]] = from[i];
  });
}

}  // namespace mw::cpu
