#include "moe/transports/transport_padded.h"

#include <algorithm>

namespace mw {

FlatTransport::SendOrder PaddedTransport::set_send_counts(std::vector<int64_t>& by_position) {
  int64_t capacity = by_position.empty() ? 0 : *std::max_element(by_position.begin(), by_position.end());
  ep_.all_reduce_max(std::span(&capacity, 1));
  SendOrder order{capacity * static_cast<int64_t>(by_position.size()), {}, {}};
  int64_t padded = 0, sorted = 0;
  for (const int64_t rows : by_position) {
    order.to_sent.push_back({sorted, padded, rows});
    order.to_sorted.push_back({padded, sorted, rows});
    padded += capacity;
    sorted += rows;
  }
  std::fill(by_position.begin(), by_position.end(), capacity);
  return order;
}

}  // namespace mw
