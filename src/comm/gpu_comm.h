// Process groups whose ranks each have a GPU, and move GPU memory directly: through NCCL, or on AMD through RCCL, which
// has the same interface.
#pragma once

#include <memory>
#include <string>

#include "comm/comm.h"

namespace mw {

// "NCCL 2.28.9", "RCCL 2.18.3"; "" in a build without either.
std::string gpu_library();

// A communication stream of one process, and its communicators. Communications start in the order of the calls, which
// must be the same on every rank, across groups.
struct GpuLink;
// The first link of this process. `world` must outlive it. Errors: comm; unsupported, in a build without the library.
std::shared_ptr<GpuLink> open_gpu_link(Device device, Comm& world);
// A further link next to `first`: an error on one aborts the communicators of both.
std::shared_ptr<GpuLink> open_gpu_link(Device device, const GpuLink& first);

// Aborts all communication in flight on the links of this process, which other ranks may never join. Afterwards their
// groups only throw.
void abort_exchanges(GpuLink& link);

// A group with the ranks of `host`, which must have one GPU each: stream-ordered calls go through the link without
// blocking the host, all other calls through `host`. Sums are equal on all members. Waits on a stream that was used
// also check the health of the link and of the world. Collective over the group. Errors: comm.
std::unique_ptr<Comm> make_gpu_comm(std::unique_ptr<Comm> host, std::shared_ptr<GpuLink> link);

}  // namespace mw
