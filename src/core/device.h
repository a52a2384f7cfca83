// Devices and their queues (copies, marks, timing, waiting). The CPU's queue works synchronously; a GPU's queue
// enqueues. GPU implementations are in ops/gpu, next to the kernels.
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
  // Enqueues a copy between any two addresses that the device can reach. Until the copy is done, both must stay valid
  // and the source must not change.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  // Enqueues a copy from the host. The source may change or be freed once this returns. May wait.
  virtual void write(void* to, const void* from, size_t bytes) = 0;
  // Enqueues a copy to the host. The bytes are valid after the next wait, or wait_until of a later mark; until then
  // `to` must stay valid and must not be read or written. Waits by itself when too many bytes are in flight.
  virtual void read(void* to, const void* from, size_t bytes) = 0;
  // A point in this queue, after everything enqueued so far (like a CUDA event); null on the CPU.
  using Mark = std::shared_ptr<void>;
  virtual Mark mark() = 0;
  // Work enqueued after this call starts only after the mark, which may be of another queue of the same device.
  virtual void wait_for(const Mark& mark) = 0;
  // A timestamp on the device's clock: the moment when everything enqueued so far is done. Null where none could be
  // taken. Never throws, because scopes also end while an exception unwinds. The queue reuses its stamps, so that warm
  // calls do not allocate.
  using Stamp = void*;
  virtual Stamp stamp() noexcept = 0;
  // Nanoseconds from one stamp to another; they may be of two queues of the same device. Both must have been passed.
  virtual int64_t nanoseconds(Stamp from, Stamp to) = 0;
  // Recycles all stamps of this queue: they become invalid.
  virtual void take_stamps_back() = 0;
  // Registers `check`, which every wait calls now and then; it throws when waiting has become pointless.
  virtual void watch(std::function<void()> check) = 0;
  // Returns when all enqueued work is done. Errors: internal, with the reason, when a kernel failed.
  virtual void wait() = 0;
  // Returns when the work before this mark is done and all reads before the mark have arrived. Does not wait for work
  // after the mark. Errors: as wait().
  virtual void wait_until(const Mark& mark) = 0;
  // The vendor's stream handle, for kernels; null on the CPU.
  virtual void* native() = 0;
};

}  // namespace mw
