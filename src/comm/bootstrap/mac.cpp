#include "comm/bootstrap/mac.h"

#include <sodium.h>

#include "base/error.h"

namespace mw {
namespace {

static_assert(sizeof(JoinKey) == crypto_auth_hmacsha512256_KEYBYTES);
static_assert(sizeof(Mac) == crypto_auth_hmacsha512256_BYTES);

const unsigned char* raw(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }
unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

void prepare_library() {
  if (sodium_init() < 0) fail(Exit::comm, "libsodium finds no source of random numbers", "look at /dev/urandom");
}

}  // namespace

JoinKey key_from_secret(std::string_view secret) {
  constexpr std::string_view kUse = "moewright join secret";
  prepare_library();
  JoinKey key;
  crypto_generichash(raw(key.data()), key.size(), reinterpret_cast<const unsigned char*>(secret.data()), secret.size(),
                     reinterpret_cast<const unsigned char*>(kUse.data()), kUse.size());
  return key;
}

JoinKey derive_key(const JoinKey& key, std::span<const std::byte> use) { return mac_of(key, {use}); }

Mac mac_of(const JoinKey& key, std::initializer_list<std::span<const std::byte>> parts) {
  prepare_library();
  crypto_auth_hmacsha512256_state state;
  crypto_auth_hmacsha512256_init(&state, raw(key.data()), key.size());
  for (const auto part : parts) crypto_auth_hmacsha512256_update(&state, raw(part.data()), part.size());
  Mac mac;
  crypto_auth_hmacsha512256_final(&state, raw(mac.data()));
  sodium_memzero(&state, sizeof state);
  return mac;
}

bool equal(const Mac& a, const Mac& b) { return sodium_memcmp(a.data(), b.data(), a.size()) == 0; }

void fill_random(std::span<std::byte> bytes) {
  prepare_library();
  randombytes_buf(bytes.data(), bytes.size());
}

}  // namespace mw
