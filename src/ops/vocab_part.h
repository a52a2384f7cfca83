// The part of a vocabulary that an operand has.
#pragma once

#include <cstdint>

namespace mw {

// Rows of an embedding or columns of logits, as many as the operand has: those of the ids from `begin` on. The whole
// vocabulary has the ids [0, vocab).
struct VocabPart {
  int64_t begin = 0, vocab = 0;
};

}  // namespace mw
