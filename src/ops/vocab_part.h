// The part of the vocabulary that a rank holds (tensor parallelism).
#pragma once

#include <cstdint>

namespace mw {

// The rows of an embedding, or columns of logits, for the ids from `begin` on; their number is that of the operand. The
// whole vocabulary has the ids [0, vocab).
struct VocabPart {
  int64_t begin = 0, vocab = 0;
};

}  // namespace mw
