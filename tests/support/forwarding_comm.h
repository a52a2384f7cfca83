// A group that does what another one does: tests derive from it and change what they watch.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "comm/comm.h"

namespace mw::test {

class ForwardingComm : public Comm {
 public:
  // `inner` must outlive it, or becomes its own.
  explicit ForwardingComm(Comm& inner) : inner_(inner) {}
  explicit ForwardingComm(std::unique_ptr<Comm> inner) : own_(std::move(inner)), inner_(*own_) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void all_reduce_sum(std::span<float> values) override { inner_.all_reduce_sum(values); }
  void all_reduce_sum(std::span<double> values) override { inner_.all_reduce_sum(values); }
  void all_reduce_sum(std::span<int64_t> values) override { inner_.all_reduce_sum(values); }
  void all_reduce_max(std::span<double> values) override { inner_.all_reduce_max(values); }
  void all_reduce_max(std::span<int64_t> values) override { inner_.all_reduce_max(values); }
  void reduce_sum(std::span<float> values, int root) override { inner_.reduce_sum(values, root); }
  void broadcast(std::span<std::byte> bytes, int root) override { inner_.broadcast(bytes, root); }
  void barrier() override { inner_.barrier(); }
  // Those on a stream come here too: Comm's own defaults lead to them.
  std::unique_ptr<Pending> all_to_all(const RowExchange& exchange) override { return inner_.all_to_all(exchange); }
  std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to) override { return inner_.send(bytes, to); }
  std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from) override {
    return inner_.receive(bytes, from);
  }
  // The new group does not forward.
  std::unique_ptr<Comm> split(int color, int key) override { return inner_.split(color, key); }
  void check_peers() override { inner_.check_peers(); }
  Progress* progress() override { return inner_.progress(); }

 private:
  std::unique_ptr<Comm> own_;
  Comm& inner_;
};

}  // namespace mw::test
