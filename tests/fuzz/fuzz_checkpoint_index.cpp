// Any bytes as the index of a checkpoint: accepted, and then covering every tensor exactly, or mw::Error.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string_view>

#include "base/error.h"
#include "train/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const mw::CheckpointIndex index =
        mw::parse_checkpoint_index(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    std::map<std::string, int64_t> entries;
    for (const mw::CheckpointSlice& s : index.slices) {
      if (s.begin < 0 || s.count < 1 || s.file.find('/') != std::string::npos) std::abort();
      entries[s.tensor] += s.count;
    }
    for (const auto& [name, shape] : index.tensors)
      if (entries[name] != shape.front()) std::abort();
  } catch (const mw::Error& e) {
    if (e.code() != mw::Exit::checkpoint) std::abort();
  }
  return 0;
}
