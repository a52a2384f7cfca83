#include "layout/muon_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/kinds.h"
#include "layout/gradient_blocks.h"

namespace mw {
namespace {

constexpr int64_t kBatchElements = int64_t{16} << 20, kBatchMatrices = 1024;

// The parameters of the ranks with one tensor-parallel and expert-parallel coordinate.
struct Locals {
  std::vector<LocalParam> params;  // by row of own_params
  GradientBlocks blocks;
};

// Ranks that together own each element once.
int group_index(Replicas replicas, const Mesh& mesh, const MeshCoords& coords, const RunSpec& run) {
  if (run.mesh.zero > 0) return 0;
  switch (replicas) {
    case Replicas::dp: return coords.dp;
    case Replicas::edp: return coords.edp;
    case Replicas::stage: return coords.dp * mesh.tp + coords.tp;
  }
  MW_CHECK(false, "replicas {}", static_cast<int>(replicas));
}

// Global indices of the matrices of a local tensor, in the order of its memory.
std::vector<int64_t> matrix_indices(const ParamRow& row, const LocalParam& local, const MuonShape& shape) {
  std::vector<int64_t> indices;
  const int64_t entries = row.expert ? row.shape.front() : 1, each = shape.matrices / entries;
  const auto add = [&](int64_t begin, int64_t count) {
    for (int64_t i = begin * each; i < (begin + count) * each; ++i) indices.push_back(i);
  };
  if (!row.expert) add(0, 1);
  else
    for (const SlicePiece& piece : local.pieces) add(piece.global_begin, piece.count);
  return indices;
}

// The block of rows or columns of each matrix that a local tensor has.
struct MatrixBlock {
  int64_t begin = 0, columns = 0;  // columns: 0 for whole rows
};
MatrixBlock block_of(const ParamRow& row, const LocalParam& local) {
  if (local.pieces.empty()) return {};
  const SlicePiece& piece = local.pieces.front();
  const int axis = row.expert ? piece.cut_axis : piece.axis;
  const bool by_columns = axis > 0 && axis == static_cast<int>(row.shape.size()) - 1;
  return {row.expert ? piece.cut_begin : piece.global_begin, by_columns ? local.shape.back() : 0};
}

class Planner {
 public:
  explicit Planner(const Plan& plan) : plan_(plan), rows_(own_params(plan)) {
    for (const ParamRow& row : rows_) buffers_.widen(row);
  }

  MuonPlan run() {
    for (size_t i = 0; i < rows_.size(); ++i)
      if (rows_[i].muon) add_row(i);
    return std::move(out_);
  }

 private:
  struct Held {
    MatrixBlock block;
    MuonPart part;
  };

  int stage_ranks() const { return plan_.mesh.dp * plan_.mesh.tp; }
  MeshCoords coords(int rank) const { return coords_of(plan_.mesh, plan_.coords.pp * stage_ranks() + rank); }
  int own_rank() const { return plan_.coords.dp * plan_.mesh.tp + plan_.coords.tp; }

  const Locals& locals_of(const MeshCoords& coords) {
    const auto [entry, is_new] = locals_.try_emplace({coords.tp, coords.ep});
    Locals& out = entry->second;
    if (!is_new) return out;
    for (const ParamRow& row : rows_)
      out.params.push_back(local_param(row, plan_.model, plan_.placements->layers, plan_.mesh, coords));
    out.blocks = make_gradient_blocks(rows_, out.params, plan_.mesh, coords, plan_.run);
    return out;
  }

  bool splits(size_t row, const MuonShape& shape);
  std::map<std::pair<int64_t, int>, std::vector<Held>> parts_of(size_t row, const MuonShape& shape);
  void add_row(size_t row);
  void add_whole(size_t row, const MuonShape& shape, std::vector<ElementRange> matrices);
  void add_split(size_t row, const MuonShape& shape, int64_t index, std::vector<Held> held);

