#include "train/verify/verify_gradients.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "core/rng.h"
#include "layout/gradient_blocks.h"

namespace mw {
namespace {

constexpr double kRounding = 0x1p-23;  // of fp32, relative

// What is compared of a tensor: each expert, or all of it.
struct Units {
  explicit Units(const ParamRow& row)
      : count(static_cast<size_t>(row.expert ? row.shape[0] : 1)), elements(static_cast<size_t>(row.numel()) / count) {}
  size_t count, elements;
};

std::vector<float> gradient_of(Engine& engine, const ParamRow& row) {
  const TensorView grad = engine.params.find(row.name).grad;
  std::vector<float> values(static_cast<size_t>(row.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = value_at(grad, static_cast<int64_t>(i));
  return values;
}

// |a - b| per unit; without b, |a|.
std::vector<double> unit_norms(const Units& units, const std::vector<float>& a, const std::vector<float>* b = nullptr) {
  std::vector<double> norms(units.count);
  for (size_t u = 0; u < units.count; ++u) {
    double squares = 0;
    for (size_t i = u * units.elements; i < (u + 1) * units.elements; ++i) {
      const double d = static_cast<double>(a[i]) - (b == nullptr ? 0.0 : static_cast<double>((*b)[i]));
      squares += d * d;
    }
    norms[u] = std::sqrt(squares);
  }
  return norms;
}

// Between the reference's gradient and this rank's, per unit: summed over the owners where each has a part.
// compared: elements of each unit on this rank.
std::vector<double> square_differences(Engine& layout, const Parameter& p, const std::vector<float>& global,
                                       const Units& units, std::vector<int64_t>& compared) {
  const std::vector<int64_t>& shape = p.row.shape;
  std::vector<double> squares(units.count);
  for (const HeldSlice& part : held_slices(shape, p.pieces, p.owned))
    for_each_shared_run(shape, whole_tensor(shape), part.slice, [&](int64_t from, int64_t to, int64_t count) {
      const int64_t own = p.owned.begin + part.at + to;
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(from + i);
        const double d = static_cast<double>(value_at(p.grad, own + i)) - static_cast<double>(global[at]);
        squares[at / units.elements] += d * d;
        ++compared[at / units.elements];
      }
    });
  if (layout.params.block(p.replicas).is_cut()) layout.comms.of(p.replicas).all_reduce_sum(std::span(squares));
  const bool is_slice = p.replicas == Replicas::dp || (p.row.expert && layout.plan.mesh.ted);
  if (is_slice) layout.comms.tp->all_reduce_sum(std::span(squares));
  if (p.row.expert && layout.plan.placements->layers[static_cast<size_t>(p.row.layer)].is_sliced())
    layout.comms.ep->all_reduce_sum(std::span(squares));
  return squares;
}

}  // namespace

std::vector<GradientDifference> compare_gradients(Comm& comm, Engine* reference, Engine& layout) {
  std::vector<GradientDifference> differences;
  for (const ParamRow& row : layout.plan.params) {
    if (!row.trained) continue;
    std::vector<float> global(static_cast<size_t>(row.numel()));
    if (reference != nullptr) global = gradient_of(*reference, row);
    comm.broadcast(std::as_writable_bytes(std::span(global)), 0);
    const Units units(row);
    std::vector<double> errors(units.count);
    std::vector<int64_t> compared(units.count);
    if (layout.params.has(row.name))
      errors = square_differences(layout, layout.params.find(row.name), global, units, compared);
    comm.all_reduce_sum(std::span(compared));
    for (size_t u = 0; u < units.count; ++u) {
      // Whole copies only, and one at least.
      const bool complete = compared[u] > 0 && compared[u] % static_cast<int64_t>(units.elements) == 0;
      errors[u] = complete && !std::isnan(errors[u]) ? std::sqrt(errors[u]) : HUGE_VAL;
    }
    comm.all_reduce_max(std::span(errors));
    const std::vector<double> norms = unit_norms(units, global);
    for (size_t u = 0; u < units.count; ++u)
      differences.push_back({row.expert ? fmt::format("{}[{}]", row.name, u) : row.name, errors[u], norms[u]});
  }
  return differences;
}

void measure_rounding_noise(Engine& reference, std::span<const Batch> batches, const TapProvider& taps, uint64_t seed,
                            std::vector<GradientDifference>& gradients) {
  struct Saved {
    const ParamRow& row;
    std::vector<float> weights, gradient;
  };
  std::vector<Saved> saved;
  const auto set_weights = [&](const ParamRow& row, const std::vector<float>& values) {
    reference.params.find(row.name).set_master(reference.device, 0, values);
  };
  for (const ParamRow& row : reference.plan.params) {
    if (!row.trained) continue;
    const Parameter& p = reference.params.find(row.name);
    std::vector<float> weights(static_cast<size_t>(row.numel()));
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = p.master_at(static_cast<int64_t>(i));
    std::vector<float> moved = weights;
    const RngKey key = make_rng_key(seed, "rounding." + row.name);
    for (size_t i = 0; i < moved.size(); ++i)
      moved[i] = static_cast<float>(moved[i] * (1 + ((bits_at(key, i) & 1) != 0 ? kRounding : -kRounding)));
    set_weights(row, moved);
    saved.push_back({row, std::move(weights), gradient_of(reference, row)});
  }
  refresh_weights(reference);
  accumulate_gradients(reference, batches, taps);
  size_t at = 0;  // of gradients, which are in the order of compare_gradients
  for (const Saved& s : saved) {
    const std::vector<float> moved = gradient_of(reference, s.row);
    for (const double norm : unit_norms(Units(s.row), moved, &s.gradient)) gradients[at++].noise = norm;
    std::memcpy(reference.params.find(s.row.name).grad.data, s.gradient.data(), s.gradient.size() * sizeof(float));
    set_weights(s.row, s.weights);
  }
  refresh_weights(reference);
}

}  // namespace mw
