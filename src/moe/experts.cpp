#include "moe/experts.h"

#include "ops/expert_bias.h"

namespace mw {

std::span<const int32_t> Experts::experts_of(const ExpertBatch& batch) const {
  return std::span(biases.expert_of_slot)
      .subspan(static_cast<size_t>(batch.slot_begin), static_cast<size_t>(batch.slot_count));
}

void Experts::hidden(Stream& stream, const ExpertBatch& rows, const ExpertWeights& weights, TensorView h_RcF) const {
  const TraceScope part(stream.trace(), "expert_up");
  const SortedRows h{flat_halves(h_RcF), nullptr};
  esmm(stream, rows.in, rows.offsets, weights.up, h, products);
  if (biases.up.data != nullptr) add_expert_bias(stream, h, rows.offsets, experts_of(rows), biases.up);
}

void Experts::forward(Stream& stream, const ExpertBatch& batch, const ExpertWeights& weights, TensorView h_RcF,
                      TensorView a_RF) const {
  const int64_t begin = batch.offsets.front(), count = batch.offsets.back() - begin;
  hidden(stream, batch, weights, h_RcF);
  const TraceScope part(stream.trace(), "expert_down");
  activate(stream, activation, h_RcF.slice(begin, count), a_RF.slice(begin, count));
  esmm(stream, {a_RF, nullptr}, batch.offsets, weights.down, batch.out, products);
  if (biases.down.data != nullptr) add_expert_bias(stream, batch.out, batch.offsets, experts_of(batch), biases.down);
}

void Experts::backward(Stream& stream, const ExpertBatch& batch, const ExpertWeights& weights, TensorView h_RcF,
                       TensorView a_RF) const {
  const int64_t begin = batch.offsets.front(), count = batch.offsets.back() - begin;
  const TensorView h = h_RcF.slice(begin, count), a = a_RF.slice(begin, count);
  const TraceScope part(stream.trace(), "expert_down_d_input");
  esmm_d_input(stream, batch.in, batch.offsets, weights.down, {a_RF, nullptr}, products);
  activate_backward(stream, activation, h, a, batch.weights_R.slice(begin, count), h, a,
                    batch.d_weights_R.slice(begin, count));
  if (biases.up.data != nullptr)
    ess(stream, {flat_halves(h_RcF), nullptr}, batch.offsets, biases.d_up, experts_of(batch));
  if (biases.down.data == nullptr) return;
  ess(stream, batch.in, batch.offsets, biases.d_down, experts_of(batch), batch.weights_R);
  expert_bias_products(stream, batch.in, batch.offsets, experts_of(batch), biases.down, batch.d_weights_R);
}

void Experts::up_d_input(Stream& stream, const ExpertBatch& batch, const ExpertWeights& weights,
                         TensorView d_h_RcF) const {
  const TraceScope part(stream.trace(), "expert_up_d_input");
  esmm_d_input(stream, {flat_halves(d_h_RcF), nullptr}, batch.offsets, weights.up, batch.out, products);
}

}  // namespace mw
