#include "train/checkpoint/placement_record.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "train/checkpoint/checkpoint.h"

namespace mw {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_record(const std::string& where, const std::string& what) {
  fail(Exit::checkpoint, fmt::format("{}: {}", where, what), kDamagedCheckpoint);
}

// Every rank's experts are an entry of `ranks`. No table is larger than the record.
ExpertPlacement parse_layer(const json& ranks, const std::string& where) {
  ExpertPlacement placement;
  if (!ranks.is_array()) refuse_record(where, "expects a list of ranks");
  if (ranks.empty()) return placement;
  size_t entries = 0;
  for (const json& experts : ranks) {
    if (!experts.is_array()) refuse_record(where, "expects a list of experts for every rank");
    entries += experts.size();
  }
  placement.ep = static_cast<int>(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (size_t slot = 0; slot < ranks[rank].size(); ++slot) {
      const json& expert = ranks[rank][slot];
      if (!expert.is_number_unsigned() || expert.get<uint64_t>() >= entries)
        refuse_record(where,
                      fmt::format("expected an expert from 0 to {}, got {}", entries - 1, printable(expert.dump())));
      const auto e = expert.get<size_t>();
      if (placement.homes.size() <= e) placement.homes.resize(e + 1);
      placement.homes[e].push_back({static_cast<int>(rank), static_cast<int>(slot)});
    }
  try {
    validate(placement, where);
  } catch (const Error& error) {
    fail(Exit::checkpoint, error.what(), kDamagedCheckpoint);
  }
  return placement;
}

}  // namespace

json placement_record(const Placements& placements) {
  json layers = json::array();
  for (const ExpertPlacement& placement : placements.layers) {
    json ranks = json::array();
    for (int rank = 0; rank < placement.ep && placement.experts() > 0; ++rank)
      ranks.push_back(placement.experts_of(rank));
    layers.push_back(std::move(ranks));
  }
  return {{"version", placements.version}, {"layers", std::move(layers)}};
}

SharedPlacements parse_placement_record(const json& record, const std::string& where) {
  const std::string at = where + ": placement";
  if (!record.is_object() || !record.contains("version") || !record.contains("layers") || !record["layers"].is_array())
    refuse_record(at, "expects \"version\" and a list of \"layers\"");
  const json& version = record["version"];
  if (!version.is_number_unsigned() || version.get<uint64_t>() > uint64_t{1} << 62)
    refuse_record(at, fmt::format("\"version\" expects an integer of at least 0, got {}", printable(version.dump())));
  auto placements = std::make_shared<Placements>();
  placements->version = version.get<int64_t>();
  for (const json& layer : record["layers"])
    placements->layers.push_back(parse_layer(layer, fmt::format("{} of layer {}", at, placements->layers.size())));
  return placements;
}

}  // namespace mw
