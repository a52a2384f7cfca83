// The micro-benchmark suite: measures a machine and writes its platform profile.
#pragma once

#include <functional>
#include <string>

#include "comm/world.h"
#include "core/stream.h"
#include "layout/platform_profile.h"

namespace mw {

struct ProbeOptions {
  std::string output;                           // the profile; OUTPUT.partial holds it until it is complete
  double budget_s = 60;                         // approximate time to measure
  std::string machine;                          // names the machine: its numbers are not mixed with another's
  int64_t memory_bytes = 0, library_bytes = 0;  // of one rank
  double peak_flops_per_s = 0;                  // dense bf16, of one rank; 0: use its fastest product
  std::string peak_source;                      // source of the peak
  // Current memory of this process, where libraries take more of it as they are used (on a CPU: for kernels that they
  // compile and messages in flight).
  std::function<int64_t()> resident;
};

// Measures all parts, or only those that an interrupted probe of the same machine did not reach, and writes the profile
// from rank 0. say: called on rank 0 with a line of progress for each part. Collective over the world. Errors: data,
// comm.
PlatformProfile probe(World& world, Stream& stream, const ProbeOptions& options,
                      const std::function<void(const std::string&)>& say);

}  // namespace mw
