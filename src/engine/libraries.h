// Starts the libraries that a run uses, and describes them and the kernels.
#pragma once

#include <string>

#include "comm/stage_links.h"
#include "comm/world.h"
#include "core/reservation.h"
#include "core/stream.h"
#include "layout/plan.h"
#include "model/param_store.h"

namespace mw {

// Multiplies two small matrices, so that the matrix library allocates its memory now. Detaches the stream's workspace.
void start_products(Stream& stream, DType dtype, const Reserve& reserve);

// Whether the ranks of this rank's EP group pack weights in the same way on their CPUs, which only the matrix library
// knows: then they can gather them from each other and fill replicas. True if the plan does neither with packed
// weights. Collective over EP.
bool packs_alike(const Plan& plan, Comm& ep, Stream& stream);

// To be called before tensors are allocated: starts libraries, so that their memory can be told apart from the model's.
// On a CPU computes products of each size and kind in a step; on a GPU starts the matrix and attention libraries and
// the groups' connections. Returns the bytes that libraries use only while they compute, beyond what they keep.
// Collective over groups that move GPU memory. Detaches the stream's workspace.
int64_t start_libraries(const Plan& plan, MeshComms& comms, PipelineComms& pipeline, Stream& stream,
                        const Reserve& reserve);

// "products by oneDNN 2.6.3, fp32" on the CPU; "computing in bf16 on NVIDIA H200, ..., beside its cores 0-15" on a GPU.
std::string describe_products(DType dtype, Device device, const std::string& near_cores);

// "expert products by warpgroups (wgmma), attention by cuDNN 9.14.0": the implementations that a GPU's operators choose
// for this model.
std::string describe_kernels(const Plan& plan, ParamStore& params, Stream& stream);

}  // namespace mw
