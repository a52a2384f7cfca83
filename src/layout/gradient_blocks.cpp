#include "layout/gradient_blocks.h"

#include <algorithm>

#include "base/error.h"
#include "layout/routed_rows.h"

namespace mw {
namespace {

int64_t unit_of(DType dtype) { return 64 / size_of(dtype); }

void cut(GradientBlock& block, int members, int member, int64_t unit) {
  const int64_t elements = block.cuts.back();
  block.member = member;
  block.unit = unit;
  block.cuts.clear();
  for (int64_t m = 0; m <= members; ++m) block.cuts.push_back(cut_begin(elements, members, m, unit));
}

}  // namespace

bool squares_when_stored(const RunSpec& run, const Mesh& mesh, bool on_gpu) {
  return on_gpu && run.train.dtype == DType::bf16 && mesh.edp == 1 && replica_slots(run.moe, mesh.ep) == 0;
}

DType gradient_dtype(Replicas replicas, const RunSpec& run) {
  return replicas == Replicas::edp ? run.expert_gradients : DType::f32;
}

int64_t padded_gradient(int64_t elements, DType dtype) {
  const int64_t unit = unit_of(dtype);
  return (elements + unit - 1) / unit * unit;
}

int64_t cut_unit(Replicas replicas, int64_t elements, int64_t members, DType dtype) {
  constexpr int64_t kLarge = int64_t{1} << 20, kUnit = 4096;
  return replicas == Replicas::edp && elements / members >= kLarge ? kUnit : unit_of(dtype);
}

int64_t cut_begin(int64_t elements, int64_t members, int64_t m, int64_t unit) {
  const int64_t even = elements / members * m + elements % members * m / members;
  return std::min(elements, (even + unit - 1) / unit * unit);
}

int64_t sum_piece_elements(int64_t largest_layer, int64_t block) {
  return padded_gradient(std::min(largest_layer / 2, block / 8), DType::bf16);
}

std::vector<int64_t> GradientBlock::counts(int64_t begin, int64_t count) const {
  MW_CHECK(begin >= 0 && begin + count <= cuts.back(), "elements {} + {} of a block of {}", begin, count, cuts.back());
  std::vector<int64_t> list;
  for (size_t m = 0; m + 1 < cuts.size(); ++m)
    list.push_back(std::clamp(cuts[m + 1], begin, begin + count) - std::clamp(cuts[m], begin, begin + count));
  return list;
}

ElementRange GradientBlock::own(int64_t begin, int64_t count, int of_member) const {
  const auto m = static_cast<size_t>(of_member);
  const int64_t first = std::clamp(cuts[m], begin, begin + count);
  return {first - begin, std::clamp(cuts[m + 1], begin, begin + count) - first};
}

GradientBlocks make_gradient_blocks(const std::vector<ParamRow>& rows, const std::vector<LocalParam>& locals,
                                    const Mesh& mesh, const MeshCoords& coords, const RunSpec& run) {
  GradientBlocks out;
  for (size_t i = 0; i < rows.size(); ++i) {
    int64_t& end = out.blocks[static_cast<size_t>(locals[i].replicas)].cuts.back();
    out.begins.push_back(rows[i].trained ? end : 0);
    if (rows[i].trained) end += padded_gradient(locals[i].numel(), gradient_dtype(locals[i].replicas, run));
  }
  if (run.mesh.zero == 0) return out;
  const auto cut_over = [&](Replicas replicas, int members) {
    GradientBlock& block = out.blocks[static_cast<size_t>(replicas)];
    if (members > 1)
      cut(block, members, member_of(replicas, mesh, coords, run),
          cut_unit(replicas, block.cuts.back(), members, gradient_dtype(replicas, run)));
  };
  cut_over(Replicas::dp, mesh.dp);
  cut_over(Replicas::stage, mesh.dp * mesh.tp);
  cut_over(Replicas::edp, mesh.edp);
  return out;
}

int member_of(Replicas replicas, const Mesh& mesh, const MeshCoords& coords, const RunSpec& run) {
  if (run.mesh.zero == 0) return 0;
  switch (replicas) {
    case Replicas::dp: return coords.dp;
    case Replicas::stage: return coords.dp * mesh.tp + coords.tp;
    case Replicas::edp: return coords.edp;
  }
  MW_CHECK(false, "replicas {}", static_cast<int>(replicas));
}

bool cuts_master(const ParamRow& row, const GradientBlock& block, DType dtype) {
  return block.is_cut() && dtype == DType::bf16 && row.role == ParamRole::matrix;
}

StateElements state_elements(const ParamRow& row, const GradientBlock& block, int64_t begin, int64_t elements,
                             int member, DType dtype) {
  const ElementRange all{0, elements};
  const ElementRange owned = row.trained ? block.own(begin, elements, member) : all;
  return {owned, cuts_master(row, block, dtype) ? owned : all};
}

}  // namespace mw
