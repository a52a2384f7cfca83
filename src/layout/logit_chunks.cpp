#include "layout/logit_chunks.h"

#include <algorithm>

namespace mw {

int64_t logit_chunk_rows(int64_t vocab, int64_t tokens, int64_t elements) {
  const int64_t rows = elements / vocab, tile = rows < 256 ? 64 : 256;  // a product's, so that none is cut
  return std::min(tokens, std::clamp<int64_t>(rows / tile * tile, 64, elements / 4096));
}

int64_t logit_gradient_rows(int64_t chunk, int64_t tokens, int64_t wanted) {
  return std::min(tokens, chunk * std::max<int64_t>(1, (wanted + chunk / 2) / chunk));
}

}  // namespace mw
