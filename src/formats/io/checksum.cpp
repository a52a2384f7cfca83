#include "formats/io/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>

namespace mw {

uint64_t xxh3(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
uint64_t xxh3(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::string xxh3_hex(std::span<const std::byte> bytes) { return fmt::format("{:016x}", xxh3(bytes)); }

struct Xxh3Stream::State {
  State() : raw(XXH3_createState()) {
    if (raw == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(raw);
  }
  ~State() { XXH3_freeState(raw); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  XXH3_state_t* raw;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {}
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_64bits_update(state_->raw, bytes.data(), bytes.size());
}

uint64_t Xxh3Stream::digest() const { return XXH3_64bits_digest(state_->raw); }
std::string Xxh3Stream::hex() const { return fmt::format("{:016x}", digest()); }

}  // namespace mw
