// The GPU that kernels of warpgroups find in tests.
#include "ops/gpu/tiling.h"

namespace mw::gpu {

const Processors& find_processors(Stream&) {
  static const Processors processors{2, 0};
  return processors;
}

}  // namespace mw::gpu
