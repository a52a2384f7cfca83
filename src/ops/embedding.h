// Token embedding.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// y[t] = table[ids[t]]. table: f32 [V, D]; ids: i32 [T], each in [0, V); y: f32 or bf16 [T, D]. Overwrites.
// Errors: internal on an id out of range (data loading has checked them).
void embed(Stream& stream, TensorView table_VD, TensorView ids_T, TensorView y_TD);

// d_table[ids[t]] += d_y[t] in token order: deterministic. d_table: f32 [V, D], accumulated.
void embed_backward(Stream& stream, TensorView d_y_TD, TensorView ids_T, TensorView d_table_VD);

}  // namespace mw
