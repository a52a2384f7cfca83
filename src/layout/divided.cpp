#include "layout/divided.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "layout/shards.h"
#include "layout/shares.h"
#include "layout/transport.h"

namespace mw {
namespace {

std::vector<int64_t> equal_parts(int64_t units, int parts) {
  return divide_by_shares(units, std::vector<int64_t>(static_cast<size_t>(parts), 1));
}

// texts: the same numbers as text.
template <class T>
std::string describe(const std::vector<T>& values, const std::vector<std::string>& texts) {
  constexpr size_t kMostListed = 16;
  if (values.size() <= kMostListed) return fmt::format("{}", fmt::join(texts, ","));
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  return fmt::format("least {} (rank {}), median {}, most {} (rank {})", texts[order.front()], order.front(),
                     texts[order[order.size() / 2]], texts[order.back()], order.back());
}

}  // namespace

std::vector<int64_t> Divided::equal() const { return equal_parts(units, parts); }

Divided divided_samples(const Plan& plan) {
  return {&MeshSpec::shares, "mesh.shares", plan.batch.all / sample_unit(plan.model, plan.run, plan.mesh), plan.mesh.dp,
          plan.coords.dp};
}

Divided divided_width(const Plan& plan) {
  size_t layer = 0;
  while (!plan.placements->layers[layer].is_sliced()) ++layer;
  const int64_t width = plan.model.layers[layer].moe.width;
  return {&MeshSpec::width_shares, "mesh.width_shares", width / width_unit(width, plan.mesh.ep), plan.mesh.ep,
          plan.coords.ep};
}

bool divides_experts(TransportKind transport) {
  return traits_of(transport).exchanges() && !traits_of(transport).slices_experts;
}

Divided divided_experts(const Plan& plan) {
  size_t layer = 0;
  while (!divides_experts(plan.transports[layer])) ++layer;
  return {&MeshSpec::expert_shares, "mesh.expert_shares", plan.placements->layers[layer].experts(), plan.mesh.ep,
          plan.coords.ep};
}

Divided divided_layers(const Plan& plan) {
  return {&MeshSpec::stage_layers, "mesh.stage_layers", plan.model.layer_count(), plan.mesh.pp, plan.coords.pp};
}

std::string list_of_shares(const std::vector<int64_t>& shares) { return fmt::format("{}", fmt::join(shares, ",")); }

std::string describe_parts(const std::vector<int64_t>& values) {
  std::vector<std::string> texts;
  for (const int64_t value : values) texts.push_back(fmt::format("{}", value));
  return describe(values, texts);
}

std::string describe_parts(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (const double value : values) texts.push_back(fmt::format("{:.3g}", value));
  return describe(values, texts);
}

int64_t units_that_fit(const Divided& divided, RunSpec run, const Plan& plan, int64_t bytes) {
  const auto fits = [&](int64_t own) {
    std::vector<int64_t> shares = equal_parts(divided.units - own, divided.parts - 1);
    shares.insert(shares.begin() + divided.part, own);
    run.mesh.*divided.key = list_of_shares(shares);
    try {
      const Plan tried = make_plan(plan.model, run, plan.mesh.world, plan.rank, plan.platform);
      return summarise(all_rows(tried)).total() <= bytes;
    } catch (const Error&) {  // more than can be counted
      return false;
    }
  };
  int64_t fitting = divided.equal()[static_cast<size_t>(divided.part)], above = divided.units - divided.parts + 2;
  while (divided.parts > 1 && above - fitting > 1) {
    const int64_t middle = fitting + (above - fitting) / 2;
    (fits(middle) ? fitting : above) = middle;
  }
  return fitting;
}

}  // namespace mw
