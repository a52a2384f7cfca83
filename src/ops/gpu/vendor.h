// The abstraction of CUDA and HIP: beside capability.h and vendor_blas.h the only file that names them. Everything
// below means the same under both.
#pragma once

#include <cstddef>
#include <string>

#if defined(__HIP__) || defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define MW_VENDOR(name) hip##name
#else
#include <cuda_runtime.h>
#define MW_VENDOR(name) cuda##name
#endif

#include "base/error.h"
#include "core/device.h"

namespace mw::gpu {

using NativeStream = MW_VENDOR(Stream_t);
using NativeEvent = MW_VENDOR(Event_t);
using Status = MW_VENDOR(Error_t);

#if defined(__HIP__) || defined(__HIPCC__)
using NativeProperties = hipDeviceProp_t;
constexpr DeviceKind kDeviceKind = DeviceKind::hip;
constexpr const char* kBackendName = "hip";
constexpr const char* kHardwareQueues = "GPU_MAX_HW_QUEUES";
constexpr auto kSharedBytesOfProcessor = hipDeviceAttributeMaxSharedMemoryPerMultiprocessor;
// Without device page faults, such memory stays on the host and every access crosses the bus.
inline bool shares_memory(const NativeProperties& p) {
  return p.concurrentManagedAccess != 0 && p.pageableMemoryAccess != 0;
}
constexpr const char* kSharingHint =
    "its driver must let it fault on pages: set HSA_XNACK=1; or set train.device = \"cpu\"";
#else
using NativeProperties = cudaDeviceProp;
constexpr DeviceKind kDeviceKind = DeviceKind::cuda;
constexpr const char* kBackendName = "cuda";
// Environment variable: the number of hardware queues that streams share, read when the driver starts.
constexpr const char* kHardwareQueues = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr auto kSharedBytesOfProcessor = cudaDevAttrMaxSharedMemoryPerMultiprocessor;
inline bool shares_memory(const NativeProperties& p) { return p.concurrentManagedAccess != 0; }
constexpr const char* kSharingHint =
    "its driver must give concurrent managed access, which Windows and some virtual GPUs lack; or set train.device = "
    "\"cpu\"";

// A function of the driver library as of a version of CUDA, which programs do not link directly. Null where it does not
// exist, or the driver is older.
inline void* find_driver_function(const char* name, unsigned version = 12000) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const Status status = cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
  if (status != cudaSuccess) (void)cudaGetLastError();  // it must not be taken for that of the next kernel
  return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
}

// How many clusters of `blocks` blocks of a kernel run at the same time.
inline Status count_clusters(const void* kernel, int blocks, int threads, size_t shared_bytes, int* count) {
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &size;
  config.numAttrs = 1;
  return cudaOccupancyMaxActiveClusters(count, kernel, &config);
}

// Starts a kernel that may begin while the one before it on the stream ends (programmatic dependent launch).
template <class... Parameters, class... Arguments>
Status launch_beside(NativeStream stream, void (*kernel)(Parameters...), int blocks, int threads, size_t shared_bytes,
                     const Arguments&... arguments) {
  cudaLaunchAttribute beside{};
  beside.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  beside.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &beside;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}
#endif

inline bool succeeded(Status status) { return status == MW_VENDOR(Success); }
inline bool is_out_of_memory(Status status) { return status == MW_VENDOR(ErrorMemoryAllocation); }
inline const char* reason_of(Status status) { return MW_VENDOR(GetErrorString)(status); }

inline Status count_devices(int* count) { return MW_VENDOR(GetDeviceCount)(count); }
inline Status set_device(int index) { return MW_VENDOR(SetDevice)(index); }
inline Status synchronise_device() { return MW_VENDOR(DeviceSynchronize)(); }
inline Status last_error() { return MW_VENDOR(GetLastError)(); }

inline Status free_device(void* memory) { return MW_VENDOR(Free)(memory); }
inline Status allocate_shared(void** memory, size_t bytes) { return MW_VENDOR(MallocManaged)(memory, bytes); }
#if defined(__HIP__) || defined(__HIPCC__)
inline Status prefer_device(const void* memory, size_t bytes, int device) {
  return hipMemAdvise(memory, bytes, hipMemAdviseSetPreferredLocation, device);
}
inline Status move_to_device(const void* memory, size_t bytes, int device) {
  return hipMemPrefetchAsync(memory, bytes, device, nullptr);
}
#else
inline Status prefer_device(const void* memory, size_t bytes, int device) {
  return cudaMemAdvise(memory, bytes, cudaMemAdviseSetPreferredLocation, {cudaMemLocationTypeDevice, device});
}
inline Status move_to_device(const void* memory, size_t bytes, int device) {
  return cudaMemPrefetchAsync(memory, bytes, {cudaMemLocationTypeDevice, device}, 0, nullptr);
}
#endif
// Pinned host memory, at the same address for the host and every device.
#if defined(__HIP__) || defined(__HIPCC__)
constexpr bool kPinsInPlace = false;  // a device may see memory that is pinned later elsewhere
inline Status allocate_host(void** memory, size_t bytes) { return hipHostMalloc(memory, bytes, hipHostMallocPortable); }
inline Status free_host(void* memory) { return hipHostFree(memory); }
#else
constexpr bool kPinsInPlace = true;
inline Status allocate_host(void** memory, size_t bytes) { return cudaHostAlloc(memory, bytes, cudaHostAllocPortable); }
inline Status free_host(void* memory) { return cudaFreeHost(memory); }
#endif
inline Status pin_host(void* memory, size_t bytes) {
  return MW_VENDOR(HostRegister)(memory, bytes, MW_VENDOR(HostRegisterPortable));
}
inline Status unpin_host(void* memory) { return MW_VENDOR(HostUnregister)(memory); }
inline Status memory_info(size_t* free_bytes, size_t* total_bytes) {
  return MW_VENDOR(MemGetInfo)(free_bytes, total_bytes);
}

