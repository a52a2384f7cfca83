#include "parallel/grad_sync.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/elementwise.h"

namespace mw {
namespace {

// Neighbours in memory become one message: the table of bytes lays dense gradients back to back, and expert ones.
std::vector<std::span<float>> merge_neighbours(std::vector<TensorView> views) {
  std::sort(views.begin(), views.end(), [](const TensorView& a, const TensorView& b) { return a.data < b.data; });
  std::vector<std::span<float>> ranges;
  for (const TensorView& view : views) {
    float* begin = view.as<float>();
    if (!ranges.empty()) {
      const std::span<float> last = ranges.back();
      const auto gap = begin - (last.data() + last.size());
      // The alignment gap holds zeros.
      if (gap >= 0 && gap * static_cast<int64_t>(sizeof(float)) < kTensorAlignment) {
        ranges.back() = std::span(last.data(), last.size() + static_cast<size_t>(gap + view.numel()));
        continue;
      }
    }
    ranges.emplace_back(begin, static_cast<size_t>(view.numel()));
  }
  return ranges;
}

}  // namespace

void sum_gradients(Stream& stream, ParamStore& params, MeshComms& comms, bool skip_router) {
  const TraceScope scope(stream.trace(), Work::reduce, "sum_gradients");
  std::vector<TensorView> dense, expert;
  for (const Parameter& p : params.all()) {
    if (!p.row.trained || p.grad.numel() == 0) continue;
    if (skip_router && p.row.role == ParamRole::router) continue;
    (p.row.expert ? expert : dense).push_back(p.grad);
  }
  if (comms.dp->size() > 1)
    for (const std::span<float> range : merge_neighbours(dense)) comms.dp->all_reduce_sum(stream, range);
  if (comms.edp->size() > 1)
    for (const std::span<float> range : merge_neighbours(expert)) comms.edp->all_reduce_sum(stream, range);
}

double global_gradient_norm(Stream& stream, ParamStore& params, MeshComms& comms) {
  double dense = 0, expert = 0;
  for (const Parameter& p : params.all()) {
    if (!p.row.trained) continue;
    (p.row.expert ? expert : dense) += sum_squares(stream, p.grad);
  }
  comms.ep->all_reduce_sum(std::span(&expert, 1));
  return std::sqrt(dense + expert);
}

}  // namespace mw
