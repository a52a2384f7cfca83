// Groups of GPUs: the source of NCCL and RCCL builds, compiled against a stand-in of that library.
#include <gtest/gtest.h>

#define MOEWRIGHT_NCCL_NAME "NCCL"
#include "comm/comm.cpp"           // NOLINT
#include "comm/gpu_comm_nccl.cpp"  // NOLINT: with the stand-in of nccl.h

namespace mw {
namespace {

using Calls = std::vector<std::string>;

// Does nothing, and asks whoever watches whenever it is waited for.
class QuietQueue : public DeviceQueue {
 public:
  void copy(void*, const void*, size_t) override {}
  void write(void*, const void*, size_t) override {}
  void read(void*, const void*, size_t) override {}
  Mark mark() override { return std::make_shared<int>(0); }
  void wait_for(const Mark&) override {}
  Stamp stamp() noexcept override { return nullptr; }
  int64_t nanoseconds(Stamp, Stamp) override { return 0; }
  void take_stamps_back() override {}
  void watch(std::function<void()> check) override { watchers_.push_back(std::move(check)); }
  void wait() override {
    for (const auto& watcher : watchers_) watcher();
  }
  void wait_until(const Mark&) override { wait(); }
  void* native() override { return nullptr; }

 private:
  std::vector<std::function<void()>> watchers_;
};

// Member 1 of 3, on the host.
class HostComm : public Comm {
 public:
  using Comm::all_reduce_sum;
  using Comm::all_to_all;
  using Comm::receive;
  using Comm::send;
  int rank() const override { return 1; }
  int size() const override { return 3; }
  void all_reduce_sum(std::span<float>) override {}
  void all_reduce_sum(std::span<double>) override {}
  void all_reduce_sum(std::span<int64_t>) override {}
  void all_reduce_max(std::span<double>) override {}
  void all_reduce_max(std::span<int64_t>) override {}
  void reduce_sum(std::span<float>, int) override {}
  void broadcast(std::span<std::byte>, int) override {}
  void barrier() override {}
  std::unique_ptr<Pending> all_to_all(const RowExchange&) override { return std::make_unique<DonePending>(); }
  std::unique_ptr<Pending> send(std::span<const std::byte>, int) override { return std::make_unique<DonePending>(); }
  std::unique_ptr<Pending> receive(std::span<std::byte>, int) override { return std::make_unique<DonePending>(); }
  std::unique_ptr<Comm> split(int, int) override { return std::make_unique<HostComm>(); }
  void check_peers() override {
    if (lost) fail(Exit::comm, "rank 2 is gone");
  }
  bool lost = false;
};

// Two groups on the first link and one on another, as of data, experts and a pipeline.
class GpuGroups : public testing::Test {
 protected:
  GpuGroups() {
    nccl_calls = {};
    first_link = open_gpu_link(device, world);
    for (const auto& link : {first_link, first_link, open_gpu_link(device, *first_link)})
      groups.push_back(make_gpu_comm(std::make_unique<HostComm>(), link));
  }
  Calls calls() { return std::exchange(nccl_calls.list, {}); }
  const Device device{DeviceKind::cuda, 0};
  HostComm world;
  std::shared_ptr<GpuLink> first_link;
  std::vector<std::unique_ptr<Comm>> groups;
  Stream stream{device, 1, std::make_unique<QuietQueue>()};
  std::vector<float> values = std::vector<float>(12);
};

// Both sides know the counts: what has none is never asked for.
TEST_F(GpuGroups, AskForWhatHasBytes) {
  RowExchange x;
  x.send = x.receive = values.data();
  x.send_counts = {2, 0, 1};
  x.receive_counts = {0, 0, 3};
  x.send_offsets = x.receive_offsets = {0, 2, 2};
  x.row_bytes = 4;
  groups[0]->all_to_all(stream, x)->wait();
  EXPECT_EQ(calls(), (Calls{"[", "send 8 0", "send 4 2", "receive 12 2", "]"}));
  x.send_counts = x.receive_counts = {0, 0, 0};
  groups[0]->all_to_all(stream, x)->wait();
  EXPECT_EQ(calls(), (Calls{"[", "]"}));
  groups[2]->send(stream, {}, 0)->wait();
  groups[2]->receive(stream, {}, 0)->wait();
  EXPECT_EQ(calls(), Calls{});
}

// One start of all messages, those between two members in the order of the exchanges.
TEST_F(GpuGroups, StartExchangesTogether) {
  RowExchange wide;
  wide.send = wide.receive = values.data();
  wide.send_counts = {2, 0, 1};
  wide.receive_counts = {0, 0, 3};
  wide.send_offsets = wide.receive_offsets = {0, 2, 2};
  wide.row_bytes = 4;
  RowExchange narrow = wide, nothing = wide;
  narrow.row_bytes = 1;
  nothing.send_counts = nothing.receive_counts = {0, 0, 0};
  groups[0]->all_to_all(stream, std::vector{wide, nothing, narrow})->wait();
  EXPECT_EQ(calls(), (Calls{"[", "send 8 0", "send 4 2", "receive 12 2", "send 2 0", "send 1 2", "receive 3 2", "]"}));
}

TEST_F(GpuGroups, ShareOutEvenAndUnevenParts) {
  const std::vector<int64_t> even = {4, 4, 4}, uneven = {5, 0, 7}, bytes = {20, 0, 28};
  groups[0]->reduce_scatter_sum(stream, values, even)->wait();
  groups[0]->reduce_scatter_sum(stream, values, uneven)->wait();
  groups[1]->all_gather(stream, std::as_writable_bytes(std::span(values)), bytes)->wait();
  groups[1]->all_reduce_sum(stream, std::span<float>(values))->wait();
  EXPECT_EQ(calls(), (Calls{"reduce_scatter 4", "[", "reduce 5 0", "reduce 7 2", "]", "[", "broadcast 20 0",
                            "broadcast 28 2", "]", "all_reduce 12"}));
}

// A kernel of one group may lie behind that of another, on either link: all are told before any is waited for.
TEST_F(GpuGroups, EndTogetherWhenARankIsLost) {
  groups[1]->all_reduce_sum(stream, std::span<float>(values))->wait();
  (void)calls();
  stream.wait();
  EXPECT_EQ(calls(), Calls{});
  world.lost = true;
  EXPECT_THROW(stream.wait(), Error);
  EXPECT_EQ(calls(), (Calls{"[", "abort of 1", "abort of 2", "abort of 3", "]"}));
  for (const auto& group : groups) EXPECT_THROW(group->all_reduce_sum(stream, std::span<float>(values)), Error);
  groups.clear();
  EXPECT_EQ(calls(), Calls{});
}

TEST_F(GpuGroups, EndTogetherWhenOneFails) {
  groups[0]->all_reduce_sum(stream, std::span<float>(values))->wait();
  (void)calls();
  nccl_calls.failing = 3;
  try {
    stream.wait();
    ADD_FAILURE() << "the error of a group was not met";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("an exchange between GPUs"), std::string::npos) << error.what();
  }
  EXPECT_EQ(calls(), (Calls{"[", "abort of 1", "abort of 2", "abort of 3", "]"}));
}

TEST_F(GpuGroups, AreDestroyedInPeaceAndAbortedInFailure) {
  groups.pop_back();
  EXPECT_EQ(calls(), Calls{"destroy of 3"});
  try {
    const std::vector<std::unique_ptr<Comm>> unwound = std::move(groups);
    fail(Exit::internal, "a failure");
  } catch (const Error&) {
  }
  EXPECT_EQ(calls(), (Calls{"[", "abort of 1", "abort of 2", "]", "[", "]"}));
}

// An abort within a group of calls that was left open would wait for its end.
TEST_F(GpuGroups, LeaveNoCallsOpen) {
  RowExchange x;
  x.send = x.receive = values.data();
  x.send_counts = x.receive_counts = {1, 0, 1};
  x.send_offsets = x.receive_offsets = {0, 1, 1};
  x.row_bytes = 4;
  nccl_calls.sends = false;
  EXPECT_THROW(groups[0]->all_to_all(stream, x), Error);
  EXPECT_EQ(calls(), (Calls{"[", "send 4 0", "]"}));
}

TEST_F(GpuGroups, EndWhenTold) {
  abort_exchanges(*first_link);
  EXPECT_EQ(calls(), (Calls{"[", "abort of 1", "abort of 2", "abort of 3", "]"}));
}

}  // namespace

std::unique_ptr<DeviceQueue> open_queue(Device, QueueOptions) { return std::make_unique<QuietQueue>(); }

}  // namespace mw
