// The only file that includes nccl.h, which is NCCL's or, on AMD, stands for RCCL's.
#include <nccl.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "comm/gpu_comm.h"
#include "ops/device.h"

namespace mw {

struct GpuLink {
  // Writes are staged: otherwise the driver may let the host wait for earlier exchanges.
  GpuLink(Device device, Comm& of)
      : stream(device, 1, open_queue(device, {.urgent = true, .stage_writes = true})), world(of) {}
  Stream stream;
  DeviceQueue& queue = stream.queue();
  Comm& world;
  // Of all links of the process: kernels of one may wait for those of another.
  std::shared_ptr<std::vector<ncclComm_t>> groups = std::make_shared<std::vector<ncclComm_t>>();
  const DeviceQueue* watching = nullptr;
};

namespace {

void check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  fail(Exit::comm, fmt::format("{} failed: {}; {}", call, ncclGetErrorString(result), ncclGetLastError(nullptr)),
       "another rank may have died: look for the first error of the job; NCCL_DEBUG=WARN prints details");
}

// Calls that are made together. One that fails leaves none open, in which an abort would be lost.
class CallGroup {
 public:
  CallGroup() { check(ncclGroupStart(), "ncclGroupStart"); }
  ~CallGroup() {
    if (open_) (void)ncclGroupEnd();
  }
  CallGroup(const CallGroup&) = delete;
  CallGroup& operator=(const CallGroup&) = delete;
  void end() {
    open_ = false;
    check(ncclGroupEnd(), "ncclGroupEnd");
  }

 private:
  bool open_ = true;
};

// Ends all communicators, so that their kernels end too. As one group of calls: each waits for its queue to run empty,
// where a kernel of the next may lie that has not been told yet (NCCL 2.22 and newer tell all first).
void abort_all(GpuLink& link) {
  (void)ncclGroupStart();
  for (ncclComm_t& group : *link.groups)
    if (group != nullptr) (void)ncclCommAbort(std::exchange(group, nullptr));
  (void)ncclGroupEnd();
}

// Throws when a communicator of the link has met an error, or another rank is gone: inside a node NCCL would not
// notice.
void check_link(GpuLink& link) {
  try {
    link.world.check_peers();
  } catch (...) {
    abort_all(link);
    throw;
  }
  for (const ncclComm_t group : *link.groups) {
    if (group == nullptr) continue;
    ncclResult_t error = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(group, &error);
    if (asked == ncclSuccess && error == ncclSuccess) continue;
    abort_all(link);
    check(asked, "ncclCommGetAsyncError");
    check(error, "an exchange between GPUs");
  }
}

// A stream of the library's vendor.
struct NativeQueue {
  void* handle;
  template <class Handle>
  operator Handle*() const {
    return static_cast<Handle*>(handle);
  }
};

bool are_equal(std::span<const int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts.front(); });
}

class GpuPending : public Pending {
 public:
  GpuPending(DeviceQueue& waiting, DeviceQueue::Mark done) : waiting_(waiting), done_(std::move(done)) {}
  ~GpuPending() override {
    if (done_ != nullptr && std::uncaught_exceptions() == 0) wait();
  }
  void wait() override {
    if (done_ != nullptr) waiting_.wait_for(done_);
    done_ = nullptr;
  }

 private:
  DeviceQueue& waiting_;
  DeviceQueue::Mark done_;
};

