// Message authentication codes (HMAC-SHA-512-256) and random bytes, from libsodium: the cryptography of the handshake.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

namespace mw {

using JoinKey = std::array<std::byte, 32>;
using Mac = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;

// Hashes any text into a key.
JoinKey key_from_secret(std::string_view secret);

// Derives a key for one use of `key`. Without `key`, neither can be computed from the other.
JoinKey derive_key(const JoinKey& key, std::span<const std::byte> use);

// The code of the concatenated parts. Parts must have fixed sizes, so that no two messages have the same concatenation.
Mac mac_of(const JoinKey& key, std::initializer_list<std::span<const std::byte>> parts);

// Constant-time comparison.
bool equal(const Mac& a, const Mac& b);

// Fills `bytes` with random ones of the system, fit for keys and nonces.
void fill_random(std::span<std::byte> bytes);

}  // namespace mw
