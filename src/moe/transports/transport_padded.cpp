#include "moe/transports/transport_padded.h"

#include <algorithm>

namespace mw {

void PaddedTransport::set_send_counts(std::vector<int64_t>& by_position) {
  int64_t capacity = by_position.empty() ? 0 : *std::max_element(by_position.begin(), by_position.end());
  ep_.all_reduce_max(std::span(&capacity, 1));
  count_ = capacity * static_cast<int64_t>(by_position.size());
  to_padded_.clear();
  to_sorted_.clear();
  int64_t padded = 0, sorted = 0;
  for (const int64_t rows : by_position) {
    to_padded_.push_back({sorted, padded, rows});
    to_sorted_.push_back({padded, sorted, rows});
    padded += capacity;
    sorted += rows;
  }
  std::fill(by_position.begin(), by_position.end(), capacity);
}

FlatTransport::SendRows PaddedTransport::place_send(Stream& stream) {
  const TensorView weights = scratch_.exchange_weights.take(count_), tokens = padded_.token_ids.take(count_),
                   row_of(padded_.row_of_TK.data, DType::i32, {layout_.tokens, layout_.top_k});
  // The memory of the weights holds the map from sorted to padded rows first, that of the tokens the map back.
  const TensorView padded_row_R(weights.data, DType::i32, {layout_.rows});
  fill_index(stream, to_padded_, padded_row_R);
  gather_values(stream, padded_row_R, layout_.row_of_TK, row_of);
  fill_index(stream, to_sorted_, tokens);
  gather_values(stream, layout_.weights_R, tokens, weights);
  gather_values(stream, layout_.token_ids_R, tokens, tokens);
  return {count_, tokens.as<int32_t>(), weights, row_of};
}

}  // namespace mw
