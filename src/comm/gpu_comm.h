// Groups whose ranks have a GPU each move its memory directly: through NCCL, or on AMD RCCL, which has its interface.
#pragma once

#include <memory>
#include <string>

#include "comm/comm.h"

namespace mw {

// "NCCL 2.28.9", "RCCL 2.18.3"; "" in a build without either.
std::string gpu_library();

// The queue that carries the exchanges of one process, and its communicators. They start in the order of the calls,
// which is the same on every rank, whatever their group.
struct GpuLink;
// The first link of this process. `world` must outlive it. Errors: comm; unsupported, in a build without the library.
std::shared_ptr<GpuLink> open_gpu_link(Device device, Comm& world);
// A further one beside `first`: an error of one ends the communicators of both.
std::shared_ptr<GpuLink> open_gpu_link(Device device, const GpuLink& first);

// Ends whatever the links of this process have under way, which other ranks may never join. Afterwards their groups
// only throw.
void abort_exchanges(GpuLink& link);

// The group of `host`, which must have one GPU per rank: what is asked for in the order of a stream goes through the
// link, and the host does not wait; everything else goes through `host`. Sums are the same on all members. While a
// stream that was used waits, the health of the link and of the world is watched. Collective over the group. Errors:
// comm.
std::unique_ptr<Comm> make_gpu_comm(std::unique_ptr<Comm> host, std::shared_ptr<GpuLink> link);

}  // namespace mw
