#include "ops/device.h"

namespace mw {

Stream open_stream(Device device, int threads) {
  return device.kind == DeviceKind::cpu ? Stream(threads) : Stream(device, threads, open_queue(device));
}

Reserve arenas_of(Device device) { return device.kind == DeviceKind::cpu ? Reserve(reserve_host) : reserve_on(device); }

}  // namespace mw
