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
  // Rows of this size that this member sent to itself.
  int64_t own_rows(int64_t row_bytes) const {
    const auto it = own_by_row_bytes_.find(row_bytes);
    return it == own_by_row_bytes_.end() ? 0 : it->second;
  }
  int64_t starts = 0;  // of all-to-alls on a stream, each of one or more together
  int64_t maxima = 0;
  // Bytes for others: of parts that all members get, of sums that others get.
  int64_t gathered_bytes = 0, reduced_bytes = 0;

  void all_reduce_max(std::span<int64_t> values) override {
    ++maxima;
    ForwardingComm::all_reduce_max(values);
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    if (root == rank()) gathered_bytes += (size() - 1) * static_cast<int64_t>(bytes.size());
    ForwardingComm::broadcast(bytes, root);
  }
  void reduce_sum(std::span<float> values, int root) override {
    if (root != rank()) reduced_bytes += static_cast<int64_t>(values.size_bytes());
    ForwardingComm::reduce_sum(values, root);
  }
  std::unique_ptr<Pending> all_to_all(const RowExchange& exchange) override {
    ++by_row_bytes_[exchange.row_bytes];
    own_by_row_bytes_[exchange.row_bytes] += exchange.send_counts[static_cast<size_t>(rank())];
    return ForwardingComm::all_to_all(exchange);
  }

  std::unique_ptr<Pending> all_to_all(Stream& stream, std::span<const RowExchange> exchanges) override {
    ++starts;
    std::unique_ptr<Pending> started = Comm::all_to_all(stream, exchanges);
    if (own_stream_ != nullptr) started->wait();
    return started;
  }

  // As between GPUs: exchanges are done, in their order, before what is given to this stream later.
  void set_exchange_stream(Stream& stream) { own_stream_ = &stream; }
  Stream* exchange_stream() override { return own_stream_; }

 private:
  std::map<int64_t, int64_t> by_row_bytes_, own_by_row_bytes_;
  Stream* own_stream_ = nullptr;
};

}  // namespace mw::test