// Streams do not wait for the default stream. Blocks of an urgent (high-priority) stream are scheduled first.
inline Status create_stream(NativeStream* stream, bool urgent) {
  int least = 0, greatest = 0;
  const Status status = MW_VENDOR(DeviceGetStreamPriorityRange)(&least, &greatest);
  if (!succeeded(status)) return status;
  return MW_VENDOR(StreamCreateWithPriority)(stream, MW_VENDOR(StreamNonBlocking), urgent ? greatest : least);
}
inline Status destroy_stream(NativeStream stream) { return MW_VENDOR(StreamDestroy)(stream); }
inline Status synchronise_stream(NativeStream stream) { return MW_VENDOR(StreamSynchronize)(stream); }
inline Status query_stream(NativeStream stream) { return MW_VENDOR(StreamQuery)(stream); }
inline bool is_not_ready(Status status) { return status == MW_VENDOR(ErrorNotReady); }
inline Status create_event(NativeEvent* event) {
  return MW_VENDOR(EventCreateWithFlags)(event, MW_VENDOR(EventDisableTiming));
}
inline Status create_timed_event(NativeEvent* event) { return MW_VENDOR(EventCreate)(event); }
inline Status elapsed_milliseconds(float* out, NativeEvent from, NativeEvent to) {
  return MW_VENDOR(EventElapsedTime)(out, from, to);
}
inline Status destroy_event(NativeEvent event) { return MW_VENDOR(EventDestroy)(event); }
inline Status record_event(NativeEvent event, NativeStream stream) { return MW_VENDOR(EventRecord)(event, stream); }
inline Status query_event(NativeEvent event) { return MW_VENDOR(EventQuery)(event); }
inline Status synchronise_event(NativeEvent event) { return MW_VENDOR(EventSynchronize)(event); }
inline Status wait_for_event(NativeStream stream, NativeEvent event) {
  return MW_VENDOR(StreamWaitEvent)(stream, event, 0);
}
inline Status copy(void* to, const void* from, size_t bytes) {
  return MW_VENDOR(Memcpy)(to, from, bytes, MW_VENDOR(MemcpyDefault));
}
inline Status copy_async(void* to, const void* from, size_t bytes, NativeStream stream) {
  return MW_VENDOR(MemcpyAsync)(to, from, bytes, MW_VENDOR(MemcpyDefault), stream);
}
inline Status fill_async(void* memory, int byte, size_t bytes, NativeStream stream) {
  return MW_VENDOR(MemsetAsync)(memory, byte, bytes, stream);
}

// Lets a kernel take more dynamic shared memory than the default 48 KiB.
// The shared memory of one processor, for all of its blocks.
inline Status read_shared_bytes(int* bytes, int device) {
  return MW_VENDOR(DeviceGetAttribute)(bytes, kSharedBytesOfProcessor, device);
}
inline Status allow_shared_bytes(const void* kernel, size_t bytes) {
  return MW_VENDOR(FuncSetAttribute)(kernel, MW_VENDOR(FuncAttributeMaxDynamicSharedMemorySize),
                                     static_cast<int>(bytes));
}

inline Status read_bus_address(int index, char* text, int length) {
  return MW_VENDOR(DeviceGetPCIBusId)(text, length, index);
}

struct DeviceProperties {
  std::string name;
  int major = 0, minor = 0, processors = 0;
  size_t memory_bytes = 0;
  bool reads_pageable = false;  // reaches memory of the host that is not pinned, and so may copy it later
  bool shares_memory = false;   // has memory that the host reads in place and that stays with the device
};
inline Status read_properties(int index, DeviceProperties* out) {
  NativeProperties p{};
  const Status status = MW_VENDOR(GetDeviceProperties)(&p, index);
  if (succeeded(status))
    *out = {p.name,          p.major, p.minor, p.multiProcessorCount, p.totalGlobalMem, p.pageableMemoryAccess != 0,
            shares_memory(p)};
  return status;
}

}  // namespace mw::gpu

#undef MW_VENDOR
