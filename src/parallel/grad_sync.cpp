#include "parallel/grad_sync.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/elementwise.h"

namespace mw {
namespace {

struct Gradients {
  std::vector<TensorView> dense, expert;
};

Gradients list_gradients(ParamStore& params, bool skip_router) {
  Gradients gradients;
  for (const Parameter& p : params.all()) {
    if (!p.row.trained || p.grad.numel() == 0) continue;
    if (skip_router && p.row.role == ParamRole::router) continue;
    (p.row.expert ? gradients.expert : gradients.dense).push_back(p.grad);
  }
  return gradients;
}

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
  const Gradients gradients = list_gradients(params, skip_router);
  if (comms.dp->size() > 1)
    for (const std::span<float> range : merge_neighbours(gradients.dense)) comms.dp->all_reduce_sum(stream, range);
  if (comms.edp->size() > 1)
    for (const std::span<float> range : merge_neighbours(gradients.expert)) comms.edp->all_reduce_sum(stream, range);
}

double global_gradient_norm(Stream& stream, ParamStore& params, MeshComms& comms) {
  const Gradients gradients = list_gradients(params, false);
  const double dense = sum_squares(stream, gradients.dense);
  double expert = sum_squares(stream, gradients.expert);
  comms.ep->all_reduce_sum(std::span(&expert, 1));
  return std::sqrt(dense + expert);
}

}  // namespace mw
