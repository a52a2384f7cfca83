#include "ops/device.h"

#include <cstring>

namespace mw {

Stream open_stream(Device device, int threads, QueueOptions options) {
  if (device.kind == DeviceKind::cpu) return Stream(threads);
  Stream stream(device, threads, open_queue(device, options));
  stream.trace().show_ranges(profiler_ranges());
  return stream;
}

Reserve arenas_of(Device device) { return device.kind == DeviceKind::cpu ? Reserve(reserve_host) : reserve_on(device); }

Reserve host_arenas_of(Device device) {
  return device.kind == DeviceKind::cpu ? Reserve(reserve_host) : reserve_beside(device);
}

void write_to(Device device, void* to, const void* from, size_t bytes) {
  if (device.kind != DeviceKind::cpu) write_to_gpu(device, to, from, bytes);
  else if (bytes > 0) std::memcpy(to, from, bytes);
}

void finish_writes(Device device) {
  if (device.kind != DeviceKind::cpu) synchronise(device);
}

}  // namespace mw
