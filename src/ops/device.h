// Device access for the rest of the program: streams and memory on any device; counting, memory and queues of GPUs,
// which a build without GPU support does not have.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/device.h"
#include "core/reservation.h"
#include "core/stream.h"

namespace mw {

struct QueueOptions {
  bool urgent = false;        // high priority: its kernels start before waiting kernels of other queues
  bool stage_writes = false;  // write() uses pinned staging buffers even where it need not
  int processors = 0;         // processors (SMs) that its kernels may run on; 0: all. Not for urgent queues
};

// Opens a stream on the device, and the allocator of arenas (core/reservation.h) on it. options: for its queue on a
// GPU. Errors: as open_queue.
Stream open_stream(Device device, int threads, QueueOptions options = {});
Reserve arenas_of(Device device);
// The same for tensors that stay in host memory (memory.offload).
Reserve host_arenas_of(Device device);

// The number of GPUs that this process may use; 0 where there is no GPU, no driver or no support in this build.
int count_gpus();
// The vendor of this build's GPUs. Errors: unsupported, in a build without GPU support.
DeviceKind gpu_kind();

// Opens a queue and makes the device the calling thread's current one. Errors: unsupported, when the device cannot be
// used, with the vendor's reason, or cannot limit processors; config, when it has no group of so many.
std::unique_ptr<DeviceQueue> open_queue(Device device, QueueOptions options = {});

// The range markers of the vendor's profiler, used by open_stream; null functions where none is known.
RangeMarker profiler_ranges();

// Shared memory that host and device can access; it migrates to the side that uses it. Uninitialised, aligned to at
// least 256 bytes. Errors: memory.
std::shared_ptr<std::byte> allocate_shared(Device device, size_t bytes);

// Bytes of device memory not in use by any process.
int64_t free_bytes(Device device);

// Arenas of shared memory that resides on the device; the host reads and writes small parts of it between kernels.
// Committed memory is placed on the device, so that a step neither allocates nor migrates it; commit() fails when the
// device has no room.
Reserve reserve_on(Device device);

// Arenas that stay in host memory; the device accesses them over its bus.
Reserve reserve_beside(Device device);

// Copies from host memory into an arena of any kind; the source may be reused as soon as write_to returns. Shared
// memory is written in place instead of migrating to the host page by page. Thread-safe. Readers of the destination
// must call finish_writes() first.
void write_to(Device device, void* to, const void* from, size_t bytes);
void finish_writes(Device device);

// write_to for arenas on a GPU only.
void write_to_gpu(Device device, void* to, const void* from, size_t bytes);

// Waits for all queues of the device.
void synchronise(Device device);

// The bus address of the device: unique within the machine.
std::string address_of(Device device);
std::string describe(Device device);  // "NVIDIA H200, compute 9.0, 132 processors, 139.8 GiB"

}  // namespace mw
