// Any bytes as the metrics of --calibrate: refused with a hint, or steps of positive numbers.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "planner/calibrate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    for (const mw::MeasuredStep& step :
         mw::parse_measured_steps(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz"))
      if (!(step.ranks > 0 && step.seconds > 0 && step.tokens > 0 && step.flops_per_token > 0)) std::abort();
  } catch (const mw::Error& e) {
    if (e.code() != mw::Exit::data || e.hint().empty()) std::abort();
  }
  return 0;
}
