// Packs: several neighbouring elements that one thread loads or stores at once, up to 16 bytes per access.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/gpu/capability.h"

namespace mw::gpu {

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T at[N];
};

// The pack of the widest access (16 bytes).
template <class T>
constexpr int kWidePack = static_cast<int>(16 / sizeof(T));

// The unit that one access of a pack moves.
template <class Pack>
using WordOf = std::conditional_t<
    alignof(Pack) == 16, int4,
    std::conditional_t<alignof(Pack) == 8, int2, std::conditional_t<alignof(Pack) == 4, int32_t, int16_t>>>;

// Loads and stores in device memory. kAligned: the address is a multiple of the pack's alignment. Otherwise each
// element is accessed by itself.
template <int N, bool kAligned = true, class T>
__device__ Pack<T, N> load(const T* from) {
  if constexpr (kAligned) {
    return *reinterpret_cast<const Pack<T, N>*>(from);
  } else {
    Pack<T, N> pack;
#pragma unroll
    for (int k = 0; k < N; ++k) pack.at[k] = from[k];
    return pack;
  }
}
// Calls write(address, word) for each word of an aligned pack.
template <class T, int N, class Write>
__device__ void store_words(T* to, const Pack<T, N>& pack, const Write& write) {
  using Word = WordOf<Pack<T, N>>;
  constexpr int kWords = static_cast<int>(sizeof(pack) / sizeof(Word));
  Word words[kWords];
  memcpy(words, &pack, sizeof(pack));
#pragma unroll
  for (int k = 0; k < kWords; ++k) write(reinterpret_cast<Word*>(to) + k, words[k]);
}
template <bool kAligned = true, class T, int N>
__device__ void store(T* to, const Pack<T, N>& pack) {
  if constexpr (kAligned) {
    store_words(to, pack, [](auto* address, auto word) { store_word(address, word); });
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = pack.at[k];
  }
}
// Aligned packs that no kernel reads again soon (capability.h).
template <int N, class T>
__device__ Pack<T, N> load_once(const T* from) {
  using Word = WordOf<Pack<T, N>>;
  constexpr int kWords = static_cast<int>(sizeof(Pack<T, N>) / sizeof(Word));
  Word words[kWords];
#pragma unroll
  for (int k = 0; k < kWords; ++k) words[k] = load_word_once(reinterpret_cast<const Word*>(from) + k);
  Pack<T, N> pack;
  memcpy(&pack, words, sizeof(pack));
  return pack;
}
template <class T, int N>
__device__ void store_once(T* to, const Pack<T, N>& pack) {
  store_words(to, pack, [](auto* address, auto word) { store_word_once(address, word); });
}
template <int N, class T>
Pack<T, N>* packs_of(T* elements) {
  return reinterpret_cast<Pack<T, N>*>(elements);
}

// The elements in fp32.
template <class T, int N>
__device__ Pack<float, N> widen(const Pack<T, N>& x) {
  Pack<float, N> wide;
#pragma unroll
  for (int k = 0; k < N; ++k) wide.at[k] = to_float(x.at[k]);
  return wide;
}

// Converts the elements to T.
template <class T, int N>
__device__ Pack<T, N> round_pack(const Pack<float, N>& values) {
  if constexpr (std::is_same_v<T, float>) {
    return values;
  } else {
    Pack<T, N> rounded;
    if constexpr (N == 1) {
      rounded.at[0] = to_bf16(values.at[0]);
    } else {
      uint32_t words[N / 2];
#pragma unroll
      for (int k = 0; k < N / 2; ++k) words[k] = round_pair(values.at[2 * k], values.at[2 * k + 1]);
      memcpy(&rounded, words, sizeof(rounded));
    }
    return rounded;
  }
}

// Whether packs of N elements may begin at all of these addresses. Null pointers are allowed.
template <int N, class... T>
__host__ __device__ bool allow_packs(const T*... elements) {
  return ((reinterpret_cast<std::uintptr_t>(elements) % alignof(Pack<T, N>) == 0) && ...);
}

// Calls body with the elements of a pack as the value of a type: N where packs are allowed, else 1.
template <int N, class Body>
void with_pack(bool allowed, Body&& body) {
  if (allowed) body(std::integral_constant<int, N>{});
  else body(std::integral_constant<int, 1>{});
}

}  // namespace mw::gpu
