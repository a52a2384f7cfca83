// Operators on row indices: build index tables, gather and scatter single values. Used by the exchange of routed rows.
#pragma once

#include <cstdint>
#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// out[to + i] = from + step * i for i < count. step: 1, or 0 to repeat `from`.
struct IndexRun {
  int64_t to = 0, from = 0, count = 0, step = 1;
};

// Fills out (i32) from runs in ascending order of `to` that do not overlap; -1 where no run writes. Overwrites. runs:
// host memory. Errors: internal, for runs out of order or beyond out.
void fill_index(Stream& stream, std::span<const IndexRun> runs, TensorView out);
// Scratch bytes of fill_index for at most so many runs.
int64_t index_workspace_bytes(int64_t runs, DeviceKind device = DeviceKind::cpu);

// out[i] = values[index[i]]; where index[i] is negative, 0 (f32) or -1 (i32). values, out: same dtype, f32 or i32;
// index: i32, as many as out, and may alias out. Overwrites.
void gather_values(Stream& stream, TensorView values, TensorView index, TensorView out);

// out[index[i]] = values[i] where index[i] is not negative; these entries of index (i32) must be distinct. values, out:
// f32. Elements of out that no entry names keep their values.
void scatter_values(Stream& stream, TensorView values, TensorView index, TensorView out);

}  // namespace mw
