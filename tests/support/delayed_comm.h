// A group for tests of sums on a stream: nothing moves before it is waited for, and until then nobody may touch it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/comm.h"

namespace mw::test {

struct StartedSum {
  const Comm* group;
  std::span<float> values;
};

// Every member holds what this one does, so that a sum on a stream multiplies by the size. Sums over host memory leave
// their values.
class DelayedComm : public Comm {
 public:
  using Comm::all_to_all;
  using Comm::receive;
  using Comm::send;
  DelayedComm(int size, std::vector<StartedSum>& started, int rank = 0) : size_(size), rank_(rank), started_(started) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce_sum(std::span<float>) override {}
  void all_reduce_sum(std::span<double>) override {}
  void all_reduce_sum(std::span<int64_t>) override {}
  void all_reduce_max(std::span<double>) override {}
  void all_reduce_max(std::span<int64_t>) override {}
  void reduce_sum(std::span<float>, int) override {}
  void broadcast(std::span<std::byte>, int) override {}
  void barrier() override {}
  std::unique_ptr<Pending> all_to_all(const RowExchange&) override { return nullptr; }
  std::unique_ptr<Pending> send(std::span<const std::byte>, int) override { return nullptr; }
  std::unique_ptr<Pending> receive(std::span<std::byte>, int) override { return nullptr; }
  std::unique_ptr<Comm> split(int, int) override { return nullptr; }
  std::unique_ptr<Pending> all_reduce_sum(Stream& stream, std::span<float> values) override {
    EXPECT_FALSE(values.empty());
    stream.wait();
    started_.push_back({this, values});
    return std::make_unique<Delayed>(values, values, static_cast<float>(size_));
  }
  // Only this member's part comes out as a sum.
  std::unique_ptr<Pending> reduce_scatter_sum(Stream& stream, std::span<float> values,
                                              std::span<const int64_t> counts) override {
    EXPECT_FALSE(values.empty());
    stream.wait();
    started_.push_back({this, values});
    std::span<float> own;
    for_each_part(values, counts, [&](std::span<float> part, int member) {
      if (member == rank_) own = part;
    });
    return std::make_unique<Delayed>(values, own, static_cast<float>(size_));
  }
  std::unique_ptr<Pending> all_gather(Stream&, std::span<std::byte> bytes, std::span<const int64_t> counts) override {
    for_each_part(bytes, counts, [](std::span<std::byte>, int) {});
    return std::make_unique<DonePending>();
  }

 private:
  class Delayed : public Pending {
   public:
    // Of what was given, `summed` comes out as a sum.
    Delayed(std::span<float> values, std::span<float> summed, float factor)
        : values_(values), summed_(summed), seen_(values.begin(), values.end()), factor_(factor) {}
    ~Delayed() override { EXPECT_TRUE(done_) << "a sum that nobody waited for"; }
    void wait() override {
      if (std::exchange(done_, true)) return;
      EXPECT_TRUE(std::equal(seen_.begin(), seen_.end(), values_.begin())) << "touched while it was summed";
      for (float& value : summed_) value *= factor_;
    }

   private:
    std::span<float> values_, summed_;
    std::vector<float> seen_;
    float factor_;
    bool done_ = false;
  };

  int size_, rank_;
  std::vector<StartedSum>& started_;
};

}  // namespace mw::test
