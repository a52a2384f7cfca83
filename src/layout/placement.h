// Expert placement as a table: for each expert, the ranks of the EP group that hold it. Ranks may hold unequal numbers
// of experts, and an expert may be on several ranks. The first of these is its home, which has the master weights and
// the optimizer state; the others have replicas, which only share its rows (layout/row_split.h). Instead, every rank
// may hold a slice of every expert.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mw {

struct ModelSpec;

struct ExpertHome {
  int ep_rank = 0;  // coordinate inside the EP group
  int slot = 0;     // position among that rank's local experts: first those that have their home there, then replicas
  bool operator==(const ExpertHome&) const = default;
};

struct ExpertPlacement {
  int ep = 1;
  std::vector<std::vector<ExpertHome>> homes;  // by global expert: its home, then its replicas
  // Slices: every rank holds a part of the width of every expert, rank r widths[r] features behind those of the ranks
  // before it. homes then list rank 0, which stands for all. Empty: experts are whole.
  std::vector<int64_t> widths = {};
  bool operator==(const ExpertPlacement&) const = default;

  int64_t experts() const { return static_cast<int64_t>(homes.size()); }
  bool is_sliced() const { return !widths.empty(); }
  // By rank: the width of its slices, or the number of experts that have their home there.
  std::vector<int64_t> parts() const;
  int widest() const;  // the first rank with the largest part
  bool has_replicas() const;
  // Global experts that have their home on a rank, those that have replicas there, and both; in slot order.
  std::vector<int> experts_of(int ep_rank) const;
  std::vector<int> replicas_of(int ep_rank) const;
  std::vector<int> copies_of(int ep_rank) const;
  // By global expert: the position of its home if all homes are listed rank by rank, and by slot within a rank. A
  // permutation of 0..E-1; example: with rank 0 being home of {2, 0} and rank 1 of {1}, expert 0 has position 1. Of
  // slices: the slot, which is the same on every rank.
  std::vector<int32_t> position_of_expert() const;
  // First position of each rank, and E at the end: ep + 1 entries.
  std::vector<int64_t> rank_offsets() const;
};

// Refuses mesh.ep = ep ranks for fewer experts. Errors: config.
void check_expert_ranks(int64_t experts, int64_t ep);
// Blocks of consecutive experts; the first E mod EP ranks hold one more. Errors: those of check_expert_ranks.
ExpertPlacement make_block_placement(int64_t experts, int ep);
// The same with so many experts on each rank.
ExpertPlacement make_block_placement(const std::vector<int64_t>& counts);

// Slices of all experts on every rank, in the order of experts. widths: by rank, at least one feature each.
ExpertPlacement make_sliced_placement(int64_t experts, const std::vector<int64_t>& widths);

// Every expert placed, slots dense and unique on every rank, replicas behind homes, no expert twice on one rank.
// `where` names the table in errors. Errors: config.
void validate(const ExpertPlacement& placement, const std::string& where = "the placement");

// The placement of all experts of a model. It is an input of make_plan (layout/plan.h), the plan of a run. Values do
// not change: when experts move, a new value with a higher version is made.
struct Placements {
  int64_t version = 0;                  // 0: experts have not moved since the start
  std::vector<ExpertPlacement> layers;  // by layer; empty tables for dense layers
  bool operator==(const Placements&) const = default;
};
// The same value serves the plans of all ranks, because its tables hold every expert of the model.
using SharedPlacements = std::shared_ptr<const Placements>;

// Blocks in every MoE layer, or slices of these widths where `widths` (by layer, or empty) has some; version 0. Errors:
// config when EP is more than the experts of a layer with blocks.
Placements make_block_placements(const ModelSpec& model, int ep, const std::vector<std::vector<int64_t>>& widths = {});

// Checks that the tables fit the layers of the model and `ep`, and that each table is valid. Replicas are legal, and so
// are ranks that hold no expert. Errors: config, naming the layer.
void validate(const Placements& placements, const ModelSpec& model, int ep);

// A part of a global tensor that a rank holds in its local tensor: along `axis`, entries [global_begin, global_begin +
// count) of the global tensor are entries [local_begin, local_begin + count) of the local one.
struct SlicePiece {
  int axis = 0;
  int64_t global_begin = 0, local_begin = 0, count = 0;
  // A second restriction, for slices of experts and tensor-sharded ones: of a second axis (cut_axis > 0) the rank holds
  // only entries [cut_begin, cut_begin + cut_count). cut_axis = 0: no second restriction.
  int cut_axis = 0;
  int64_t cut_begin = 0, cut_count = 0;
  bool operator==(const SlicePiece&) const = default;
};

// The experts of a rank as pieces along axis 0 of an expert tensor [E, ...]. Consecutive experts form one piece.
std::vector<SlicePiece> expert_pieces(const ExpertPlacement& placement, int ep_rank);

}  // namespace mw