class GpuComm : public Comm {
 public:
  GpuComm(std::unique_ptr<Comm> host, std::shared_ptr<GpuLink> link) : host_(std::move(host)), link_(std::move(link)) {
    ncclUniqueId id{};
    if (rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    host_->broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    ncclComm_t group = nullptr;
    check(ncclCommInitRank(&group, size(), id, rank()), "ncclCommInitRank");
    index_ = link_->groups->size();
    link_->groups->push_back(group);
  }
  ~GpuComm() override {
    // Peers of a rank that fails may be gone: nothing is waited for.
    if (std::uncaught_exceptions() > 0) abort_all(*link_);
    if (ncclComm_t group = std::exchange((*link_->groups)[index_], nullptr); group != nullptr)
      (void)ncclCommDestroy(group);
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  void all_reduce_sum(std::span<float> values) override { host_->all_reduce_sum(values); }
  void all_reduce_sum(std::span<double> values) override { host_->all_reduce_sum(values); }
  void all_reduce_sum(std::span<int64_t> values) override { host_->all_reduce_sum(values); }
  void all_reduce_max(std::span<double> values) override { host_->all_reduce_max(values); }
  void all_reduce_max(std::span<int64_t> values) override { host_->all_reduce_max(values); }
  void reduce_sum(std::span<float> values, int root) override { host_->reduce_sum(values, root); }
  void broadcast(std::span<std::byte> bytes, int root) override { host_->broadcast(bytes, root); }
  void barrier() override { host_->barrier(); }
  std::unique_ptr<Pending> all_to_all(const RowExchange& x) override { return host_->all_to_all(x); }
  std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to) override { return host_->send(bytes, to); }
  std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from) override {
    return host_->receive(bytes, from);
  }
  std::unique_ptr<Comm> split(int color, int key) override { return make_gpu_comm(host_->split(color, key), link_); }
  Progress* progress() override { return host_->progress(); }

