#include "core/stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace mw {
namespace {

class CpuQueue : public DeviceQueue {
 public:
  void copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memmove(to, from, bytes);
  }
  void write(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void read(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  Mark mark() override { return nullptr; }
  void wait_for(const Mark&) override {}
  Stamp stamp() noexcept override { return nullptr; }
  int64_t nanoseconds(Stamp, Stamp) override { return 0; }
  void take_stamps_back() override {}
  void watch(std::function<void()>) override {}
  void wait() override {}
  void wait_until(const Mark&) override {}
  void* native() override { return nullptr; }
};

}  // namespace

Stream::Stream(int threads) : Stream(Device{}, threads, std::make_unique<CpuQueue>()) {}

void Workspace::attach(void* memory, size_t bytes) {
  MW_CHECK(used_ == 0, "workspace replaced while {} bytes are in use", used_);
  MW_CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0, "workspace memory is not aligned to 64 bytes");
  memory_ = static_cast<std::byte*>(memory);
  capacity_ = bytes;
  peak_ = 0;
}

void* WorkspaceFrame::take_bytes(size_t bytes) {
  const size_t rounded = (bytes + 63) / 64 * 64;
  MW_CHECK(workspace_.used_ + rounded <= workspace_.capacity_,
           "operator scratch of {} bytes does not fit: {} of {} in use", rounded, workspace_.used_,
           workspace_.capacity_);
  void* memory = workspace_.memory_ + workspace_.used_;
  workspace_.used_ += rounded;
  workspace_.peak_ = std::max(workspace_.peak_, workspace_.used_);
  return memory;
}

}  // namespace mw
