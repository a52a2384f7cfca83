// Softmax cross-entropy with its gradient, on one chunk of rows: the loss head walks the tokens in chunks, so that fp32
// logits of all tokens never exist at once.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "ops/vocab_part.h"

namespace mw {

constexpr int32_t kIgnoreLabel = -100;

// For each row c with label != -100: loss[c] = logsumexp(logits[c]) - logits[c, label]; else loss[c] = 0.
// A label outside [0, V) is an internal error; a GPU, which cannot throw, gives NaN.
// logits: f32 [C, V]; labels: i32 [C], -100 or in [0, V); loss: f32 [C], overwritten.
// d_logits (f32 or bf16 [C, V], may alias logits when f32) = scale * (softmax - onehot), zero for ignored rows; an
// empty view leaves the gradient out.
void cross_entropy(Stream& stream, TensorView logits_CV, TensorView labels_C, float scale, TensorView loss_C,
                   TensorView d_logits_CV);

// The same where each of P ranks has the logits of a part of the vocabulary, in two steps with an exchange between.
//
// What the others must know of a row: its largest logit in this part, never below the lowest finite number; the sum of
// e^(logit - largest); the label's own logit, or 0 where the label is ignored or lies in another part. f32 [C, 3],
// overwritten. logits: f32 [C, v], v = 0 is legal; labels: -100 or in [0, part.vocab), else as in cross_entropy.
constexpr int64_t kSoftmaxStatistics = 3;
void softmax_statistics(Stream& stream, TensorView logits_Cv, VocabPart part, TensorView labels_C,
                        TensorView statistics_C3);

// From the statistics of all parts, f32 [P, C, 3], in their order: the loss of each row, equal on every rank, and this
// part's columns of the gradient. With one part the bits are those of cross_entropy.
void cross_entropy_of_part(Stream& stream, TensorView logits_Cv, VocabPart part, TensorView labels_C,
                           TensorView statistics_PC3, float scale, TensorView loss_C, TensorView d_logits_Cv);

}  // namespace mw
