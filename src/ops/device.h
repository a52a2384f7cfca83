// Devices as the rest of the program sees them: streams and arenas of any; counting, memory and queues of GPUs, of
// which a build without GPU support has none.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/device.h"
#include "core/reservation.h"
#include "core/stream.h"

namespace mw {

// A stream of the device, and what arenas on it are made of. Errors: unsupported, when the device cannot be used.
Stream open_stream(Device device, int threads);
Reserve arenas_of(Device device);
// The same for what stays in the host's memory (memory.offload).
Reserve host_arenas_of(Device device);

// The GPUs that this process may use; 0 where there is no GPU, no driver or no support in this build.
int count_gpus();
// What this build calls them. Errors: unsupported, in a build without GPU support.
DeviceKind gpu_kind();

struct QueueOptions {
  bool urgent = false;        // its kernels come before those of other queues that have not begun
  bool stage_writes = false;  // write() goes through pinned memory, as it does where the device reads any of the host's
};
// Opens a queue and makes the device the calling thread's current one. Errors: unsupported, when the device cannot be
// used, with the vendor's reason.
std::unique_ptr<DeviceQueue> open_queue(Device device, QueueOptions options = {});

// What shows scopes to the vendor's profiler, in open_stream; null functions where there is none that is known.
RangeMarker profiler_ranges();

// Memory that host and device reach, moved to the one that uses it. Uninitialised, aligned to 256 bytes at least.
// Errors: memory.
std::shared_ptr<std::byte> allocate_shared(Device device, size_t bytes);

// Bytes of device memory that no process has taken.
int64_t free_bytes(Device device);

// Memory for arenas: shared memory that lives on the device, of which the host reads and writes a little between
// kernels. What is committed has its place there, so that a step neither allocates nor moves it; commit() refuses what
// the device has no room for.
Reserve reserve_on(Device device);

// Memory for arenas that stays on the host, where the device reads and writes it over its bus.
Reserve reserve_beside(Device device);

// Copies from the host's memory, which is free again at once, into any that an arena is made of: shared memory is
// written where it lives, not moved to the host page by page. From any thread. What reads it waits for finish_writes().
void write_to(Device device, void* to, const void* from, size_t bytes);
void finish_writes(Device device);

// The first of these into a GPU's arenas alone.
void write_to_gpu(Device device, void* to, const void* from, size_t bytes);

// Waits for all queues of the device.
void synchronise(Device device);

// Where the device sits in this machine, by its bus: no two devices share it.
std::string address_of(Device device);
std::string describe(Device device);  // "NVIDIA H200, compute 9.0, 132 processors, 139.8 GiB"

}  // namespace mw
