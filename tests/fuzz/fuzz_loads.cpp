// Any bytes as a file of --load: refused with a hint, or loads of which plans make finite numbers.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "planner/load.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mw::NativeModel native;
  native.layers = 2;
  native.experts = 4;
  const mw::ModelSpec model = mw::build_native_model(native);
  try {
    mw::ExpertLoad load;
    load.measured = mw::parse_loads(std::string(reinterpret_cast<const char*>(data), size), "fuzz", model);
    const mw::RankLoad rank = mw::LoadModel(load, {}).of(4, 2);
    if (!(rank.mean >= 1 - 1e-9 && rank.mean <= 2 + 1e-9 && std::isfinite(rank.p99))) std::abort();
  } catch (const mw::Error& e) {
    if ((e.code() != mw::Exit::config && e.code() != mw::Exit::data) || e.hint().empty()) std::abort();
  }
  return 0;
}
