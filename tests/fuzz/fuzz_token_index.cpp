// Any bytes as a Megatron index beside a .bin of any size, and as a token shard: accepted or mw::Error, nothing else.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "formats/tokens/megatron.h"
#include "formats/tokens/token_shard.h"

namespace {

template <class Work>
void attempt(Work work) {
  try {
    work();
  } catch (const mw::Error& e) {
    if (e.code() != mw::Exit::data) std::abort();
  }
}

void parse_index(std::span<const std::byte> idx, size_t bin_size) {
  attempt([&] {
    const mw::MegatronIndex index = mw::parse_megatron_index(idx, static_cast<int64_t>(bin_size), "fuzz");
    const std::vector<std::byte> bin(bin_size, std::byte{7});
    std::vector<int32_t> out(static_cast<size_t>(index.token_count));
    mw::read_megatron_tokens(index, bin, 0, out, "fuzz");
    const size_t half = out.size() / 2;
    mw::read_megatron_tokens(index, bin, static_cast<int64_t>(half), std::span(out).subspan(half), "fuzz");
    for (int64_t document = 0; document <= index.document_count; ++document) {
      const int64_t first = index.first_token(document);
      if (first < (document == 0 ? 0 : index.first_token(document - 1)) || first > index.token_count) std::abort();
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  attempt([&] {
    const mw::TokenShardHeader header = mw::parse_token_shard(bytes, "fuzz");
    std::vector<int32_t> out(static_cast<size_t>(header.token_count));
    mw::decode_tokens(header.type, bytes.data() + mw::kTokenShardHeaderSize, out, "fuzz");
  });
  if (size < 1) return 0;
  parse_index(bytes.subspan(1), data[0]);
  // The same fields behind a good magic, version and type, and counts that are small enough to fit.
  if (size < 4) return 0;
  std::vector<std::byte> idx = {std::byte{'M'}, std::byte{'M'}, std::byte{'I'}, std::byte{'D'}, std::byte{'I'},
                                std::byte{'D'}, std::byte{'X'}, std::byte{0},   std::byte{0},   std::byte{1}};
  idx.resize(34);
  idx[17] = static_cast<std::byte>(data[1] % 9);
  idx[18] = static_cast<std::byte>(data[2] % 16);
  idx[26] = static_cast<std::byte>(data[3] % 16);
  idx.insert(idx.end(), bytes.begin() + 4, bytes.end());
  const size_t needed = 34 + size_t{12} * (data[2] % 16) + size_t{8} * (data[3] % 16);
  if (idx.size() > needed) idx.resize(needed);
  parse_index(idx, data[0]);
  return 0;
}
