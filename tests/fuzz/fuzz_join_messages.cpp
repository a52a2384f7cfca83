// Any bytes as a message of a process that joins: refused, or numbers that a rank could send, which give the same bytes
// again when they are sent on. The first byte says which message is expected.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "comm/bootstrap/join_messages.h"

namespace {

void check_text(const std::string& text) {
  for (const char c : text)
    if (c < 0x20 || c > 0x7e) std::abort();
}

template <class Parsed>
void check_same(const Parsed& message, std::span<const std::byte> bytes) {
  if (!message) return;
  const auto again = mw::encode(*message);
  if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end())) std::abort();
}

void check_hello(std::span<const std::byte> bytes) {
  const auto hello = mw::parse_hello(bytes);
  if (!hello) return;
  if (hello->rank < 1 || hello->rank >= hello->size || hello->size > mw::kMostRanks) std::abort();
  if (hello->to < 0 || hello->to >= hello->rank) std::abort();
  check_text(hello->name);
  const auto again = mw::parse_hello(mw::encode(*hello));
  if (!again || again->rank != hello->rank || again->guest != hello->guest || again->nonce != hello->nonce)
    std::abort();
}

void check_row(std::span<const std::byte> bytes) {
  if (const auto row = mw::parse_row(bytes)) check_text(row->name);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 6) {
    case 0: check_hello(bytes); break;
    case 1: check_same(mw::parse_challenge(bytes), bytes); break;
    case 2: check_same(mw::parse_proof(bytes), bytes); break;
    case 3: check_same(mw::parse_verdict(bytes), bytes); break;
    case 4: check_same(mw::parse_answer(bytes), bytes); break;
    case 5: check_row(bytes); break;
  }
  return 0;
}
