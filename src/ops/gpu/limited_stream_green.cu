#include <cuda.h>

#include "ops/gpu/launch.h"
#include "ops/gpu/limited_stream.h"

namespace mw::gpu {
namespace {

template <class Function, class... Arguments>
CUresult call(const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<Function*>(find_driver_function(name));
  return function == nullptr ? CUDA_ERROR_NOT_FOUND : function(arguments...);
}
// Calls a function that <cuda.h> declares.
#define MW_DRIVER(function, ...) call<decltype(function)>(#function, __VA_ARGS__)

void require(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS)
    fail(Exit::unsupported,
         fmt::format("the driver limits no processors: {} failed with CUDA error {}", what, static_cast<int>(result)),
         "leave debug.processors empty, or use a driver with green contexts");
}

CUdevResource set_apart(CUdevice device, unsigned processors) {
  CUdevResource all{}, group{};
  require(MW_DRIVER(cuDeviceGetDevResource, device, &all, CU_DEV_RESOURCE_TYPE_SM), "counting processors");
  unsigned groups = 1;
  if (processors <= all.sm.smCount)
    require(MW_DRIVER(cuDevSmResourceSplitByCount, &group, &groups, &all, nullptr, 0U, processors),
            "setting processors apart");
  // The driver rounds up.
  if (group.sm.smCount != processors)
    fail(Exit::config,
         fmt::format("debug.processors: {} of the {} processors of GPU {} cannot be set apart", processors,
                     all.sm.smCount, device),
         fmt::format("give a multiple of {} of at most {}", all.sm.smCoscheduledAlignment, all.sm.smCount));
  return group;
}

}  // namespace

ProcessorLimit create_limited_stream(NativeStream* stream, int device, int processors) {
  CUdevice chosen = 0;
  require(MW_DRIVER(cuDeviceGet, &chosen, device), "finding the device");
  CUdevResource group = set_apart(chosen, static_cast<unsigned>(processors));
  CUdevResourceDesc description = nullptr;
  require(MW_DRIVER(cuDevResourceGenerateDesc, &description, &group, 1U), "describing processors");
  CUgreenCtx context = nullptr;
  require(MW_DRIVER(cuGreenCtxCreate, &context, description, chosen, unsigned{CU_GREEN_CTX_DEFAULT_STREAM}),
          "creating a green context");
  ProcessorLimit limit(context, [](void* c) { (void)MW_DRIVER(cuGreenCtxDestroy, static_cast<CUgreenCtx>(c)); });
  require(MW_DRIVER(cuGreenCtxStreamCreate, stream, context, unsigned{CU_STREAM_NON_BLOCKING}, 0), "creating a stream");
  return limit;
}

}  // namespace mw::gpu