  const Plan& plan_;
  std::vector<ParamRow> rows_;
  MuonBuffers buffers_;
  std::map<std::pair<int, int>, Locals> locals_;
  std::vector<int64_t> sent_, owned_;  // elements of the last round, by rank
  MuonPlan out_;
};

// Whether any rank of the stage may own a part of a matrix.
bool Planner::splits(size_t row, const MuonShape& shape) {
  if (plan_.run.mesh.zero > 0) return true;
  for (int tp = 0; tp < plan_.mesh.tp; ++tp)
    for (int ep = 0; ep < plan_.mesh.ep; ++ep) {
      MeshCoords at;
      at.tp = tp;
      at.ep = ep;
      const LocalParam& local = locals_of(at).params[row];
      if (local.numel() != std::ssize(matrix_indices(rows_[row], local, shape)) * shape.numel()) return true;
    }
  return false;
}

// By index of the matrix and group; of the rank's own matrices alone where none is split.
std::map<std::pair<int64_t, int>, std::vector<Planner::Held>> Planner::parts_of(size_t row, const MuonShape& shape) {
  const bool exchanges = splits(row, shape);
  std::map<std::pair<int64_t, int>, std::vector<Held>> matrices;
  for (int rank = 0; rank < stage_ranks(); ++rank) {
    if (!exchanges && rank != own_rank()) continue;
    const MeshCoords at = coords(rank);
    const Locals& locals = locals_of(at);
    const LocalParam& local = locals.params[row];
    const std::vector<int64_t> indices = matrix_indices(rows_[row], local, shape);
    if (local.numel() == 0) continue;
    const int64_t size = local.numel() / std::ssize(indices);
    const ElementRange owned =
        locals.blocks.of(local.replicas)
            .own(locals.blocks.begins[row], local.numel(), member_of(local.replicas, plan_.mesh, at, plan_.run));
    const int group = group_index(local.replicas, plan_.mesh, at, plan_.run);
    const MatrixBlock block = block_of(rows_[row], local);
    for (int64_t m = owned.begin / size; m * size < owned.end(); ++m) {
      const int64_t begin = std::max(owned.begin, m * size), end = std::min(owned.end(), (m + 1) * size);
      matrices[{indices[static_cast<size_t>(m)], group}].push_back({block, {rank, {begin, end - begin}}});
    }
  }
  return matrices;
}

void Planner::add_row(size_t row) {
  const MuonShape shape = muon_shape(rows_[row]);
  std::vector<ElementRange> whole;
  for (auto& [key, held] : parts_of(row, shape)) {
    if (held.size() > 1) add_split(row, shape, key.first, std::move(held));
    else if (held.front().part.rank == own_rank()) whole.push_back(held.front().part.elements);
  }
  add_whole(row, shape, std::move(whole));
}

void Planner::add_whole(size_t row, const MuonShape& shape, std::vector<ElementRange> matrices) {
  std::sort(matrices.begin(), matrices.end(),
            [](const ElementRange& a, const ElementRange& b) { return a.begin < b.begin; });
  const int64_t most = shape.batch() * shape.numel();
  int64_t end = -1;
  for (const ElementRange& matrix : matrices) {
    if (matrix.begin == end && out_.whole.back().elements.count < most)
      out_.whole.back().elements.count += matrix.count;
    else out_.whole.push_back({row, shape, matrix});
    end = matrix.end();
  }
}

void Planner::add_split(size_t row, const MuonShape& shape, int64_t index, std::vector<Held> held) {
  std::sort(held.begin(), held.end(), [](const Held& a, const Held& b) {
    return std::pair(a.block.begin, a.part.elements.begin) < std::pair(b.block.begin, b.part.elements.begin);
  });
  MuonMatrix matrix{row, index, shape, 0, {}, {}};
  matrix.owner = held[(row + static_cast<size_t>(index)) % held.size()].part.rank;
  int64_t elements = 0, last_block = -1;
  for (const Held& h : held) {
    if (h.block.columns > 0 && h.block.begin != last_block) matrix.columns.push_back(h.block.columns);
    last_block = h.block.begin;
    matrix.parts.push_back(h.part);
    elements += h.part.elements.count;
  }
  MW_CHECK(elements == shape.numel(), "parts of matrix {} of {} have {} elements of {}", index, rows_[row].name,
           elements, shape.numel());
  const auto at = [](std::vector<int64_t>& list, int rank) -> int64_t& { return list[static_cast<size_t>(rank)]; };
  bool fits = !out_.rounds.empty() && at(owned_, matrix.owner) + shape.numel() <= buffers_.matrices;
  for (const MuonPart& part : matrix.parts)
    fits = fits && at(sent_, part.rank) + part.elements.count <= buffers_.matrices;
  if (!fits) {
    out_.rounds.emplace_back();
    sent_.assign(static_cast<size_t>(stage_ranks()), 0);
    owned_ = sent_;
  }
  at(owned_, matrix.owner) += shape.numel();
  for (const MuonPart& part : matrix.parts) at(sent_, part.rank) += part.elements.count;
  out_.rounds.back().push_back(std::move(matrix));
}

}  // namespace

int64_t MuonShape::batch() const {
  return std::clamp<int64_t>(kBatchElements / numel(), 1, std::min(matrices, kBatchMatrices));
}

MuonShape muon_shape(const ParamRow& row) {
  const int64_t n = row.shape[row.shape.size() - 2], k = row.shape.back();
  return {row.numel() / (n * k), n, k};
}

void MuonBuffers::widen(const ParamRow& row) {
  if (!row.muon) return;
  const MuonShape shape = muon_shape(row);
  const int64_t batch = shape.batch(), side = std::min(shape.n, shape.k);
  widen({batch * shape.numel(), batch * side * side, batch * kNormParts});
}

void MuonBuffers::widen(const MuonBuffers& other) {
  matrices = std::max(matrices, other.matrices);
  gram = std::max(gram, other.gram);
  sums = std::max(sums, other.sums);
}

std::vector<ByteRow> muon_rows(const MuonBuffers& buffers, const Mesh& mesh) {
  std::vector<ByteRow> rows;
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    ByteRow row;
    row.name = name;
    row.kind = ByteKind::workspace;
    row.shape = std::move(shape);
    rows.push_back(std::move(row));
  };
  if (buffers.matrices == 0) return rows;
  add(kMuonMatrices, {2, buffers.matrices});
  add(kMuonGram, {2, buffers.gram});
  add(kMuonSums, {buffers.sums});
  if (mesh.dp * mesh.tp > 1) add(kMuonParts, {buffers.matrices});
  return rows;
}

MuonPlan plan_muon(const Plan& plan) { return Planner(plan).run(); }

}  // namespace mw
