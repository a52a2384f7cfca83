#include "model/param_store.h"

#include <algorithm>
#include <exception>

#include "core/rng.h"
#include "layout/muon_plan.h"
#include "ops/device.h"
#include "ops/elementwise.h"
#include "ops/split_values.h"

namespace mw {
namespace {

TensorView elements(const TensorView& view, ElementRange range) {
  return {static_cast<std::byte*>(view.data) + range.begin * size_of(view.dtype), view.dtype, {range.count}};
}

// Neighbours in a global tensor and in what is held of it.
struct Run {
  int64_t global, at, count;
};

std::vector<ByteRow> rows_of(std::vector<ByteRow> rows, bool on_host) {
  std::erase_if(rows, [&](const ByteRow& row) { return row.on_host != on_host; });
  return rows;
}

}  // namespace

void repack(Stream& stream, const Parameter& p) {
  for (const Weight& w : p.weights)
    if (w.packed_forward.data != nullptr && w.values.data != nullptr) pack_weight(stream, w);
}

std::vector<TensorSlot> to_slots(const std::vector<ByteRow>& rows) {
  std::vector<TensorSlot> slots;
  for (const ByteRow& row : rows) slots.push_back({row.name, row.dtype, row.shape, row.max_rows});
  return slots;
}

int64_t Parameter::numel() const {
  int64_t n = 0;
  for (const SlicePiece& piece : pieces) n += slice_of(row.shape, piece).size;
  return n;
}

int64_t Parameter::matrix_elements() const { return weights.front().n * weights.front().k; }

TensorView Parameter::held_near() const { return elements(copy_bf16, held); }
void Parameter::set_master(Device device, int64_t at, std::span<const float> values) const {
  if (!is_split()) {
    write_to(device, master.as<float>() + at, values.data(), values.size_bytes());
    return;
  }
  const SplitValues halves(values);
  write_to(device, held_near().as<bf16>() + at, halves.near.data(), 2 * values.size());
  write_to(device, rest.as<uint16_t>() + at, halves.rest.data(), 2 * values.size());
}
float Parameter::master_at(int64_t at) const {
  return is_split() ? join_float(held_near().as<bf16>()[at], rest.as<uint16_t>()[at]) : master.as<float>()[at];
}

TensorView Parameter::owned_master() const {
  return elements(is_split() ? rest : master, {owned.begin - held.begin, owned.count});
}
TensorView Parameter::owned_grad() const { return elements(grad, owned); }
TensorView Parameter::owned_copy() const {
  return copy_bf16.data == nullptr ? TensorView() : elements(copy_bf16, owned);
}

ParamStore::ParamStore(const Plan& plan, const Reserve& reserve, const Reserve& reserve_offloaded)
    : store_(to_slots(rows_of(plan.parameter_rows, false)), reserve),
      offloaded_(to_slots(rows_of(plan.parameter_rows, true)), reserve_offloaded) {
  const std::vector<ParamRow> rows = own_params(plan);
  std::vector<LocalParam> locals;
  for (const ParamRow& row : rows) {
    locals.push_back(local_param(row, plan.model, plan.placements->layers, plan.mesh, plan.coords));
    Parameter p;
    p.row = row;
    p.is_copy = row.role == ParamRole::embedding && !plan.stages.front().embeds;
    p.pieces = locals.back().pieces;
    p.replicas = locals.back().replicas;
    params_.push_back(std::move(p));
  }
  blocks_ = make_gradient_blocks(rows, locals, plan.mesh, plan.coords, plan.run);
  for (size_t i = 0; i < params_.size(); ++i) {
    Parameter& p = params_[i];
    const ParamRow& row = p.row;
    p.block_begin = blocks_.begins[i];
    const GradientBlock& block_of_row = block(p.replicas);
    const StateElements elements =
        state_elements(row, block_of_row, p.block_begin, locals[i].numel(), block_of_row.member, plan.run.train.dtype);
    p.owned = elements.owned;
    p.held = elements.held;
    p.holds_cut = cuts_master(row, block_of_row, plan.run.train.dtype);
    const TensorView master = view_of("param." + row.name);
    MW_CHECK(master.numel() == p.held.count, "{} has master weights {}, expected {} elements", row.name,
             master.describe(), p.held.count);
    (master.dtype == DType::u16 ? p.rest : p.master) = master;
    if (row.trained) p.grad = store_.fixed("grad." + row.name);
    if (has_row("adam_m." + row.name)) p.adam_m = view_of("adam_m." + row.name);
    if (has_row("adam_v." + row.name)) p.adam_v = view_of("adam_v." + row.name);
    make_weights(p, locals[i]);
  }
  if (const int64_t slots = replica_slots(plan.run.moe, plan.mesh.ep); slots > 0)
    for (size_t i = 0; i < rows.size(); ++i)
      if (rows[i].expert) make_replicas(rows[i], locals[i], slots);
  if (store_.has(kReplicaGradient)) replica_gradient_ = store_.fixed(kReplicaGradient);
  if (store_.has("zero.gathered")) gathered_ = store_.fixed("zero.gathered");
  if (store_.has(kSumPieces)) sum_pieces_ = store_.fixed(kSumPieces);
  static_assert(kSquareSumValues == SquareSums::kSets * ExactSum::kLimbs);
  if (store_.has(kSquareSums)) squares_.limbs = store_.fixed(kSquareSums);
  for (const auto& [name, view] : {std::pair(kMuonMatrices, &muon_.matrices),
                                   {kMuonGram, &muon_.gram},
                                   {kMuonSums, &muon_.sums},
                                   {kMuonParts, &muon_.parts}})
    if (store_.has(name)) *view = store_.fixed(name);
  std::vector<std::string> unused = store_.unused();
  for (std::string& name : offloaded_.unused()) unused.push_back(std::move(name));
  MW_CHECK(unused.empty(), "the table of bytes has {} rows that no parameter uses, first {}", unused.size(),
           unused.front());
}

void ParamStore::make_replicas(const ParamRow& row, LocalParam local, int64_t slots) {
  Parameter p;
  p.row = row;
  p.grad = store_.fixed(fmt::format("grad.{}{}", kReplicaSlots, row.name));
  if (const std::string values = fmt::format("param.{}{}", kReplicaSlots, row.name); store_.has(values))
    p.master = store_.fixed(values);
  local.matrices = slots;
  make_weights(p, local, kReplicaSlots);
  replicas_.push_back(std::move(p));
}

void ParamStore::make_weights(Parameter& p, const LocalParam& local, const std::string& at) {
  const ParamRow& row = p.row;
  const std::string forward = "packed_forward." + at + row.name, backward = "packed_backward." + at + row.name;
  const bool packed = store_.has(forward);
  if (!packed && row.role != ParamRole::matrix && row.role != ParamRole::router && row.role != ParamRole::embedding)
    return;
  const int64_t n = local.n, k = local.k;
  TensorView packed_forward, packed_backward;  // a rank without experts has rows of no matrices
  if (packed) packed_forward = store_.fixed(forward);
  if (packed) packed_backward = store_.has(backward) ? store_.fixed(backward) : packed_forward;
  for (int64_t i = 0; i < local.matrices; ++i) {
    Weight w;
    w.n = n;
    w.k = k;
    if (!p.holds_cut && p.master.data != nullptr)
      w.values = TensorView(p.master.as<float>() + i * n * k, DType::f32, {n, k});
    if (packed) {
      w.packed_forward = packed_forward.at(i);
      w.packed_backward = packed_backward.at(i);
    }
    p.weights.push_back(w);
  }
  if (!packed || store_.has(backward)) return;
  if (packed_forward.bytes() == p.numel() * size_of(DType::bf16))
    p.copy_bf16 = TensorView(packed_forward.data, DType::bf16, {p.numel()});
  MW_CHECK(!p.is_split() || p.copy_bf16.data != nullptr, "{} has rests of master weights without a copy in bf16",
           row.name);
}

void ParamStore::place_experts(const Plan& plan) {
  for (Parameter& p : params_)
    if (p.row.expert) p.pieces = local_param(p.row, plan.model, plan.placements->layers, plan.mesh, plan.coords).pieces;
}

bool ParamStore::has(const std::string& name) const {
  return std::any_of(params_.begin(), params_.end(), [&](const Parameter& p) { return p.row.name == name; });
}

Parameter& ParamStore::find(const std::string& name) {
  for (Parameter& p : params_)
    if (p.row.name == name) return p;
  MW_CHECK(false, "no parameter {}", name);
}

void ParamStore::initialise(uint64_t seed, Stream& stream) {
  const int threads = stream.threads();
  for (Parameter& p : params_) {
    const TraceScope part(stream.trace(), "initialise");
    // Columns of a matrix are many short runs, rows a few long ones: threads share pieces of either.
    constexpr int64_t kPiece = 1 << 18;
    if (p.row.init_std == 0) {
      const std::vector<float> same(kPiece, p.row.role == ParamRole::norm ? 1.0f : 0.0f);
      for (int64_t i = 0; i < p.held.count; i += kPiece)
        p.set_master(stream.device(), i,
                     std::span(same).first(static_cast<size_t>(std::min(kPiece, p.held.count - i))));
      continue;
    }
    const RngKey key = make_rng_key(seed, p.row.name);
    const auto std = static_cast<float>(p.row.init_std);
    const std::vector<int64_t>& shape = p.row.shape;
    std::vector<Run> pieces;
    for (const HeldSlice& held : held_slices(shape, p.pieces, p.held))
      for_each_shared_run(shape, whole_tensor(shape), held.slice, [&](int64_t global, int64_t at, int64_t count) {
        for (int64_t i = 0; i < count; i += kPiece)
          pieces.push_back({global + i, held.at + at + i, std::min(kPiece, count - i)});
      });
    std::exception_ptr error;  // none leaves the threads
#pragma omp parallel for schedule(static) num_threads(threads)
    for (size_t r = 0; r < pieces.size(); ++r) {
      try {
        std::vector<float> values(static_cast<size_t>(pieces[r].count));
        fill_normal(key, static_cast<uint64_t>(pieces[r].global), values);
        for (float& value : values) value *= std;
        p.set_master(stream.device(), pieces[r].at, values);
      } catch (...) {
#pragma omp critical(initialise_error)
        error = std::current_exception();
      }
    }
    if (error != nullptr) std::rethrow_exception(error);
  }
  finish_writes(stream.device());
}

void ParamStore::repack(Stream& stream) {
  const TraceScope part(stream.trace(), "repack");
  for (const Parameter& p : params_) mw::repack(stream, p);
}

void ParamStore::repack_updated(Stream& stream) {
  const TraceScope part(stream.trace(), "repack");
  for (const Parameter& p : params_) {
    // Of a copy the update wrote only what this rank owns; where whole masters were gathered, the rest follows them.
    const bool gathered = block(p.replicas).is_cut() && !p.holds_cut;
    if (p.copy_bf16.data == nullptr || gathered) mw::repack(stream, p);
  }
}

void ParamStore::zero_gradients(Stream& stream) {
  const TraceScope part(stream.trace(), "zero_gradients");
  std::vector<TensorView> gradients;
  for (const Parameter& p : params_) {
    // Of key/value heads that ranks of TP share, a rank has the gradients of all, and stores those of one.
    const bool is_overwritten = p.row.role == ParamRole::matrix && (p.row.expert || p.weights.size() == 1);
    if (p.row.trained && !is_overwritten) gradients.push_back(p.grad);
  }
  fill_zeros(stream, gradients);
}

}  // namespace mw
