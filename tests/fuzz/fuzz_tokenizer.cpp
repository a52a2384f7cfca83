// Any bytes as a tokenizer.json, and as text for one: accepted or mw::Error, nothing else.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/tokens/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(bytes.find('\0'), size);  // the text follows the file
  const std::string_view text = bytes.substr(std::min(zero + 1, size));
  try {
    const auto tokenizer = mw::parse_bpe_tokenizer(bytes.substr(0, zero), "fuzz", "<end>");
    std::vector<int32_t> ids;
    tokenizer->encode(text, ids);
    for (const int32_t id : ids)
      if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
    tokenizer->decode(ids);
  } catch (const mw::Error& e) {
    if (e.code() != mw::Exit::data && e.code() != mw::Exit::unsupported) std::abort();
  }
  return 0;
}
