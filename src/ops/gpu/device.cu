#include "ops/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/limited_stream.h"

namespace mw {
namespace gpu {
namespace {

class GpuQueue : public DeviceQueue {
 public:
  GpuQueue(int device, QueueOptions options) {
    DeviceProperties properties;
    check(read_properties(device, &properties), "reading the device's properties");
    if (!properties.shares_memory)
      fail(Exit::unsupported, fmt::format("GPU {} ({}) cannot share memory with the host", device, properties.name),
           kSharingHint);
    stages_ = options.stage_writes || properties.reads_pageable;
    MW_CHECK(options.processors == 0 || !options.urgent, "an urgent queue on {} processors", options.processors);
    if (options.processors > 0) limit_ = create_limited_stream(&stream_, device, options.processors);
    else check(create_stream(&stream_, options.urgent), "creating a stream");
  }
  ~GpuQueue() override {
    (void)synchronise_stream(stream_);
    for (const NativeEvent event : stamps_) (void)destroy_event(event);
    (void)destroy_stream(stream_);
  }
  void copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) check(copy_async(to, from, bytes, stream_), "copying");
  }
  // Drivers take the bytes at once, unless the device can fetch them itself.
  void write(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return;
    if (!stages_) return copy(to, from, bytes);
    if (bytes > kStagingBytes) {
      copy(to, from, bytes);
      return wait();
    }
    if (stage_->used + bytes > kStagingBytes) turn_to_other_stage();
    // Both at once: pinning memory may wait for the device, and the device later for other ranks.
    if (stage_->memory == nullptr)
      for (Stage& stage : both_stages_) stage.memory = allocate_staging();
    std::byte* staged = stage_->memory.get() + stage_->used;
    std::memcpy(staged, from, bytes);
    copy(to, staged, bytes);
    stage_->used += align_up(bytes);
  }
  void read(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return;
    if (landing_ == nullptr) landing_ = allocate_staging();
    if (landed_ + bytes > kStagingBytes) wait();
    if (bytes > kStagingBytes) return copy(to, from, bytes);
    copy(landing_.get() + landed_, from, bytes);
    reads_.push_back({to, landed_, bytes});
    landed_ += bytes;
  }
  Mark mark() override {
    auto point = std::make_shared<Point>();
    check(create_event(&point->event), "creating an event");
    check(record_event(point->event, stream_), "recording an event");
    point->reads = handed_out_ + reads_.size();
    return point;
  }
  void wait_for(const Mark& mark) override {
    check(wait_for_event(stream_, point_of(mark).event), "waiting for an event");
  }
  Stamp stamp() noexcept override {
    if (taken_ == stamps_.size()) {
      NativeEvent event = nullptr;
      if (!succeeded(create_timed_event(&event))) return no_stamp();
      stamps_.push_back(event);
    }
    return succeeded(record_event(stamps_[taken_], stream_)) ? stamps_[taken_++] : no_stamp();
  }
  int64_t nanoseconds(Stamp from, Stamp to) override {
    float milliseconds = 0;
    check(elapsed_milliseconds(&milliseconds, static_cast<NativeEvent>(from), static_cast<NativeEvent>(to)),
          "reading the device's clock");
    return std::llround(static_cast<double>(milliseconds) * 1e6);
  }
  void take_stamps_back() override { taken_ = 0; }
  void watch(std::function<void()> check_peers) override { watchers_.push_back(std::move(check_peers)); }
  void wait() override {
    finish_reads(
        reads_.size(), [this] { return query_stream(stream_); }, [this] { return synchronise_stream(stream_); });
  }
  void wait_until(const Mark& mark) override {
    const Point& point = point_of(mark);
    const NativeEvent event = point.event;
    finish_reads(
        point.reads - std::min(point.reads, handed_out_), [event] { return query_event(event); },
        [event] { return synchronise_event(event); });
  }
  void* native() override { return stream_; }