  Stream* exchange_stream() override { return &link_->stream; }
  std::unique_ptr<Pending> all_reduce_sum(Stream& stream, std::span<float> values) override {
    follow(stream);
    {
      const QueueScope scope(stream.trace(), link_->queue, Work::reduce, "all_reduce",
                             {"bytes", static_cast<int64_t>(values.size_bytes())});
      check(ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat32, ncclSum, group(), native()),
            "ncclAllReduce");
    }
    return std::make_unique<GpuPending>(stream.queue(), link_->queue.mark());
  }

  std::unique_ptr<Pending> reduce_scatter_sum(Stream& stream, std::span<float> values,
                                              std::span<const int64_t> counts) override {
    follow(stream);
    {
      const QueueScope scope(stream.trace(), link_->queue, Work::reduce, "reduce_scatter",
                             {"bytes", static_cast<int64_t>(values.size_bytes())});
      if (are_equal(counts)) {
        const size_t count = values.size() / counts.size();
        check(ncclReduceScatter(values.data(), values.data() + static_cast<size_t>(rank()) * count, count, ncclFloat32,
                                ncclSum, group(), native()),
              "ncclReduceScatter");
      } else {
        CallGroup calls;
        for_each_part(values, counts, [&](std::span<float> part, int member) {
          check(ncclReduce(part.data(), part.data(), part.size(), ncclFloat32, ncclSum, member, group(), native()),
                "ncclReduce");
        });
        calls.end();
      }
    }
    return std::make_unique<GpuPending>(stream.queue(), link_->queue.mark());
  }

  std::unique_ptr<Pending> all_gather(Stream& stream, std::span<std::byte> bytes,
                                      std::span<const int64_t> counts) override {
    follow(stream);
    {
      const QueueScope scope(stream.trace(), link_->queue, Work::exchange, "all_gather",
                             {"bytes", static_cast<int64_t>(bytes.size())});
      if (are_equal(counts)) {
        const size_t count = bytes.size() / counts.size();
        check(ncclAllGather(bytes.data() + static_cast<size_t>(rank()) * count, bytes.data(), count, ncclUint8, group(),
                            native()),
              "ncclAllGather");
      } else {
        CallGroup calls;
        for_each_part(bytes, counts, [&](std::span<std::byte> part, int member) {
          check(ncclBroadcast(part.data(), part.data(), part.size(), ncclUint8, member, group(), native()),
                "ncclBroadcast");
        });
        calls.end();
      }
    }
    return std::make_unique<GpuPending>(stream.queue(), link_->queue.mark());
  }

  std::unique_ptr<Pending> all_to_all(Stream& stream, std::span<const RowExchange> exchanges) override {
    follow(stream);
    start_messages(stream, exchanges);
    return std::make_unique<GpuPending>(stream.queue(), link_->queue.mark());
  }

  std::unique_ptr<Pending> send(Stream& stream, std::span<const std::byte> bytes, int to) override {
    return message(stream, "send", bytes.size(),
                   [&] { check(ncclSend(bytes.data(), bytes.size(), ncclUint8, to, group(), native()), "ncclSend"); });
  }
  std::unique_ptr<Pending> receive(Stream& stream, std::span<std::byte> bytes, int from) override {
    return message(stream, "receive", bytes.size(), [&] {
      check(ncclRecv(bytes.data(), bytes.size(), ncclUint8, from, group(), native()), "ncclRecv");
    });
  }

 private:
  // Both sides know the size: one without bytes is never started.
  template <class Start>
  std::unique_ptr<Pending> message(Stream& stream, const char* label, size_t bytes, const Start& start) {
    follow(stream);
    {
      const QueueScope scope(stream.trace(), link_->queue, Work::exchange, label,
                             {"bytes", static_cast<int64_t>(bytes)});
      if (bytes > 0) start();
    }
    return std::make_unique<GpuPending>(stream.queue(), link_->queue.mark());
  }
  void start_messages(Stream& stream, std::span<const RowExchange> exchanges) {
    int64_t bytes = 0;
    for (const RowExchange& x : exchanges)
      bytes += std::accumulate(x.send_counts.begin(), x.send_counts.end(), int64_t{0}) * x.row_bytes;
    const QueueScope scope(stream.trace(), link_->queue, Work::exchange, "all_to_all", {"bytes", bytes});
    CallGroup calls;
    for (const RowExchange& x : exchanges) add_messages(x);
    calls.end();
  }
  void add_messages(const RowExchange& x) {
    for (int peer = 0; peer < size(); ++peer) {
      const auto p = static_cast<size_t>(peer);
      const auto* from = static_cast<const std::byte*>(x.send) + x.send_offsets[p] * x.row_bytes;
      auto* to = static_cast<std::byte*>(x.receive) + x.receive_offsets[p] * x.row_bytes;
      // Both sides know the counts: a message without rows is never started.
      if (const auto bytes = static_cast<size_t>(x.send_counts[p] * x.row_bytes); bytes > 0)
        check(ncclSend(from, bytes, ncclUint8, peer, group(), native()), "ncclSend");
      if (const auto bytes = static_cast<size_t>(x.receive_counts[p] * x.row_bytes); bytes > 0)
        check(ncclRecv(to, bytes, ncclUint8, peer, group(), native()), "ncclRecv");
    }
  }
  ncclComm_t group() const {
    if ((*link_->groups)[index_] == nullptr)
      fail(Exit::comm, "an earlier collective between GPUs failed", "look for the first error of the job");
    return (*link_->groups)[index_];
  }
  NativeQueue native() const { return {link_->queue.native()}; }

  // What comes next on the link starts after what the stream has been given so far.
  void follow(Stream& stream) {
    if (Progress* noted = progress(); noted != nullptr) noted->begin_collective();
    if (link_->watching != &stream.queue()) {
      const auto check = [link = std::weak_ptr(link_)] {
        if (const auto open = link.lock()) check_link(*open);
      };
      stream.queue().watch(check);
      if (link_->watching == nullptr) link_->queue.watch(check);
      link_->watching = &stream.queue();
    }
    link_->queue.wait_for(stream.queue().mark());
  }

  std::unique_ptr<Comm> host_;
  std::shared_ptr<GpuLink> link_;
  size_t index_ = 0;
};

}  // namespace

std::string gpu_library() {
  int version = 0;
  check(ncclGetVersion(&version), "ncclGetVersion");
  return fmt::format("{} {}.{}.{}", MOEWRIGHT_NCCL_NAME, version / 10000, version / 100 % 100, version % 100);
}

std::shared_ptr<GpuLink> open_gpu_link(Device device, Comm& world) { return std::make_shared<GpuLink>(device, world); }

std::shared_ptr<GpuLink> open_gpu_link(Device device, const GpuLink& first) {
  auto link = std::make_shared<GpuLink>(device, first.world);
  link->groups = first.groups;
  return link;
}

void abort_exchanges(GpuLink& link) { abort_all(link); }

std::unique_ptr<Comm> make_gpu_comm(std::unique_ptr<Comm> host, std::shared_ptr<GpuLink> link) {
  if (host->size() == 1) return host;
  return std::make_unique<GpuComm>(std::move(host), std::move(link));
}

}  // namespace mw
