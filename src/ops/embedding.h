// Token embedding.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// y[t] = table[ids[t]]. table: f32 [V, D]; ids: i32 [T], each in [0, V); y: f32 or bf16 [T, D]. Overwrites.
// Errors: internal on an id out of range (data loading has checked them); a GPU, which cannot throw, gives NaN.
void embed(Stream& stream, TensorView table_VD, TensorView ids_T, TensorView y_TD);

// d_table[ids[t]] += d_y[t] in token order: deterministic. d_table: f32 [V, D], accumulated.
void embed_backward(Stream& stream, TensorView d_y_TD, TensorView ids_T, TensorView d_table_VD);

// Scratch of embed_backward: GPUs sort the tokens by id.
int64_t embedding_workspace_bytes(int64_t tokens, int64_t vocab, DeviceKind device = DeviceKind::cpu);

}  // namespace mw
