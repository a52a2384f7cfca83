#include "engine/muon.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/columns.h"
#include "ops/elementwise.h"
#include "ops/muon.h"

namespace mw {
namespace {

// A part of a matrix that this rank sends or receives.
struct Transfer {
  const MuonMatrix* matrix;
  const MuonPart* part;
  int64_t at;     // elements before it in the buffer of messages
  int64_t place;  // of a received one: elements before it among the blocks of the matrices that this rank owns
  int64_t count() const { return part->elements.count; }
};
struct Messages {
  RowExchange there;  // parts go to the owners of their matrices
  std::vector<Transfer> sends, receives;
};

class MuonUpdate {
 public:
  MuonUpdate(Engine& engine, const UpdateRule& rule, float grad_scale)
      : engine_(engine),
        stream_(engine.stream),
        rule_(rule),
        spec_(engine.plan.run.train.muon),
        memory_(engine.params.muon()),
        grad_scale_(grad_scale) {}

  void update_whole(const MuonRun& run);
  void update_round(const std::vector<MuonMatrix>& round);

 private:
  Parameter& param(size_t row) { return engine_.params.all()[row]; }
  TensorView matrices(int64_t at, int64_t count) const { return memory_.matrices.at(0).slice(at, count); }
  TensorView next(int64_t at, int64_t count) const { return memory_.matrices.at(1).slice(at, count); }
  TensorView parts(int64_t at, int64_t count) const { return memory_.parts.slice(at, count); }

  void add_momentum(Parameter& p, ElementRange elements, const TensorView& out);
  TensorView orthogonalise(const MuonShape& shape, int64_t at, int64_t count);
  void apply(Parameter& p, const MuonShape& shape, ElementRange elements, const TensorView& x);
  void copy_blocks(const MuonMatrix& matrix, int64_t at, bool join);
  Messages messages_of(const std::vector<MuonMatrix>& round) const;
  void orthogonalise_own(const std::vector<MuonMatrix>& round);

