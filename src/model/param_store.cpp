#include "model/param_store.h"

#include <algorithm>

#include "core/rng.h"
#include "ops/elementwise.h"

namespace mw {
namespace {

void repack_weights(Stream& stream, const Parameter& p) {
  for (const Weight& w : p.weights)
    if (w.packed_forward.data != nullptr) pack_weight(stream, w);
}

}  // namespace

std::vector<TensorSlot> to_slots(const std::vector<ByteRow>& rows) {
  std::vector<TensorSlot> slots;
  for (const ByteRow& row : rows) slots.push_back({row.name, row.dtype, row.shape, row.max_rows});
  return slots;
}

int64_t elements_per_entry(const ParamRow& row) { return row.shape[0] == 0 ? 0 : row.numel() / row.shape[0]; }

ParamStore::ParamStore(const Plan& plan, const Reserve& reserve) : store_(to_slots(plan.parameter_rows), reserve) {
  for (const ParamRow& row : own_params(plan)) {
    Parameter p;
    p.row = row;
    p.is_copy = row.role == ParamRole::embedding && !plan.stages.front().embeds;
    if (row.expert) p.pieces = expert_pieces(plan.placements[static_cast<size_t>(row.layer)], plan.coords.ep);
    else p.pieces = {{0, 0, 0, row.shape[0]}};
    p.master = store_.fixed("param." + row.name);
    if (row.trained) p.grad = store_.fixed("grad." + row.name);
    if (store_.has("adam_m." + row.name)) {
      p.adam_m = store_.fixed("adam_m." + row.name);
      p.adam_v = store_.fixed("adam_v." + row.name);
    }
    const bool packed = store_.has("packed_forward." + row.name);
    const bool read_by_products =
        packed || row.role == ParamRole::matrix || row.role == ParamRole::router || row.role == ParamRole::embedding;
    if (read_by_products) {
      const int64_t count = row.expert ? p.master.dim(0) : 1, n = row.matrix_n(), k = row.matrix_k();
      for (int64_t i = 0; i < count; ++i) {
        Weight w;
        w.n = n;
        w.k = k;
        w.values = TensorView(p.master.as<float>() + i * n * k, DType::f32, {n, k});
        if (packed) {
          w.packed_forward = store_.fixed("packed_forward." + row.name).at(i);
          const std::string backward = "packed_backward." + row.name;
          w.packed_backward = store_.has(backward) ? store_.fixed(backward).at(i) : w.packed_forward;
        }
        p.weights.push_back(w);
      }
      if (packed && !store_.has("packed_backward." + row.name))
        if (const TensorView form = store_.fixed("packed_forward." + row.name);
            form.bytes() == p.master.numel() * size_of(DType::bf16))
          p.copy_bf16 = TensorView(form.data, DType::bf16, {p.master.numel()});
    }
    params_.push_back(std::move(p));
  }
  const std::vector<std::string> unused = store_.unused();
  MW_CHECK(unused.empty(), "the table of bytes has {} rows that no parameter uses, first {}", unused.size(),
           unused.front());
}

bool ParamStore::has(const std::string& name) const {
  return std::any_of(params_.begin(), params_.end(), [&](const Parameter& p) { return p.row.name == name; });
}

Parameter& ParamStore::find(const std::string& name) {
  for (Parameter& p : params_)
    if (p.row.name == name) return p;
  MW_CHECK(false, "no parameter {}", name);
}

void ParamStore::initialise(uint64_t seed, int threads) {
  for (Parameter& p : params_) {
    float* w = p.master.as<float>();
    if (p.row.init_std == 0) {
      std::fill_n(w, p.master.numel(), p.row.role == ParamRole::norm ? 1.0f : 0.0f);
      continue;
    }
    const RngKey key = make_rng_key(seed, p.row.name);
    const auto std = static_cast<float>(p.row.init_std);
    const int64_t entry = elements_per_entry(p.row);
    for (const SlicePiece& piece : p.pieces) {
      const int64_t shift = (piece.global_begin - piece.local_begin) * entry;
      const int64_t begin = piece.local_begin * entry, end = (piece.local_begin + piece.count) * entry;
#pragma omp parallel for schedule(static) num_threads(threads)
      for (int64_t i = begin; i < end; ++i) w[i] = std * normal_at(key, static_cast<uint64_t>(i + shift));
    }
  }
}

void ParamStore::repack(Stream& stream) {
  const TraceScope part(stream.trace(), "repack");
  for (const Parameter& p : params_) repack_weights(stream, p);
}

void ParamStore::repack_updated(Stream& stream) {
  const TraceScope part(stream.trace(), "repack");
  for (Parameter& p : params_)
    if (p.copy_bf16.data == nullptr) repack_weights(stream, p);
}

void ParamStore::zero_gradients(Stream& stream) {
  const TraceScope part(stream.trace(), "zero_gradients");
  for (Parameter& p : params_)
    if (p.row.trained && !p.row.expert) fill_zero(stream, p.grad);
}

}  // namespace mw
