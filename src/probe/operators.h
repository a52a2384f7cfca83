// Measures the operators of one rank: products, attention and memory-bound operators.
#pragma once

#include "layout/platform_profile.h"
#include "probe/meter.h"

namespace mw {

// Scratch bytes that the measurements need at most, on a stream of `threads` threads.
int64_t probe_workspace_bytes(int threads, DeviceKind device);
// Scratch bytes of a run's products, except those of many large experts; attention's scratch depends on a run's shapes.
int64_t run_workspace_bytes(DeviceKind device);
// Whether a GPU's attention comes from the library, judging by its scratch.
bool has_attention_library(DeviceKind device);

// Each function fills its fields of the profile, on a stream with an attached workspace. Rates exclude
// operator_latency_s, which must therefore be measured first. Products and attention are in bf16. Collective over the
// meter's world.
void measure_memory_operators(Meter& meter, Stream& stream, PlatformProfile& profile);  // also latencies
// The optimizer update of weights and moments in host memory (memory.offload), and plain copies to and from it.
void measure_host_memory(Meter& meter, Stream& stream, PlatformProfile& profile);
void measure_dense_products(Meter& meter, Stream& stream, PlatformProfile& profile);  // also the peak, fp32_share
void measure_expert_products(Meter& meter, Stream& stream, PlatformProfile& profile);
void measure_attention(Meter& meter, Stream& stream, PlatformProfile& profile);
// Attention of all lengths and head widths with operands of `dtype`, into `rates`.
void measure_attention(Meter& meter, Stream& stream, const PlatformProfile& profile, DType dtype, OperatorRates& rates);
// How fast ranks are beside each other, by a dense product.
void measure_rank_kinds(Meter& meter, Stream& stream, PlatformProfile& profile);
void measure_fp32(Meter& meter, Stream& stream, PlatformProfile& profile);  // products and attention

}  // namespace mw
