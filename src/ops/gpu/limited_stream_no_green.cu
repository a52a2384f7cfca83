#include "ops/gpu/limited_stream.h"

namespace mw::gpu {

ProcessorLimit create_limited_stream(NativeStream*, int, int) {
  fail(Exit::unsupported, "this build cannot limit the processors of a GPU, which needs CUDA",
       "leave debug.processors empty");
}

}  // namespace mw::gpu
