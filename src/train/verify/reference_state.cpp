#include "train/verify/reference_state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "layout/gradient_blocks.h"
#include "layout/state_map.h"

namespace mw {
namespace {

// Calls body(at, from, count) for each run of the elements `range` of a local tensor: at `at` of the range, and from
// `from` on in the global one.
void for_each_run(const Parameter& p, ElementRange range,
                  const std::function<void(int64_t at, int64_t from, int64_t count)>& body) {
  const std::vector<int64_t>& shape = p.row.shape;
  for (const HeldSlice& part : held_slices(shape, p.pieces, range))
    for_each_shared_run(shape, whole_tensor(shape), part.slice,
                        [&](int64_t from, int64_t to, int64_t count) { body(part.at + to, from, count); });
}

std::vector<float> broadcast_master(Comm& comm, Engine* reference, const ParamRow& row) {
  std::vector<float> global(static_cast<size_t>(row.numel()));
  if (reference != nullptr) {
    const Parameter& p = reference->params.find(row.name);
    for (size_t i = 0; i < global.size(); ++i) global[i] = p.master_at(static_cast<int64_t>(i));
  }
  comm.broadcast(std::as_writable_bytes(std::span(global)), 0);
  return global;
}

// Something that a rank has of its owned elements alone, flat: a moment or the gradient.
using OwnedState = std::function<TensorView(const Parameter&)>;
const OwnedState kFirstMoment = [](const Parameter& p) { return p.adam_m; };
const OwnedState kSecondMoment = [](const Parameter& p) { return p.adam_v; };
const OwnedState kGradientState = [](const Parameter& p) { return p.owned_grad(); };

std::vector<const OwnedState*> moments_of(const ParamRow& row) {
  if (!has_state(StateKind::adam_m, row)) return {};
  if (!has_state(StateKind::adam_v, row)) return {&kFirstMoment};
  return {&kFirstMoment, &kSecondMoment};
}

// Of all elements, on every rank.
std::vector<std::byte> broadcast_state(Comm& comm, Engine* reference, const ParamRow& row, int64_t element_bytes,
                                       const OwnedState& state) {
  std::vector<std::byte> global(static_cast<size_t>(row.numel() * element_bytes));
  if (reference != nullptr) std::memcpy(global.data(), state(reference->params.find(row.name)).data, global.size());
  comm.broadcast(std::span(global), 0);
  return global;
}

void share_state(Comm& comm, Engine* reference, Engine& layout, const ParamRow& row, DType dtype,
                 const OwnedState& state) {
  const int64_t size = size_of(dtype);
  const std::vector<std::byte> global = broadcast_state(comm, reference, row, size, state);
  if (!layout.params.has(row.name)) return;  // of another stage
  const Parameter& own = layout.params.find(row.name);
  auto* to = static_cast<std::byte*>(state(own).data);
  for_each_run(own, own.owned, [&](int64_t at, int64_t from, int64_t count) {
    std::memcpy(to + at * size, global.data() + from * size, static_cast<size_t>(count * size));
  });
}

// Of one tensor.
struct Sums {
  explicit Sums(double relative_rounding = 0x1p-23) : rounding(relative_rounding) {}
  double rounding;
  double squares = 0, norm = 0;  // of differences beyond a rounding; of the reference's values
  int64_t elements = 0, differing = 0;
  void add(float own, float expected) {
    const double a = own, b = expected;
    const double beyond = std::max(0.0, std::abs(a - b) - rounding * std::max(std::abs(a), std::abs(b)));
    squares += std::isnan(beyond) || std::isnan(a) != std::isnan(b) ? HUGE_VAL : beyond * beyond;
    norm += b * b;
    ++elements;
    if (!(beyond <= 0)) ++differing;
  }
};

}  // namespace

void share_weights(Comm& comm, Engine* reference, Engine& layout) {
  for (const ParamRow& row : layout.plan.params) {
    const std::vector<float> global = broadcast_master(comm, reference, row);
    if (layout.params.has(row.name)) {
      const Parameter& own = layout.params.find(row.name);
      for_each_run(own, own.held, [&](int64_t at, int64_t from, int64_t count) {
        own.set_master(layout.device, at,
                       std::span(global).subspan(static_cast<size_t>(from), static_cast<size_t>(count)));
      });
    }
    for (const OwnedState* moment : moments_of(row))
      share_state(comm, reference, layout, row, layout.plan.run.moments, *moment);
  }
  refresh_weights(layout);
}

void share_gradients(Comm& comm, Engine* reference, Engine& layout) {
  for (const ParamRow& row : layout.plan.params)
    if (row.trained)
      share_state(comm, reference, layout, row,
                  gradient_dtype(row.expert ? Replicas::edp : Replicas::dp, layout.plan.run), kGradientState);
}

StateDifference compare_state(Comm& comm, Engine* reference, Engine& layout, double lr) {
  StateDifference all;
  const auto note = [&](const ParamRow& row, const char* what, const Sums& sums, double scale) {
    std::array<int64_t, 2> counts = {sums.elements, sums.differing};
    comm.all_reduce_sum(std::span(counts));
    double error = sums.elements == 0 ? 0 : std::sqrt(sums.squares) / std::max(scale, 1e-30);
    if (std::isnan(error)) error = HUGE_VAL;
    comm.all_reduce_max(std::span(&error, 1));
    all.elements += counts[0];
    all.differing += counts[1];
    if (error > all.worst) all.worst = error, all.name = fmt::format("{} of {}", what, row.name);
  };
  for (const ParamRow& row : layout.plan.params) {
    const Parameter* own = layout.params.has(row.name) ? &layout.params.find(row.name) : nullptr;
    Sums weights;
    const std::vector<float> global = broadcast_master(comm, reference, row);
    if (own != nullptr)
      for_each_run(*own, own->held, [&](int64_t at, int64_t from, int64_t count) {
        for (int64_t i = 0; i < count; ++i) weights.add(own->master_at(at + i), global[static_cast<size_t>(from + i)]);
      });
    const auto steps = [&](const Sums& sums) { return lr * std::sqrt(static_cast<double>(sums.elements)); };
    note(row, "weights", weights, steps(weights));
    Sums copies(0x1p-8);  // of what products read, rounded to bf16
    if (own != nullptr && own->copy_bf16.data != nullptr)
      for_each_run(*own, {0, own->numel()}, [&](int64_t at, int64_t from, int64_t count) {
        for (int64_t i = 0; i < count; ++i)
          copies.add(value_at(own->copy_bf16, at + i), global[static_cast<size_t>(from + i)]);
      });
    note(row, "copies", copies, steps(copies));
    const DType dtype = layout.plan.run.moments;
    for (const OwnedState* moment : moments_of(row)) {
      std::vector<std::byte> expected = broadcast_state(comm, reference, row, size_of(dtype), *moment);
      const TensorView values{expected.data(), dtype, {row.numel()}};
      Sums sums;
      if (own != nullptr)
        for_each_run(*own, own->owned, [&](int64_t at, int64_t from, int64_t count) {
          for (int64_t i = 0; i < count; ++i) sums.add(value_at((*moment)(*own), at + i), value_at(values, from + i));
        });
      note(row, "moments", sums, std::sqrt(sums.norm));
    }
  }
  return all;
}

}  // namespace mw
