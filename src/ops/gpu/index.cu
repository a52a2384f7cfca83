#include "ops/index.h"

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"

namespace mw::gpu {
namespace {

struct FillIndex {
  const IndexRun* runs;
  int64_t count;
  int32_t* out;
  // The last run that begins at i or before it.
  __device__ void operator()(int64_t i) const {
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (runs[middle].to <= i) low = middle + 1;
      else high = middle;
    }
    if (low == 0 || i >= runs[low - 1].to + runs[low - 1].count) {
      out[i] = -1;
      return;
    }
    const IndexRun& run = runs[low - 1];
    out[i] = static_cast<int32_t>(run.from + run.step * (i - run.to));
  }
};

template <class T>
struct Gather {
  const T* values;
  const int32_t* index;
  T missing;
  T* out;
  __device__ void operator()(int64_t i) const {
    const int32_t at = index[i];
    out[i] = at < 0 ? missing : values[at];
  }
};

struct Scatter {
  const float* values;
  const int32_t* index;
  float* out;
  __device__ void operator()(int64_t i) const {
    const int32_t at = index[i];
    if (at >= 0) out[at] = values[i];
  }
};

}  // namespace

void fill_index(Stream& stream, std::span<const IndexRun> runs, TensorView out) {
  WorkspaceFrame frame(stream.workspace());
  // Runs of no rows may share their begin with another one, which the search would miss.
  std::vector<IndexRun> filled;
  std::copy_if(runs.begin(), runs.end(), std::back_inserter(filled), [](const IndexRun& r) { return r.count > 0; });
  auto* table = frame.take<IndexRun>(filled.size());
  stream.queue().write(table, filled.data(), filled.size() * sizeof(IndexRun));
  for_each(stream, out.numel(), FillIndex{table, std::ssize(filled), out.as<int32_t>()});
}

int64_t index_workspace_bytes(int64_t runs) { return runs * static_cast<int64_t>(sizeof(IndexRun)) + 64; }

void gather_values(Stream& stream, TensorView values, TensorView index, TensorView out) {
  if (out.dtype == DType::f32)
    return for_each(stream, out.numel(), Gather<float>{values.as<float>(), index.as<int32_t>(), 0.0f, out.as<float>()});
  for_each(stream, out.numel(), Gather<int32_t>{values.as<int32_t>(), index.as<int32_t>(), -1, out.as<int32_t>()});
}

void scatter_values(Stream& stream, TensorView values, TensorView index, TensorView out) {
  for_each(stream, values.numel(), Scatter{values.as<float>(), index.as<int32_t>(), out.as<float>()});
}

}  // namespace mw::gpu
