// The inputs of the byte table that depend on the machine and build.
#pragma once

#include "comm/comm.h"
#include "core/device.h"
#include "core/tensor_store.h"
#include "layout/plan.h"

namespace mw {

// Chunks of an exchange between GPUs where moe.row_chunks = 0; elsewhere it has one.
constexpr int64_t kGpuRowChunks = 2;

// Determines the scratch that this build's operators need for a run of this model with `threads` threads per rank on
// such a device, and the form of weights that its products read.
Platform measure_platform(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, int threads,
                          DeviceKind device = DeviceKind::cpu);

// Gives the stream its scratch, the row `work.ops`. Where the table has `work.relay_ops` too, the stream of the
// exchanges of `ep` gets that; where ranks share GPUs there is none. `store` must outlive the use of both streams.
void attach_workspaces(TensorStore& store, Stream& stream, Comm& ep);

}  // namespace mw
