// Parts of a global tensor: what ranks hold, what files store, and the elements that two parts share.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "layout/placement.h"

namespace mw {

// A box of a tensor, entries [begin, begin + count) of one axis and all of the others, and of the box's elements in
// row-major order those of [first, first + size).
struct TensorSlice {
  int axis = 0;
  int64_t begin = 0, count = 0;
  int64_t first = 0, size = 0;
  bool operator==(const TensorSlice&) const = default;
};

// Elements of the box of a slice.
int64_t box_elements(const std::vector<int64_t>& shape, const TensorSlice& slice);
// A box with all of its elements.
TensorSlice whole_box(const std::vector<int64_t>& shape, int axis, int64_t begin, int64_t count);
TensorSlice whole_tensor(const std::vector<int64_t>& shape);
// The slice in parts of `most` elements, in their order; the last may have fewer.
std::vector<TensorSlice> cut_slice(const TensorSlice& slice, int64_t most);
// A piece, all of it.
TensorSlice slice_of(const std::vector<int64_t>& shape, const SlicePiece& piece);

// Calls `run` with the elements that two slices of one tensor share: `count` of them from a_at on in a, from b_at on in
// b (counted in what each slice holds), contiguous in both. Ascending in both; nothing for slices that share nothing.
using SharedRun = std::function<void(int64_t a_at, int64_t b_at, int64_t count)>;
void for_each_shared_run(const std::vector<int64_t>& shape, const TensorSlice& a, const TensorSlice& b,
                         const SharedRun& run);

// Elements [begin, begin + count) of a local tensor, in row-major order.
struct ElementRange {
  int64_t begin = 0, count = 0;
  int64_t end() const { return begin + count; }
  bool operator==(const ElementRange&) const = default;
};

// A slice of the global tensor that lies at element `at` of what is held.
struct HeldSlice {
  TensorSlice slice;
  int64_t at = 0;
};

// What `held`, elements of the local tensor that `pieces` make up, are of the global one. Pieces of axis 0 lie one
// after the other in the local tensor; one of another axis is all of it.
std::vector<HeldSlice> held_slices(const std::vector<int64_t>& shape, const std::vector<SlicePiece>& pieces,
                                   ElementRange held);

}  // namespace mw
