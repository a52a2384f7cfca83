// For tests of sums and gathers on a stream, over any group: nothing comes out before it is waited for, until then
// nobody may touch it, and somebody must wait.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "support/forwarding_comm.h"

namespace mw::test {

struct StartedSum {
  const Comm* group;
  std::span<float> values;
};

class DelayedComm : public ForwardingComm {
 public:
  using ForwardingComm::all_reduce_sum;
  // Notes in `started`, which must outlive it, what sums on a stream begin.
  DelayedComm(std::unique_ptr<Comm> inner, std::vector<StartedSum>& started)
      : ForwardingComm(std::move(inner)), started_(started) {}
  DelayedComm(Comm& inner, std::vector<StartedSum>& started) : ForwardingComm(inner), started_(started) {}

  std::unique_ptr<Pending> all_reduce_sum(Stream& stream, std::span<float> values) override {
    std::vector<float> sums = start(stream, values);
    ForwardingComm::all_reduce_sum(std::span(sums));
    return std::make_unique<Delayed>(values, std::move(sums));
  }
  // Only this member's part comes out as a sum, the others as NaN.
  std::unique_ptr<Pending> reduce_scatter_sum(Stream& stream, std::span<float> values,
                                              std::span<const int64_t> counts) override {
    std::vector<float> sums = start(stream, values);
    for_each_part(std::span(sums), counts, [&](std::span<float> part, int member) {
      ForwardingComm::reduce_sum(part, member);
      if (member != rank()) std::fill(part.begin(), part.end(), std::numeric_limits<float>::quiet_NaN());
    });
    return std::make_unique<Delayed>(values, std::move(sums));
  }
  // The parts of others are NaN until they have come.
  std::unique_ptr<Pending> all_gather(Stream& stream, std::span<std::byte> bytes,
                                      std::span<const int64_t> counts) override {
    stream.wait();
    std::vector<std::byte> all(bytes.begin(), bytes.end());
    for_each_part(std::span(all), counts,
                  [&](std::span<std::byte> part, int member) { ForwardingComm::broadcast(part, member); });
    for_each_part(bytes, counts, [&](std::span<std::byte> part, int member) {
      if (member != rank()) std::fill(part.begin(), part.end(), std::byte{0xff});
    });
    return std::make_unique<Delayed>(bytes, std::move(all));
  }

 private:
  class Delayed : public Pending {
   public:
    template <class T>
    Delayed(std::span<T> values, const std::vector<T>& result)
        : values_(std::as_writable_bytes(values)), seen_(values_.begin(), values_.end()) {
      const auto bytes = std::as_bytes(std::span(result));
      result_.assign(bytes.begin(), bytes.end());
    }
    ~Delayed() override { EXPECT_TRUE(done_) << "a result that nobody waited for"; }
    void wait() override {
      if (std::exchange(done_, true)) return;
      EXPECT_TRUE(std::equal(seen_.begin(), seen_.end(), values_.begin())) << "touched while it was under way";
      std::copy(result_.begin(), result_.end(), values_.begin());
    }

   private:
    std::span<std::byte> values_;
    std::vector<std::byte> seen_, result_;
    bool done_ = false;
  };

  std::vector<float> start(Stream& stream, std::span<float> values) {
    EXPECT_FALSE(values.empty());
    stream.wait();
    started_.push_back({this, values});
    return {values.begin(), values.end()};
  }
  std::vector<StartedSum>& started_;
};

}  // namespace mw::test
