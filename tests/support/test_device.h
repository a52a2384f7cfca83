// The device that operator tests run on: the CPU, or the first GPU with MOEWRIGHT_TEST_DEVICE=gpu. Memory of the tests
// is reached from both sides, so that the same cases check every backend.
#pragma once

#include <cstddef>
#include <vector>

#include "core/stream.h"
#include "ops/device.h"

namespace mw::test {

bool on_gpu();
DeviceKind device_kind();
// A stream of the test device. Ends the process with 77 (skipped) when the device is a GPU and there is none.
Stream make_stream(int threads, QueueOptions options = {});
// Waits for the test device, so that the host may read what it wrote.
void wait_for_device();

void* allocate_for_device(size_t bytes);
void free_for_device(void* memory);

template <class T>
struct DeviceAllocator {
  using value_type = T;
  DeviceAllocator() = default;
  template <class U>
  DeviceAllocator(const DeviceAllocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(allocate_for_device(count * sizeof(T))); }
  void deallocate(T* memory, size_t) { free_for_device(memory); }
  bool operator==(const DeviceAllocator&) const { return true; }
};

template <class T>
using DeviceVector = std::vector<T, DeviceAllocator<T>>;

}  // namespace mw::test
