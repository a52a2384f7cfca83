#include "base/error.h"
#include "ops/device.h"

namespace mw {
namespace {

[[noreturn]] void fail_without_gpu() {
  fail(Exit::unsupported, "this build has no GPU support",
       "configure with --preset cuda-sm90 or hip-gfx90a and build again, or set train.device = \"cpu\"");
}

}  // namespace

int count_gpus() { return 0; }
DeviceKind gpu_kind() { fail_without_gpu(); }
std::unique_ptr<DeviceQueue> open_queue(Device, QueueOptions) { fail_without_gpu(); }
RangeMarker profiler_ranges() { fail_without_gpu(); }
std::shared_ptr<std::byte> allocate_shared(Device, size_t) { fail_without_gpu(); }
int64_t free_bytes(Device) { fail_without_gpu(); }
Reserve reserve_on(Device) { fail_without_gpu(); }
Reserve reserve_beside(Device) { fail_without_gpu(); }
void write_to_gpu(Device, void*, const void*, size_t) { fail_without_gpu(); }
void synchronise(Device) { fail_without_gpu(); }
std::string address_of(Device) { fail_without_gpu(); }
std::string describe(Device) { fail_without_gpu(); }

}  // namespace mw
