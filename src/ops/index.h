// Index tables over rows, and single numbers moved by them: what an exchange of rows needs beside the rows.
#pragma once

#include <cstdint>
#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// out[to + i] = from + i for i < count.
struct IndexRun {
  int64_t to = 0, from = 0, count = 0;
};

// out (i32) from runs in ascending order of `to` that do not overlap; -1 where there is none. Overwrites. runs: host
// memory. Errors: internal, for runs out of order or beyond out.
void fill_index(Stream& stream, std::span<const IndexRun> runs, TensorView out);
int64_t index_workspace_bytes(int64_t runs, DeviceKind device = DeviceKind::cpu);

// out[i] = values[index[i]]; where index[i] is negative 0 (f32) or -1 (i32). values, out: same dtype, f32 or i32;
// index: i32, as many as out, and may be the same memory as out. Overwrites.
void gather_values(Stream& stream, TensorView values, TensorView index, TensorView out);

// out[index[i]] = values[i], where no two entries of index (i32, none negative) are equal. values, out: f32. What no
// entry names stays.
void scatter_values(Stream& stream, TensorView values, TensorView index, TensorView out);

}  // namespace mw
