// How many rows of logits the loss head has at a time.
#pragma once

#include <cstdint>

namespace mw {

// Rows that fp32 logits of one chunk of the loss head have: at most `elements` in all, at a vocabulary below 4096 no
// more rows than there, and 64 where even they are more. Over TP all ranks compute the chunks of the largest part of
// the vocabulary, for the tokens of all.
int64_t logit_chunk_rows(int64_t vocab, int64_t tokens, int64_t elements);
// Rows of the logits' bf16 gradients, and of logits in bf16: those of so many chunks as come near to `wanted` rows, at
// least of one.
int64_t logit_gradient_rows(int64_t chunk, int64_t tokens, int64_t wanted);

// Of a GPU. Products of fewer gradients would spend their time on the gradient of the head's weights, to which each
// adds.
constexpr int64_t kGpuLogitElements = int64_t{160} << 20, kGpuLogitGradientRows = 4096;

}  // namespace mw
