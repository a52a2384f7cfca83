// Token embedding: lookup of table rows by id, and its gradient.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "ops/vocab_part.h"

namespace mw {

// y[t] = row ids[t] of the table, or zeros for an id of another part of the vocabulary. table: f32 [v, D], v = 0 is
// legal; ids: i32 [T], each in [0, part.vocab); y: f32 or bf16 [T, D], overwritten.
// Errors: internal on an id out of range (data loading has checked them); a GPU, which cannot throw, gives NaN.
void embed(Stream& stream, TensorView table_vD, VocabPart part, TensorView ids_T, TensorView y_TD);

// d_table row ids[t] += d_y[t], in token order; deterministic. Skips ids of other parts. d_table: f32 [v, D],
// accumulated.
void embed_backward(Stream& stream, TensorView d_y_TD, VocabPart part, TensorView ids_T, TensorView d_table_vD);

// table row ids[t] = 0, for ids in any order that may be repeated. Skips ids of other parts. Operands as for embed; on
// a GPU, an id out of range names no row.
void clear_rows(Stream& stream, VocabPart part, TensorView ids_T, TensorView table_vD);

// Scratch bytes of embed_backward: GPUs sort the tokens by id.
int64_t embedding_workspace_bytes(int64_t tokens, int64_t vocab, DeviceKind device = DeviceKind::cpu);

}  // namespace mw
