// Gradients of a rank lie back to back in blocks, one for each group of ranks that sums them. ZeRO stage 1 cuts a block
// evenly over the ranks that sum it: each keeps the optimizer state of its cut, wherever parameters begin and end.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "config/param_table.h"
#include "config/run_spec.h"
#include "layout/mesh.h"
#include "layout/shards.h"
#include "layout/tensor_slice.h"

namespace mw {

// What the gradients that these ranks sum are kept in. Routed experts alone are summed over EDP.
DType gradient_dtype(Replicas replicas, const RunSpec& run);

// Elements that a gradient of `elements` takes in its block: whole units of 64 bytes, the rest holds zeros.
int64_t padded_gradient(int64_t elements, DType dtype);

// Borders between the members of a block are multiples of so many elements: of 64 bytes; in large blocks of expert
// gradients of 4096 elements, so that the pieces over which squares are summed (engine/grad_sync.h) can be as long.
int64_t cut_unit(Replicas replicas, int64_t elements, int64_t members, DType dtype);

// First of the elements that member m of `members` owns of a block of so many; of member `members`: the end. unit: as
// cut_unit says; elements: a multiple of 64 bytes.
int64_t cut_begin(int64_t elements, int64_t members, int64_t m, int64_t unit);

// Elements of a piece in which bf16 gradients of a block are summed in fp32, two pieces at a time: half of the layer
// that has most, so that its sums go on beside the next layer's backward pass, but no more memory than half of what
// bf16 saves.
int64_t sum_piece_elements(int64_t largest_layer, int64_t block);
// Their row in the byte table: [2, elements] of every rank that shares experts with others.
constexpr const char* kSumPieces = "grad.pieces";

// Squares of expert gradients that products add where they store them (ops/square_sums.h): of bf16 runs on GPUs, where
// no rank adds to the gradients of another. Their row in the byte table.
bool squares_when_stored(const RunSpec& run, const Mesh& mesh, bool on_gpu);
constexpr const char* kSquareSums = "grad.squares";
constexpr int64_t kSquareSumValues = 64 * 23;  // i64

struct GradientBlock {
  std::vector<int64_t> cuts = {0, 0};  // member m owns elements [cuts[m], cuts[m + 1])
  int64_t unit = 0;                    // cut_unit, where it is cut
  int member = 0;                      // this rank
  bool is_cut() const { return cuts.size() > 2; }
  // Elements of [begin, begin + count) that each member owns, in their order: they add up to `count`.
  std::vector<int64_t> counts(int64_t begin, int64_t count) const;
  // Those that a member owns, counted from `begin`. Everything where the block is not cut.
  ElementRange own(int64_t begin, int64_t count, int of_member) const;
  ElementRange own(int64_t begin, int64_t count) const { return own(begin, count, member); }
};

struct GradientBlocks {
  std::array<GradientBlock, kReplicas> blocks;
  std::vector<int64_t> begins;  // by row: where its gradient begins in its block; 0 for what is not trained
  const GradientBlock& of(Replicas replicas) const { return blocks[static_cast<size_t>(replicas)]; }
};

// locals: of each row. Without ZeRO blocks stay whole.
GradientBlocks make_gradient_blocks(const std::vector<ParamRow>& rows, const std::vector<LocalParam>& locals,
                                    const Mesh& mesh, const MeshCoords& coords, const RunSpec& run);

// The member that a rank is among those that sum a gradient; 0 in blocks that are not cut.
int member_of(Replicas replicas, const Mesh& mesh, const MeshCoords& coords, const RunSpec& run);

// Whether a rank keeps only its cut of the fp32 master weights: of matrices in bf16 runs, which nothing but the update
// and the packed forms read. What forward reads in fp32 stays whole.
bool cuts_master(const ParamRow& row, const GradientBlock& block, DType dtype);

// The elements of a local tensor of which a member keeps the moments (`owned`) and the master weights (`held`).
struct StateElements {
  ElementRange owned, held;
};
// begin: where the gradient of the row begins in `block`; dtype: of the run.
StateElements state_elements(const ParamRow& row, const GradientBlock& block, int64_t begin, int64_t elements,
                             int member, DType dtype);

}  // namespace mw
