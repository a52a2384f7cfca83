// Gradients of a rank lie back to back in blocks, one for each group of ranks that sums them. ZeRO stage 1 cuts a block
// evenly over the ranks that sum it: each keeps the optimizer state of its cut, wherever parameters begin and end.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "spec/mesh.h"
#include "spec/param_table.h"
#include "spec/shards.h"
#include "spec/tensor_slice.h"

namespace mw {

// Elements that a gradient of `elements` takes in its block: whole units of 64 bytes, the rest holds zeros.
int64_t padded_gradient(int64_t elements);

// First of the elements that member m of `members` owns of a block of so many; of member `members`: the end.
int64_t cut_begin(int64_t elements, int64_t members, int64_t m);

struct GradientBlock {
  std::vector<int64_t> cuts = {0, 0};  // member m owns elements [cuts[m], cuts[m + 1]); multiples of 64 bytes
  int member = 0;                      // this rank
  bool is_cut() const { return cuts.size() > 2; }
  // Elements of [begin, begin + count) that each member owns, in their order: they add up to `count`.
  std::vector<int64_t> counts(int64_t begin, int64_t count) const;
  // Those that this rank owns, counted from `begin`. Everything where the block is not cut.
  ElementRange own(int64_t begin, int64_t count) const;
};

struct GradientBlocks {
  std::array<GradientBlock, kReplicas> blocks;
  std::vector<int64_t> begins;  // by row: where its gradient begins in its block; 0 for what is not trained
  const GradientBlock& of(Replicas replicas) const { return blocks[static_cast<size_t>(replicas)]; }
};

// locals: of each row. zero: the stage; 0 leaves the blocks whole.
GradientBlocks make_gradient_blocks(const std::vector<ParamRow>& rows, const std::vector<LocalParam>& locals,
                                    const Mesh& mesh, const MeshCoords& coords, int64_t zero);

// Whether a rank keeps only its cut of the fp32 master weights: of matrices in bf16 runs, which nothing but the update
// and the packed forms read. What forward reads in fp32 stays whole.
bool cuts_master(const ParamRow& row, const GradientBlock& block, DType dtype);

}  // namespace mw