 private:
  // What a Mark is.
  struct Point {
    NativeEvent event = nullptr;
    size_t reads = 0;  // enqueued before it, of all
    Point() = default;
    Point(const Point&) = delete;
    Point& operator=(const Point&) = delete;
    ~Point() {
      if (event != nullptr) (void)destroy_event(event);
    }
  };
  static const Point& point_of(const Mark& mark) { return *static_cast<const Point*>(mark.get()); }
  // The failure must not be taken for that of the next kernel.
  static Stamp no_stamp() noexcept {
    (void)last_error();
    return nullptr;
  }
  // One stage fills while the copies from the other one are done.
  void turn_to_other_stage() {
    stage_->full = mark();
    stage_ = stage_ == &both_stages_[0] ? &both_stages_[1] : &both_stages_[0];
    stage_->used = 0;
    if (stage_->full == nullptr) return;
    const NativeEvent event = point_of(stage_->full).event;
    if (!watchers_.empty()) watch_until([event] { return query_event(event); });
    check(synchronise_event(event), "waiting for the device");
  }
  // Waits for what `ready` asks about, and hands out the first `count` reads.
  template <class Ready, class Synchronise>
  void finish_reads(size_t count, Ready ready, Synchronise synchronise) {
    std::vector<Read> reads = std::exchange(reads_, {});  // whose places may be gone once this has thrown
    reads_.assign(reads.begin() + static_cast<std::ptrdiff_t>(count), reads.end());
    reads.resize(count);
    handed_out_ += count;
    if (reads_.empty()) landed_ = 0;
    if (!watchers_.empty()) watch_until(ready);
    check(synchronise(), "waiting for the device");
    for (const Read& read : reads) std::memcpy(read.to, landing_.get() + read.landed, read.bytes);
  }
  template <class Ready>
  void watch_until(Ready ready) {
    constexpr auto kPatience = std::chrono::milliseconds(100);
    auto next = std::chrono::steady_clock::now() + kPatience;
    while (is_not_ready(ready())) {
      if (std::chrono::steady_clock::now() < next) continue;
      for (const auto& watcher : watchers_) watcher();
      next = std::chrono::steady_clock::now() + kPatience;
    }
    (void)last_error();  // which may be that it was not ready
  }

  // What is read lands in pinned memory: the host would wait for every copy to other memory.
  static constexpr size_t kStagingBytes = size_t{1} << 20;
  static constexpr size_t align_up(size_t bytes) { return (bytes + 15) / 16 * 16; }
  struct Read {
    void* to;
    size_t landed, bytes;
  };
  struct Stage {
    std::shared_ptr<std::byte> memory;
    size_t used = 0;
    Mark full;  // behind all copies from it
  };
  static std::shared_ptr<std::byte> allocate_staging() {
    void* memory = nullptr;
    check(allocate_host(&memory, kStagingBytes), "allocating memory of the host");
    return {static_cast<std::byte*>(memory), [](std::byte* p) { (void)free_host(p); }};
  }

  ProcessorLimit limit_;  // outlives the stream
  NativeStream stream_ = nullptr;
  std::shared_ptr<std::byte> landing_;
  std::vector<Read> reads_;  // that nobody has waited for
  size_t landed_ = 0;        // bytes up to the last one's end
  size_t handed_out_ = 0;    // reads, in all
  bool stages_ = false;      // what is written
  std::array<Stage, 2> both_stages_;
  Stage* stage_ = &both_stages_[0];
  std::vector<NativeEvent> stamps_;
  size_t taken_ = 0;  // of them
  std::vector<std::function<void()>> watchers_;
};

class SharedReservation : public Reservation {
 public:
  SharedReservation(Device device, size_t bytes)
      : device_(device), memory_(allocate_shared(device, bytes)), reserved_(bytes) {
    if (bytes > 0) check(prefer_device(memory_.get(), bytes, device.index), "placing memory");
  }
  std::byte* data() const override { return memory_.get(); }
  size_t committed() const override { return committed_; }
  size_t reserved() const override { return reserved_; }
  void commit(size_t bytes) override {
    MW_CHECK(bytes <= reserved_, "commit of {} bytes in a reservation of {}", bytes, reserved_);
    if (bytes <= committed_) return;
    const size_t more = bytes - committed_;
    // Shared memory would make room by moving other pages to the host, and slow down without a word.
    if (const int64_t free = free_bytes(device_); static_cast<int64_t>(more) > free)
      fail(Exit::memory,
           fmt::format("{} more are needed, GPU {} has {} free", format_bytes(static_cast<int64_t>(more)),
                       device_.index, format_bytes(free)),
           "use more ranks or a smaller micro-batch");
    check(move_to_device(memory_.get() + committed_, more, device_.index), "moving memory to the device");
    check(synchronise_stream(nullptr), "moving memory to the device");  // who asks next must see what is left
    committed_ = bytes;
  }
  void zero(size_t bytes) override {
    MW_CHECK(bytes <= committed_, "{} bytes of {} committed ones", bytes, committed_);
    check(set_device(device_.index), "choosing the device");
    if (bytes > 0) check(fill_async(memory_.get(), 0, bytes, nullptr), "filling memory");
    check(synchronise_device(), "filling memory");
  }

