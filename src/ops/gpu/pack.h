// Several neighbouring elements that one thread moves at once, up to 16 bytes an access.
#pragma once

#include <cstdint>

namespace mw::gpu {

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T at[N];
};

// The address must be a multiple of the pack's alignment.
template <int N, class T>
__device__ Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, class T>
__device__ void store(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}
template <int N, class T>
Pack<T, N>* packs_of(T* elements) {
  return reinterpret_cast<Pack<T, N>*>(elements);
}

}  // namespace mw::gpu
