#include "moe/transports/transport_in_place.h"

#include <utility>

namespace mw {

InPlaceTransport::InPlaceTransport(const ExpertPlacement& placement, ResidentExperts experts, ExpertScratch scratch)
    : InPlaceTransport(placement.experts_of(0), {0, placement.experts()}, std::move(experts), std::move(scratch)) {}

InPlaceTransport::InPlaceTransport(std::vector<int> order, std::vector<int64_t> chunk_begins, ResidentExperts experts,
                                   ExpertScratch scratch)
    : experts_(std::move(experts)),
      order_(std::move(order)),
      chunk_begins_(std::move(chunk_begins)),
      scratch_(std::move(scratch)) {}

void InPlaceTransport::prepare(Stream& stream, const RoutedTokens& routed, TensorView gate_weights_TK, bool) {
  layout_ = routed.layout;
  gate_weights_ = gate_weights_TK;
  counts_.read(stream, routed);
}

ExpertBatch InPlaceTransport::dispatch_finish(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) {
  if (pass == Pass::forward && chunk == 0) find_offsets(stream);
  y_ = scratch_.y.take(layout_.rows);
  ExpertBatch batch = forward_rows(chunk, source_TD);
  batch.out = {y_, nullptr};
  if (pass != Pass::backward) return batch;
  batch.weights_R = layout_.weights_R.slice(0, layout_.rows);
  batch.d_weights_R = scratch_.d_row_weights.take(layout_.rows);
  return batch;
}

ExpertBatch InPlaceTransport::forward_rows(int64_t chunk, TensorView x_TD) {
  const int64_t begin = chunk_begins_[static_cast<size_t>(chunk)], end = chunk_begins_[static_cast<size_t>(chunk) + 1];
  ExpertBatch batch;
  batch.slot_begin = begin;
  batch.slot_count = end - begin;
  batch.offsets = std::span(offsets_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin + 1));
  batch.in = {x_TD, layout_.token_ids_R.as<int32_t>()};
  return batch;
}

void InPlaceTransport::combine_finish(Stream& stream, Pass pass, int64_t chunk, const CombineTarget& target) {
  if (chunk + 1 == chunks())
    sum_returned_rows(stream, pass, y_, scratch_.d_row_weights.take(layout_.rows), layout_.row_of_TK, gate_weights_,
                      target);
}

ExpertWeights InPlaceTransport::weights(Stream&, Pass, int64_t) { return experts_.slice(0, layout_.experts); }

GradientTarget InPlaceTransport::gradient(Stream&, ExpertMatrix matrix, int64_t, GradientStore store) {
  return {experts_.gradient(matrix, 0, layout_.experts), store};
}

void InPlaceTransport::find_offsets(Stream& stream) {
  const TraceScope scope(stream.trace(), Work::router, "row_counts");
  offsets_.assign(1, 0);
  const std::vector<int64_t>& rows_per_expert = counts_.wait(stream);
  for (const int expert : order_) offsets_.push_back(offsets_.back() + rows_per_expert[static_cast<size_t>(expert)]);
}

}  // namespace mw
