#include "planner/unequal_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "layout/divided.h"
#include "layout/shards.h"
#include "layout/shares.h"
#include "layout/stages.h"
#include "layout/transport.h"

namespace mw {
namespace {

using Parts = std::vector<int64_t>;
using PartOf = int MeshCoords::*;

// Seconds for a unit of each part, in those of the slowest kind: of a part's slowest rank.
std::vector<double> seconds_of_parts(const PlatformProfile& profile, const Mesh& mesh, PartOf part_of, int parts) {
  std::vector<double> seconds(static_cast<size_t>(parts));
  for (int rank = 0; rank < mesh.world; ++rank) {
    double& slowest = seconds[static_cast<size_t>(coords_of(mesh, rank).*part_of)];
    slowest = std::max(slowest, 1 / speed_of(profile, rank));
  }
  return seconds;
}

// The first layer whose transport is one of those.
const LayerSpec* layer_with(const ModelSpec& model, const RunSpec& run, int ep, bool (*is)(TransportKind)) {
  const std::vector<TransportKind> transports = choose_transports(transport_names(run.moe.transport, model), ep);
  for (size_t i = 0; i < transports.size(); ++i)
    if (model.layers[i].feed_forward == FeedForwardKind::moe && is(transports[i])) return &model.layers[i];
  return nullptr;
}
bool has_slices(TransportKind kind) { return traits_of(kind).slices_experts; }

double relative_seconds(const Parts& parts, int part, double seconds, int64_t whole) {
  return static_cast<double>(parts[static_cast<size_t>(part)]) * seconds / static_cast<double>(whole);
}

}  // namespace

bool StagePace::operator<(const StagePace& other) const {
  return std::tie(samples, experts, widths) < std::tie(other.samples, other.experts, other.widths);
}

RunSpec with_shares_of(const PlatformProfile& profile, const ModelSpec& model, RunSpec run, const Layout& layout,
                       const Mesh& mesh) {
  if (!profile.rank_kinds) return run;
  const auto divide = [&](std::string& shares, int64_t units, PartOf part_of, int parts) {
    shares = list_of_shares(divide_by_speed(units, seconds_of_parts(profile, mesh, part_of, parts),
                                            Parts(static_cast<size_t>(parts), units)));
  };
  if (run.mesh.shares == kMeasuredShares)
    divide(run.mesh.shares, run.train.global_batch / layout.micro_batches / sample_unit(model, run, mesh),
           &MeshCoords::dp, mesh.dp);
  if (run.mesh.width_shares == kMeasuredShares)
    if (const LayerSpec* layer = layer_with(model, run, mesh.ep, has_slices))
      divide(run.mesh.width_shares, layer->moe.width / width_unit(layer->moe.width, mesh.ep), &MeshCoords::ep, mesh.ep);
  if (run.mesh.expert_shares == kMeasuredShares)
    if (const LayerSpec* layer = layer_with(model, run, mesh.ep, divides_experts))
      divide(run.mesh.expert_shares, layer->moe.experts, &MeshCoords::ep, mesh.ep);
  if (run.mesh.stage_layers == kMeasuredShares && layout.pp > 1 && layout.chunks == 1)
    run.mesh.stage_layers = list_of_shares(layers_by_speed(model, run.train.seq_len,
                                                           seconds_of_parts(profile, mesh, &MeshCoords::pp, layout.pp),
                                                           Parts(static_cast<size_t>(layout.pp), model.layer_count())));
  return run;
}

std::string describe_shares(const RunSpec& run, const RunSpec& chosen) {
  std::string text;
  const auto add = [&](const char* key, std::string MeshSpec::*shares) {
    if (chosen.mesh.*shares != run.mesh.*shares)
      text += fmt::format("{}{} = {}", text.empty() ? "" : "; ", key, chosen.mesh.*shares);
  };
  add("mesh.shares", &MeshSpec::shares);
  add("mesh.width_shares", &MeshSpec::width_shares);
  add("mesh.expert_shares", &MeshSpec::expert_shares);
  add("mesh.stage_layers", &MeshSpec::stage_layers);
  return text;
}

StagePace pace_of(const PlatformProfile& profile, const ModelSpec& model, const RunSpec& run, const Layout& layout,
                  const Mesh& mesh, int pp) {
  StagePace pace;
  if (!profile.rank_kinds) return pace;
  pace = {0, 0, 0};
  const Parts samples = samples_by_rank(run, layout.micro_batches, mesh.dp);
  const int64_t most = *std::max_element(samples.begin(), samples.end());
  const LayerSpec *whole = layer_with(model, run, mesh.ep, divides_experts),
                  *sliced = layer_with(model, run, mesh.ep, has_slices);
  Parts experts, widths;
  if (whole != nullptr) experts = experts_by_rank(run, whole->moe.experts, mesh.ep);
  if (sliced != nullptr) widths = expert_widths(run, sliced->moe.width, mesh.ep);
  for (int rank = pp * mesh.dp * mesh.tp; rank < (pp + 1) * mesh.dp * mesh.tp; ++rank) {
    const MeshCoords at = coords_of(mesh, rank);
    const double seconds = 1 / speed_of(profile, rank);
    pace.samples = std::max(pace.samples, relative_seconds(samples, at.dp, seconds, most));
    if (whole != nullptr)
      pace.experts = std::max(pace.experts, relative_seconds(experts, at.ep, seconds,
                                                             (whole->moe.experts + mesh.ep - 1) / int64_t{mesh.ep}));
    if (sliced != nullptr)
      pace.widths = std::max(pace.widths,
                             relative_seconds(widths, at.ep, seconds, *std::max_element(widths.begin(), widths.end())));
  }
  return pace;
}

}  // namespace mw
