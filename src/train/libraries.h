// What of libraries and kernels a run uses.
#pragma once

#include <string>

#include "comm/stage_links.h"
#include "comm/world.h"
#include "core/reservation.h"
#include "core/stream.h"
#include "model/param_store.h"
#include "spec/plan.h"

namespace mw {

// Multiplies two small matrices, so that the matrix library takes its memory now. The stream's workspace is gone then.
void start_products(Stream& stream, DType dtype, const Reserve& reserve);

// Before there are arenas: makes libraries ready, so that the memory they take can be told from what the model takes.
// On a CPU computes products of each size and kind that a step has; on a GPU starts the matrix and attention libraries
// and the groups' connections. Returns the bytes that libraries take only while they compute, beyond what they keep.
// Collective over groups that move GPU memory. The stream's workspace is gone then.
int64_t start_libraries(const Plan& plan, MeshComms& comms, PipelineComms& pipeline, Stream& stream,
                        const Reserve& reserve);

// "products by oneDNN 2.6.3, fp32" on the CPU; "computing in bf16 on NVIDIA H200, ..., beside its cores 0-15" on a GPU.
std::string describe_products(const std::string& dtype, Device device, const std::string& near_cores);

// "expert products by warpgroups (wgmma), attention by cuDNN 9.14.0": as the operators of a GPU choose for this model.
std::string describe_kernels(const Plan& plan, ParamStore& params, Stream& stream);

}  // namespace mw
