#include <cuda.h>

#include "ops/gpu/launch.h"
#include "ops/gpu/limited_stream.h"

namespace mw::gpu {
namespace {

constexpr unsigned kGreenContexts = 12050;  // the version of CUDA that has all of these functions

template <class Function, class... Arguments>
CUresult call(const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<Function*>(find_driver_function(name, kGreenContexts));
  return function == nullptr ? CUDA_ERROR_NOT_FOUND : function(arguments...);
}
// Calls a function that <cuda.h> declares.
#define MW_DRIVER(function, ...) call<decltype(function)>(#function, __VA_ARGS__)

void require(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const std::string failure =
      fmt::format("debug.processors: {} failed with CUDA error {}", what, static_cast<int>(result));
  if (result == CUDA_ERROR_OUT_OF_MEMORY) fail(Exit::memory, failure, "leave debug.processors empty");
  fail(Exit::unsupported, failure, "leave debug.processors empty, or use a driver of CUDA 12.5 or newer");
}

CUdevResource set_apart(CUdevice device, unsigned processors) {
  CUdevResource all{}, group{};
  require(MW_DRIVER(cuDeviceGetDevResource, device, &all, CU_DEV_RESOURCE_TYPE_SM), "counting processors");
  unsigned groups = 1;
  const CUresult split = MW_DRIVER(cuDevSmResourceSplitByCount, &group, &groups, &all, nullptr, 0U, processors);
  if (split == CUDA_ERROR_NOT_FOUND) require(split, "setting processors apart");
  // The driver rounds up.
  if (split != CUDA_SUCCESS || groups != 1 || group.sm.smCount != processors) {
    const unsigned step = all.sm.smCoscheduledAlignment;
    fail(Exit::config,
         fmt::format("debug.processors: {} of the {} processors of GPU {} cannot be set apart", processors,
                     all.sm.smCount, device),
         fmt::format("give a multiple of {} from {} to {}", step, all.sm.minSmPartitionSize,
                     all.sm.smCount / step * step));
  }
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
