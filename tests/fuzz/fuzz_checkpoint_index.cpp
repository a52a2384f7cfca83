// Any bytes as the index of a checkpoint: accepted, and then covering every tensor exactly, or mw::Error.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string_view>

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const mw::CheckpointIndex index =
        mw::parse_checkpoint_index(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    std::map<std::string, int64_t> elements;
    for (const mw::CheckpointSlice& s : index.slices) {
      if (s.part.begin < 0 || s.part.count < 1 || s.part.first < 0 || s.part.size < 1) std::abort();
      if (s.file.find('/') != std::string::npos) std::abort();
      elements[s.tensor] += s.part.size;
    }
    for (const auto& [name, shape] : index.tensors)
      if (elements[name] != mw::whole_tensor(shape).size) std::abort();
  } catch (const mw::Error& e) {
    if (e.code() != mw::Exit::checkpoint) std::abort();
  }
  return 0;
}
