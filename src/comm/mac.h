// Message authentication codes (HMAC-SHA-512-256) and random bytes, from libsodium: how processes prove to each other
// that they belong to one job.
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

// Any text; the same text gives the same key.
JoinKey key_from_secret(std::string_view secret);

// A key for one use of `key`: nobody can compute one from the other without knowing `key`.
JoinKey derive_key(const JoinKey& key, std::span<const std::byte> use);

// Of the parts, one after another. Parts of a message must have fixed sizes, so that no two messages look the same.
Mac mac_of(const JoinKey& key, std::initializer_list<std::span<const std::byte>> parts);

// Takes the same time wherever they differ.
bool equal(const Mac& a, const Mac& b);

void fill_random(std::span<std::byte> bytes);

}  // namespace mw
