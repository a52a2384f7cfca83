#include "moe/transports/leg_exchange.h"

namespace mw {

RowExchange exchange_of(const ExchangeLeg& leg, Direction direction, int members, int64_t row_bytes, void* from,
                        void* to) {
  const auto fill = [&](const std::vector<RowMessage>& messages, std::vector<int64_t>& counts,
                        std::vector<int64_t>& offsets) {
    counts.assign(static_cast<size_t>(members), 0);
    offsets.assign(static_cast<size_t>(members), 0);
    for (const RowMessage& m : messages) {
      counts[static_cast<size_t>(m.peer)] = m.rows;
      offsets[static_cast<size_t>(m.peer)] = m.first;
    }
  };
  const bool out = direction == Direction::to_experts;
  RowExchange x;
  fill(out ? leg.send : leg.receive, x.send_counts, x.send_offsets);
  fill(out ? leg.receive : leg.send, x.receive_counts, x.receive_offsets);
  x.send = out ? from : to;
  x.receive = out ? to : from;
  x.row_bytes = row_bytes;
  return x;
}

}  // namespace mw