 private:
  Device device_;
  std::shared_ptr<std::byte> memory_;
  size_t reserved_ = 0, committed_ = 0;
};

// Calls body(begin, end) for parts of `bytes`, on several threads: one fills some GB/s, and states are tens of GB.
template <class Body>
void in_parallel(size_t bytes, const Body& body) {
  constexpr size_t kThreads = 8, kLeast = size_t{64} << 20;
  const size_t part = std::max(kLeast, (bytes / kThreads + 4095) / 4096 * 4096);
  std::vector<std::jthread> threads;
  for (size_t at = 0; at < bytes; at += part)
    threads.emplace_back([&body, at, end = std::min(bytes, at + part)] { body(at, end); });
}

// Null where the host gives none. Large pages, placed by several threads before they are pinned, where that is allowed;
// engine/engine.h has looked before that there are enough.
std::shared_ptr<std::byte> allocate_pinned(size_t bytes) {
  const size_t size = std::max<size_t>(bytes, 1);
  if constexpr (!kPinsInPlace) {
    void* memory = nullptr;
    if (!succeeded(allocate_host(&memory, size))) return nullptr;
    return {static_cast<std::byte*>(memory), [](std::byte* p) { (void)free_host(p); }};
  }
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  (void)::madvise(memory, size, MADV_HUGEPAGE);
  in_parallel(size, [&](size_t begin, size_t end) {
    for (size_t at = begin; at < end; at += 4096) static_cast<volatile std::byte*>(memory)[at] = std::byte{0};
  });
  if (!succeeded(pin_host(memory, size))) {
    (void)::munmap(memory, size);
    return nullptr;
  }
  return {static_cast<std::byte*>(memory), [size](std::byte* p) {
            (void)unpin_host(p);
            (void)::munmap(p, size);
          }};
}

// Pinned from the start: all of it is used.
class HostReservation : public Reservation {
 public:
  HostReservation(Device device, size_t bytes) : reserved_(bytes) {
    check(set_device(device.index), "choosing the device");
    memory_ = allocate_pinned(bytes);
    if (memory_ != nullptr) return;
    (void)last_error();
    fail(Exit::memory,
         fmt::format("the host gives no {} for the states of GPU {}", format_bytes(static_cast<int64_t>(bytes)),
                     device.index),
         "use more ranks, mesh.zero = 1, or memory.offload = \"none\"");
  }
  std::byte* data() const override { return memory_.get(); }
  size_t committed() const override { return committed_; }
  size_t reserved() const override { return reserved_; }
  void commit(size_t bytes) override {
    MW_CHECK(bytes <= reserved_, "commit of {} bytes in a reservation of {}", bytes, reserved_);
    committed_ = std::max(committed_, bytes);
  }
  void zero(size_t bytes) override {
    MW_CHECK(bytes <= committed_, "{} bytes of {} committed ones", bytes, committed_);
    in_parallel(bytes, [&](size_t begin, size_t end) { std::memset(memory_.get() + begin, 0, end - begin); });
  }

