// Parallel loops of CPU operators over the threads of a stream.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/stream.h"
#include "core/tensor.h"

namespace mw::cpu {

// Calls body(begin, end) once for each block [i * block, (i + 1) * block) of [0, count), on all threads. The block
// boundaries do not depend on the thread count. body must not throw.
template <class Body>
void for_blocks(Stream& stream, int64_t count, int64_t block, Body&& body) {
  if (count <= block) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  const int64_t blocks = (count + block - 1) / block;
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t i = 0; i < blocks; ++i) body(i * block, std::min(count, (i + 1) * block));
}

// The number of rows of `width` elements in a block that is large enough to be worth a thread.
inline int64_t rows_per_block(int64_t width) {
  constexpr int64_t kElements = 8192;
  return std::max<int64_t>(1, kElements / std::max<int64_t>(1, width));
}

}  // namespace mw::cpu
