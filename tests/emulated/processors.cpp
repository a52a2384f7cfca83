#include "emulated/processors.h"

namespace mw::gpu {

const Processors& find_processors(Stream&) { return emulated_processors; }

}  // namespace mw::gpu
