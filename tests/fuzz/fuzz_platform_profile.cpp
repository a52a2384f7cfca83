// Any bytes as a platform profile: accepted or mw::Error, nothing else. What is accepted reads back the same.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "layout/platform_profile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mw::PlatformProfile profile;
  try {
    profile = mw::parse_platform_profile(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  } catch (const mw::Error& e) {
    if (e.code() != mw::Exit::config || e.hint().empty()) std::abort();
    return 0;
  }
  if (mw::parse_platform_profile(mw::to_json(profile), "written") != profile) std::abort();
  return 0;
}
