// Softmax cross-entropy and its gradient for one chunk of rows. The loss head processes the tokens in chunks, so that
// the logits of all tokens never exist at once.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "ops/vocab_part.h"

namespace mw {

constexpr int32_t kIgnoreLabel = -100;

// For each row c with label != -100: loss[c] = logsumexp(logits[c]) - logits[c, label]; else loss[c] = 0.
// A label outside [0, V) is an internal error; a GPU, which cannot throw, gives NaN.
// logits: f32 or bf16 [C, V]; all sums are in f32. labels: i32 [C], -100 or in [0, V); loss: f32 [C], overwritten.
// d_logits (f32 or bf16 [C, V], bf16 for logits in bf16; may be the logits if of their dtype) = scale * (softmax -
// onehot), zero for ignored rows; with an empty view the gradient is not computed. With a gradient, logits are
// undefined afterwards.
void cross_entropy(Stream& stream, TensorView logits_CV, TensorView labels_C, float scale, TensorView loss_C,
                   TensorView d_logits_CV);

// The same with the vocabulary sharded over P ranks (tensor parallelism), in two steps with an exchange between them.
//
// Step 1: what the other ranks must know about a row: the largest logit in this part, at least the lowest finite
// number; the sum of e^(logit - largest); the label's logit, or 0 where the label is ignored or in another part. f32
// [C, 3], overwritten. logits: f32 or bf16 [C, v], v = 0 is legal; labels: -100 or in [0, part.vocab), otherwise as in
// cross_entropy.
constexpr int64_t kSoftmaxStatistics = 3;
void softmax_statistics(Stream& stream, TensorView logits_Cv, VocabPart part, TensorView labels_C,
                        TensorView statistics_C3);

// Step 2: from the statistics of all parts, f32 [P, C, 3], in the order of the parts: the loss of each row, equal on
// every rank, and this part's columns of the gradient. With one part the result is bit-identical to cross_entropy.
void cross_entropy_of_part(Stream& stream, TensorView logits_Cv, VocabPart part, TensorView labels_C,
                           TensorView statistics_PC3, float scale, TensorView loss_C, TensorView d_logits_Cv);

}  // namespace mw
