// Devices and what a stream needs of one beside operators: copies and waiting. The CPU's queue does at once what it is
// told; a GPU's enqueues it. Implementations for GPUs lie in ops/gpu, next to the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace mw {

enum class DeviceKind : uint8_t { cpu, cuda, hip };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
};

class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  // Enqueues a copy between any two places that the device can reach. Both must live until it is done, and what is
  // copied must stay as it is.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  // Enqueues a copy from the host, whose bytes may change or be gone once this returns. May wait.
  virtual void write(void* to, const void* from, size_t bytes) = 0;
  // Enqueues a copy to the host, which has the bytes after the next wait or wait_until. Until then `to` must live and
  // nobody may touch it. Waits itself where too much was asked for since the last one.
  virtual void read(void* to, const void* from, size_t bytes) = 0;
  // A point in this queue, behind what was enqueued so far; null on the CPU.
  using Mark = std::shared_ptr<void>;
  virtual Mark mark() = 0;
  // What is enqueued from here on starts after the mark, which may be of another queue of the device.
  virtual void wait_for(const Mark& mark) = 0;
  // A moment of this queue on the device's clock: when what was enqueued so far is done. Null where it could not be
  // had: never throws, since scopes end while errors are under way. The queue keeps stamps and takes them again, so
  // that warm ones cost no allocation.
  using Stamp = void*;
  virtual Stamp stamp() noexcept = 0;
  // From one stamp to another, which may be of two queues of the device. Both have passed.
  virtual int64_t nanoseconds(Stamp from, Stamp to) = 0;
  // All stamps of this queue are of no more use.
  virtual void take_stamps_back() = 0;
  // What waits calls `check` now and then, which throws when waiting is of no use any more.
  virtual void watch(std::function<void()> check) = 0;
  // Returns when all that was enqueued is done. Errors: internal, with the reason, when a kernel failed.
  virtual void wait() = 0;
  // Returns when what is before this mark of the queue is done, and what was read so far is there: none of it behind
  // the mark. Errors: as wait().
  virtual void wait_until(const Mark& mark) = 0;
  // The vendor's stream handle, for kernels; null on the CPU.
  virtual void* native() = 0;
};

}  // namespace mw
