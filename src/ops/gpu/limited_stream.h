// Streams whose kernels run on some of a device's processors (SMs): CUDA's green contexts (limited_stream_green.cu).
// HIP has none (limited_stream_no_green.cu).
#pragma once

#include <memory>

#include "ops/gpu/vendor.h"

namespace mw::gpu {

// What limits a stream. The stream must be destroyed before it.
using ProcessorLimit = std::shared_ptr<void>;

// Creates a stream that is not urgent, as create_stream does (vendor.h), but whose kernels run on so many processors of
// the device. Which ones is up to the driver; kernels of other streams may run on these, too. Errors: unsupported;
// config, when the device has no group of so many processors.
ProcessorLimit create_limited_stream(NativeStream* stream, int device, int processors);

}  // namespace mw::gpu
