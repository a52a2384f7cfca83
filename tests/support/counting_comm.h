// Counts the exchanges of any group.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "support/forwarding_comm.h"

namespace mw::test {

class CountingComm : public ForwardingComm {
 public:
  using Comm::all_to_all;
  using ForwardingComm::all_reduce_max;
  using ForwardingComm::ForwardingComm;

  // All-to-alls of rows of this size since the start, whatever they held, on a stream or not.
  int64_t exchanges(int64_t row_bytes) const {
    const auto it = by_row_bytes_.find(row_bytes);
    return it == by_row_bytes_.end() ? 0 : it->second;
  }
  int64_t maxima = 0;

  void all_reduce_max(std::span<int64_t> values) override {
    ++maxima;
    ForwardingComm::all_reduce_max(values);
  }
  std::unique_ptr<Pending> all_to_all(const RowExchange& exchange) override {
    ++by_row_bytes_[exchange.row_bytes];
    return ForwardingComm::all_to_all(exchange);
  }

 private:
  std::map<int64_t, int64_t> by_row_bytes_;
};

}  // namespace mw::test