 private:
  std::shared_ptr<std::byte> memory_;
  size_t reserved_ = 0, committed_ = 0;
};

}  // namespace

void check(Status status, const char* what) {
  if (succeeded(status)) return;
  if (is_out_of_memory(status))
    fail(Exit::memory, fmt::format("{}: out of device memory", what), "use more ranks or a smaller micro-batch");
  fail(Exit::internal, fmt::format("{} failed on the device: {}", what, reason_of(status)));
}

}  // namespace gpu

// Every process asks this first. Messages of a pipeline wait for peers on queues of their own; two that share a
// hardware queue, of which there are few by default, or one where a script for another trainer wants that, would wait
// for each other.
int count_gpus() {
  constexpr int kQueues = 32;
  const char* given = std::getenv(gpu::kHardwareQueues);
  if (given == nullptr || std::atoi(given) < kQueues) setenv(gpu::kHardwareQueues, std::to_string(kQueues).c_str(), 1);
  int count = 0;
  if (!gpu::succeeded(gpu::count_devices(&count))) count = 0;
  (void)gpu::last_error();  // a machine without a driver is no mistake
  return count;
}

DeviceKind gpu_kind() { return gpu::kDeviceKind; }

std::unique_ptr<DeviceQueue> open_queue(Device device, QueueOptions options) {
  MW_CHECK(device.kind == gpu::kDeviceKind, "a queue of another kind of device");
  const gpu::Status status = gpu::set_device(device.index);
  if (!gpu::succeeded(status))
    fail(Exit::unsupported, fmt::format("cannot use GPU {}: {}", device.index, gpu::reason_of(status)),
         fmt::format("{} GPUs are visible to this process", count_gpus()));
  return std::make_unique<gpu::GpuQueue>(device.index, options);
}

std::shared_ptr<std::byte> allocate_shared(Device device, size_t bytes) {
  gpu::check(gpu::set_device(device.index), "choosing the device");
  void* memory = nullptr;
  gpu::check(gpu::allocate_shared(&memory, std::max<size_t>(bytes, 1)), "allocating memory");
  return {static_cast<std::byte*>(memory), [](std::byte* p) { (void)gpu::free_device(p); }};
}

int64_t free_bytes(Device device) {
  gpu::check(gpu::set_device(device.index), "choosing the device");
  size_t free = 0, total = 0;
  gpu::check(gpu::memory_info(&free, &total), "asking for free memory");
  return static_cast<int64_t>(free);
}

Reserve reserve_on(Device device) {
  return [device](size_t bytes) { return std::make_unique<gpu::SharedReservation>(device, bytes); };
}

Reserve reserve_beside(Device device) {
  return [device](size_t bytes) { return std::make_unique<gpu::HostReservation>(device, bytes); };
}

void write_to_gpu(Device device, void* to, const void* from, size_t bytes) {
  gpu::check(gpu::set_device(device.index), "choosing the device");
  if (bytes > 0) gpu::check(gpu::copy(to, from, bytes), "copying");
}

void synchronise(Device device) {
  gpu::check(gpu::set_device(device.index), "choosing the device");
  gpu::check(gpu::synchronise_device(), "waiting for the device");
}

std::string address_of(Device device) {
  char text[32] = {};
  gpu::check(gpu::read_bus_address(device.index, text, sizeof text), "reading the device's address");
  std::string address = text;  // in lower case, as the kernel's device tree has it
  std::transform(address.begin(), address.end(), address.begin(), [](unsigned char c) { return std::tolower(c); });
  return address;
}

std::string describe(Device device) {
  gpu::DeviceProperties p;
  gpu::check(gpu::read_properties(device.index, &p), "reading the device's properties");
  return fmt::format("{}, compute {}.{}, {} processors, {}", p.name, p.major, p.minor, p.processors,
                     format_bytes(static_cast<int64_t>(p.memory_bytes)));
}

}  // namespace mw
