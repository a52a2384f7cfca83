// Expert placement as a table: expert -> where its copies live. Uneven counts and replicas are legal.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mw {

struct ModelSpec;

struct ExpertHome {
  int ep_rank = 0;  // coordinate inside the EP group
  int slot = 0;     // position among that rank's local experts
  bool operator==(const ExpertHome&) const = default;
};

struct ExpertPlacement {
  int ep = 1;
  std::vector<std::vector<ExpertHome>> homes;  // by global expert; more than one home: replicas
  bool operator==(const ExpertPlacement&) const = default;

  int64_t experts() const { return static_cast<int64_t>(homes.size()); }
  bool has_replicas() const;
  // Global experts of a rank, in slot order.
  std::vector<int> experts_of(int ep_rank) const;
  // Place of each expert in (rank, slot) order, for tables without replicas: a permutation of 0..E-1.
  std::vector<int32_t> position_of_expert() const;
  // First position of each rank, and E at the end: ep + 1 entries.
  std::vector<int64_t> rank_offsets() const;
};

// Blocks of consecutive experts; the first E mod EP ranks hold one more. Errors: config when EP > E.
ExpertPlacement make_block_placement(int64_t experts, int ep);

// Every expert placed, slots dense and unique on every rank, no expert twice on one rank. `where` names the table in
// errors. Errors: config.
void validate(const ExpertPlacement& placement, const std::string& where = "the placement");

// The placement of all experts of a model: an input of the plan. A new placement is a new value with a higher version.
struct Placements {
  int64_t version = 0;                  // 0: experts have not moved since the start
  std::vector<ExpertPlacement> layers;  // by layer; empty tables for dense layers
  bool operator==(const Placements&) const = default;
};
// Shared by the plans of all ranks: the tables hold every expert of the model.
using SharedPlacements = std::shared_ptr<const Placements>;

// Blocks in every MoE layer, version 0. Errors: config when EP is more than the experts of a layer.
Placements make_block_placements(const ModelSpec& model, int ep);

// The tables fit the layers of the model and `ep`, and each is valid. Ranks without experts and replicas are legal.
// Errors: config, naming the layer.
void validate(const Placements& placements, const ModelSpec& model, int ep);

// A run of entries along one axis of a global tensor that lies in a local one.
struct SlicePiece {
  int axis = 0;
  int64_t global_begin = 0, local_begin = 0, count = 0;
  // Of entries of axis 0 only these entries of another axis; axis 0: all of them.
  int cut_axis = 0;
  int64_t cut_begin = 0, cut_count = 0;
  bool operator==(const SlicePiece&) const = default;
};

// The pieces of an expert tensor (axis 0) that a rank holds, neighbours merged.
std::vector<SlicePiece> expert_pieces(const ExpertPlacement& placement, int ep_rank);

}  // namespace mw
