// Counts the exchanges of any group.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "comm/comm.h"

namespace mw::test {

// Does what `inner` does, which must outlive it. Groups that are split off are not counted.
class CountingComm : public Comm {
 public:
  using Comm::all_reduce_sum;
  using Comm::all_to_all;
  using Comm::receive;
  using Comm::send;
  explicit CountingComm(Comm& inner) : inner_(inner) {}

  // All-to-alls of rows of this size since the start, whatever they held. Those on a stream end in the same place.
  int64_t exchanges(int64_t row_bytes) const {
    const auto it = by_row_bytes_.find(row_bytes);
    return it == by_row_bytes_.end() ? 0 : it->second;
  }
  int64_t maxima = 0;

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void all_reduce_sum(std::span<float> values) override { inner_.all_reduce_sum(values); }
  void all_reduce_sum(std::span<double> values) override { inner_.all_reduce_sum(values); }
  void all_reduce_sum(std::span<int64_t> values) override { inner_.all_reduce_sum(values); }
  void all_reduce_max(std::span<double> values) override { inner_.all_reduce_max(values); }
  void all_reduce_max(std::span<int64_t> values) override {
    ++maxima;
    inner_.all_reduce_max(values);
  }
  void reduce_sum(std::span<float> values, int root) override { inner_.reduce_sum(values, root); }
  void broadcast(std::span<std::byte> bytes, int root) override { inner_.broadcast(bytes, root); }
  void barrier() override { inner_.barrier(); }
  std::unique_ptr<Pending> all_to_all(const RowExchange& exchange) override {
    ++by_row_bytes_[exchange.row_bytes];
    return inner_.all_to_all(exchange);
  }
  std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to) override { return inner_.send(bytes, to); }
  std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from) override {
    return inner_.receive(bytes, from);
  }
  std::unique_ptr<Comm> split(int color, int key) override { return inner_.split(color, key); }

 private:
  Comm& inner_;
  std::map<int64_t, int64_t> by_row_bytes_;
};

}  // namespace mw::test
