#include "support/test_device.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <string_view>

#include "ops/device.h"

namespace mw::test {
namespace {

constexpr int kSkipped = 77;

Device gpu() {
  static const Device device = [] {
    if (count_gpus() == 0) {
      std::puts("skipped: no GPU here");
      std::fflush(stdout);
      std::_Exit(kSkipped);
    }
    return Device{gpu_kind(), 0};
  }();
  return device;
}

std::map<void*, std::shared_ptr<std::byte>>& gpu_blocks() {
  static auto* blocks = new std::map<void*, std::shared_ptr<std::byte>>;  // outlives every static test tensor
  return *blocks;
}

}  // namespace

bool on_gpu() {
  static const bool chosen = [] {
    const char* name = std::getenv("MOEWRIGHT_TEST_DEVICE");
    return name != nullptr && std::string_view(name) == "gpu";
  }();
  return chosen;
}

DeviceKind device_kind() { return on_gpu() ? gpu().kind : DeviceKind::cpu; }

Stream make_stream(int threads, QueueOptions options) {
  if (!on_gpu()) return Stream(threads);
  return Stream(gpu(), threads, open_queue(gpu(), options));
}

void wait_for_device() {
  if (on_gpu()) synchronise(gpu());
}

void* allocate_for_device(size_t bytes) {
  if (!on_gpu()) return ::operator new(bytes, std::align_val_t(64));
  const std::shared_ptr<std::byte> block = allocate_shared(gpu(), bytes);
  gpu_blocks()[block.get()] = block;
  return block.get();
}

void free_for_device(void* memory) {
  if (!on_gpu()) ::operator delete(memory, std::align_val_t(64));
  else {
    wait_for_device();  // a kernel may still use it
    gpu_blocks().erase(memory);
  }
}

}  // namespace mw::test
