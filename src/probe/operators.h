// What one rank computes and how fast: products, attention and operators that move memory.
#pragma once

#include "probe/meter.h"
#include "spec/platform_profile.h"

namespace mw {

// Scratch that the measurements need at most on a stream of so many threads.
int64_t probe_workspace_bytes(int threads, DeviceKind device);
// What products of runs need, without those of many large experts: attention's follows from a run's shapes.
int64_t run_workspace_bytes(DeviceKind device);
// Whether a GPU's attention is the library's, as its scratch shows.
bool has_attention_library(DeviceKind device);

// Each fills its fields of the profile, on a stream whose workspace is attached. Rates are net of operator_latency_s,
// which therefore comes first. Products and attention: in bf16. Collective over the
// meter's world.
void measure_memory_operators(Meter& meter, Stream& stream, PlatformProfile& profile);  // also latencies
// The update of weights and moments that lie in the host's memory, where memory.offload puts them; plain copies there
// and back.
void measure_host_memory(Meter& meter, Stream& stream, PlatformProfile& profile);
void measure_dense_products(Meter& meter, Stream& stream, PlatformProfile& profile);  // also the peak, fp32_share
void measure_expert_products(Meter& meter, Stream& stream, PlatformProfile& profile);
void measure_attention(Meter& meter, Stream& stream, PlatformProfile& profile);
// All lengths and widths with operands of that type, into `rates`.
void measure_attention(Meter& meter, Stream& stream, const PlatformProfile& profile, DType dtype, OperatorRates& rates);
void measure_fp32(Meter& meter, Stream& stream, PlatformProfile& profile);  // products and attention

}  // namespace mw