  Engine& engine_;
  Stream& stream_;
  const UpdateRule& rule_;
  const MuonSpec& spec_;
  const MuonMemory& memory_;
  float grad_scale_;
};

// `elements` of the local tensor, in a tensor of those that the rank owns.
TensorView owned(const Parameter& p, const TensorView& view, ElementRange elements) {
  return view.flat().slice(elements.begin - p.owned.begin, elements.count);
}

void MuonUpdate::add_momentum(Parameter& p, ElementRange elements, const TensorView& out) {
  muon_momentum(stream_, {spec_.momentum, spec_.nesterov}, rule_.step, grad_scale_, owned(p, p.owned_grad(), elements),
                owned(p, p.adam_m, elements), out);
}

// Of `count` elements from `at` on in the first buffer.
TensorView MuonUpdate::orthogonalise(const MuonShape& shape, int64_t at, int64_t count) {
  const bool in_bf16 = engine_.plan.run.train.dtype == DType::bf16 && engine_.device.kind != DeviceKind::cpu &&
                       shape.n % 64 == 0 && shape.k % 64 == 0;
  return mw::orthogonalise(stream_, matrices(at, count).reshape({count / shape.numel(), shape.n, shape.k}),
                           in_bf16 ? DType::bf16 : DType::f32,
                           {memory_.matrices.at(1), memory_.gram.at(0), memory_.gram.at(1), memory_.sums});
}

void MuonUpdate::apply(Parameter& p, const MuonShape& shape, ElementRange elements, const TensorView& x) {
  const auto n = static_cast<double>(shape.n), k = static_cast<double>(shape.k);
  const double scale =
      spec_.scale == MuonScale::match_rms ? 0.2 * std::sqrt(std::max(n, k)) : std::sqrt(std::max(1.0, n / k));
  const double lr = rule_.lr * p.row.lr_scale;
  const TensorView copy = p.owned_copy();
  muon_update(stream_, static_cast<float>(lr), static_cast<float>(engine_.plan.run.train.weight_decay),
              static_cast<float>(lr * scale), x, owned(p, p.owned_master(), elements),
              copy.data == nullptr ? copy : owned(p, copy, elements));
}

void MuonUpdate::update_whole(const MuonRun& run) {
  Parameter& p = param(run.row);
  add_momentum(p, run.elements, matrices(0, run.elements.count));
  apply(p, run.shape, run.elements, orthogonalise(run.shape, 0, run.elements.count));
}

// Between the blocks of a matrix in `parts` and the matrix: in `matrices` where they are joined, in `next` where it is
// cut again. Both lie at `at`.
void MuonUpdate::copy_blocks(const MuonMatrix& matrix, int64_t at, bool join) {
  const auto [n, k] = std::pair(matrix.shape.n, matrix.shape.k);
  const TensorView blocks = parts(at, n * k), whole = join ? matrices(at, n * k) : next(at, n * k);
  if (matrix.columns.empty()) {
    convert(stream_, join ? blocks : whole, join ? whole : blocks);
    return;
  }
  int64_t begin = 0;
  for (const int64_t count : matrix.columns) {
    const Columns block{blocks.slice(begin * n, n * count).reshape({n, count})};
    const Columns columns{whole.reshape({n, k}), begin};
    copy_columns(stream_, join ? block : columns, join ? columns : block, count);
    begin += count;
  }
}

// Messages between two ranks have the parts in the order of the round.
Messages MuonUpdate::messages_of(const std::vector<MuonMatrix>& round) const {
  const Comm& stage = *engine_.comms.stage;
  const auto ranks = static_cast<size_t>(stage.size());
  std::vector<std::vector<Transfer>> to(ranks), from(ranks);
  int64_t place = 0;
  for (const MuonMatrix& matrix : round)
    for (const MuonPart& part : matrix.parts) {
      if (part.rank == stage.rank()) to[static_cast<size_t>(matrix.owner)].push_back({&matrix, &part, 0, 0});
      if (matrix.owner != stage.rank()) continue;
      from[static_cast<size_t>(part.rank)].push_back({&matrix, &part, 0, place});
      place += part.elements.count;
    }
  // One after the other, rank by rank.
  const auto lay_out = [](const std::vector<std::vector<Transfer>>& by_rank, std::vector<Transfer>& all,
                          std::vector<int64_t>& counts, std::vector<int64_t>& offsets) {
    int64_t at = 0;
    for (const std::vector<Transfer>& of_rank : by_rank) {
      offsets.push_back(at);
      for (Transfer transfer : of_rank) {
        transfer.at = at;
        at += transfer.count();
        all.push_back(transfer);
      }
      counts.push_back(at - offsets.back());
    }
  };
  Messages out;
  out.there = {memory_.parts.data, {}, {}, memory_.matrices.at(1).data, {}, {}, size_of(DType::f32)};
  lay_out(to, out.sends, out.there.send_counts, out.there.send_offsets);
  lay_out(from, out.receives, out.there.receive_counts, out.there.receive_offsets);
  return out;
}

// Those of the round that this rank owns, from their blocks in `parts` and back again.
void MuonUpdate::orthogonalise_own(const std::vector<MuonMatrix>& round) {
  std::vector<const MuonMatrix*> own;
  for (const MuonMatrix& matrix : round)
    if (matrix.owner == engine_.comms.stage->rank()) own.push_back(&matrix);
  const auto copy_all = [&](bool join) {
    int64_t at = 0;
    for (const MuonMatrix* matrix : own) {
      copy_blocks(*matrix, at, join);
      at += matrix->shape.numel();
    }
  };
  copy_all(true);
  std::vector<TensorView> results;
  int64_t at = 0;
  for (size_t i = 0, end = 0; i < own.size(); i = end) {
    const MuonShape& shape = own[i]->shape;
    while (end < own.size() && own[end]->row == own[i]->row && static_cast<int64_t>(end - i) < shape.batch()) ++end;
    const int64_t count = static_cast<int64_t>(end - i) * shape.numel();
    results.push_back(orthogonalise(shape, at, count));
    at += count;
  }
  at = 0;
  for (const TensorView& result : results) {
    convert(stream_, result, next(at, result.numel()));
    at += result.numel();
  }
  copy_all(false);
}

void MuonUpdate::update_round(const std::vector<MuonMatrix>& round) {
  const auto [there, sends, receives] = messages_of(round);
  const RowExchange back{there.receive,     there.receive_counts, there.receive_offsets, memory_.parts.data,
                         there.send_counts, there.send_offsets,   there.row_bytes};
  Comm& stage = *engine_.comms.stage;
  for (const Transfer& t : sends) add_momentum(param(t.matrix->row), t.part->elements, parts(t.at, t.count()));
  stage.all_to_all(stream_, there)->wait();
  for (const Transfer& t : receives) convert(stream_, next(t.at, t.count()), parts(t.place, t.count()));
  orthogonalise_own(round);
  for (const Transfer& t : receives) convert(stream_, parts(t.place, t.count()), next(t.at, t.count()));
  stage.all_to_all(stream_, back)->wait();
  for (const Transfer& t : sends)
    apply(param(t.matrix->row), t.matrix->shape, t.part->elements, parts(t.at, t.count()));
}

}  // namespace

void update_by_muon(Engine& engine, const UpdateRule& rule, float grad_scale) {
  if (engine.plan.run.train.optimizer != Optimizer::muon) return;
  const TraceScope scope(engine.stream.trace(), Work::optimizer, "muon");
  if (!engine.muon) engine.muon = plan_muon(engine.plan);
  MuonUpdate update(engine, rule, grad_scale);
  for (const std::vector<MuonMatrix>& round : engine.muon->rounds) update.update_round(round);
  for (const MuonRun& run : engine.muon->whole) update.update_whole(run);
}

}  // namespace mw
