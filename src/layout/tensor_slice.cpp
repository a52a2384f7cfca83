#include "layout/tensor_slice.h"

#include <algorithm>

#include "base/error.h"

namespace mw {
namespace {

int64_t product(const std::vector<int64_t>& shape, size_t first, size_t last) {
  int64_t n = 1;
  for (size_t i = first; i < last; ++i) n *= shape[i];
  return n;
}

// A slice as runs of the global tensor, ascending: run r is the slice's part of one entry of the axes before its own.
class Runs {
 public:
  Runs(const std::vector<int64_t>& shape, const TensorSlice& slice) : slice_(slice) {
    const auto axis = static_cast<size_t>(slice.axis);
    const int64_t inner = product(shape, axis + 1, shape.size());
    length_ = slice.count * inner;
    stride_ = shape[axis] * inner;
    offset_ = slice.begin * inner;
    if (slice.size > 0) enter(slice.first / length_);
  }
  // The end of its last run; 0 where it has none.
  int64_t last_end() const {
    if (slice_.size == 0) return 0;
    const int64_t end = slice_.first + slice_.size;
    return end + (end - 1) / length_ * (stride_ - length_) + offset_;
  }
  bool done() const { return slice_.size == 0 || run_ * length_ >= slice_.first + slice_.size; }
  void next() { enter(run_ + 1); }
  int64_t begin() const { return begin_; }  // in the global tensor
  int64_t end() const { return end_; }
  // Where a global element of this run lies in what the slice holds.
  int64_t place(int64_t element) const { return element - shift() - slice_.first; }

 private:
  int64_t shift() const { return run_ * (stride_ - length_) + offset_; }
  void enter(int64_t run) {
    run_ = run;
    begin_ = std::max(run * length_, slice_.first) + shift();
    end_ = std::min((run + 1) * length_, slice_.first + slice_.size) + shift();
  }

  TensorSlice slice_;
  int64_t length_ = 0, stride_ = 0, offset_ = 0;
  int64_t run_ = 0, begin_ = 0, end_ = 0;
};

}  // namespace

int64_t box_elements(const std::vector<int64_t>& shape, const TensorSlice& slice) {
  return product(shape, 0, shape.size()) / shape[static_cast<size_t>(slice.axis)] * slice.count;
}

TensorSlice whole_box(const std::vector<int64_t>& shape, int axis, int64_t begin, int64_t count) {
  TensorSlice slice{axis, begin, count, 0, 0};
  slice.size = box_elements(shape, slice);
  return slice;
}

TensorSlice slice_of(const std::vector<int64_t>& shape, const SlicePiece& piece) {
  if (piece.cut_axis == 0) return whole_box(shape, piece.axis, piece.global_begin, piece.count);
  // Axis 0 is outermost: its entries are neighbours in the box of the other axis.
  TensorSlice slice = whole_box(shape, piece.cut_axis, piece.cut_begin, piece.cut_count);
  const int64_t entry = slice.size / shape.front();
  slice.first = piece.global_begin * entry;
  slice.size = piece.count * entry;
  return slice;
}

std::vector<TensorSlice> cut_slice(const TensorSlice& slice, int64_t most) {
  std::vector<TensorSlice> parts;
  for (int64_t at = 0; at < slice.size; at += most) {
    parts.push_back(slice);
    parts.back().first += at;
    parts.back().size = std::min(most, slice.size - at);
  }
  return parts;
}

TensorSlice whole_tensor(const std::vector<int64_t>& shape) { return whole_box(shape, 0, 0, shape.front()); }

void for_each_shared_run(const std::vector<int64_t>& shape, const TensorSlice& a, const TensorSlice& b,
                         const SharedRun& run) {
  Runs x(shape, a), y(shape, b);
  if (x.last_end() <= y.begin() || y.last_end() <= x.begin()) return;  // most pairs, without a walk over their runs
  while (!x.done() && !y.done()) {
    const int64_t begin = std::max(x.begin(), y.begin()), end = std::min(x.end(), y.end());
    if (begin < end) run(x.place(begin), y.place(begin), end - begin);
    if (x.end() < y.end()) x.next();
    else y.next();
  }
}

std::vector<HeldSlice> held_slices(const std::vector<int64_t>& shape, const std::vector<SlicePiece>& pieces,
                                   ElementRange held) {
  std::vector<HeldSlice> list;
  for (const SlicePiece& piece : pieces) {
    MW_CHECK(piece.axis == 0 || (pieces.size() == 1 && piece.local_begin == 0), "pieces of axis {}", piece.axis);
    if (piece.count == 0) continue;
    TensorSlice slice = slice_of(shape, piece);
    const int64_t local = slice.size / piece.count * piece.local_begin;
    const int64_t begin = std::max(held.begin, local), end = std::min(held.end(), local + slice.size);
    if (begin >= end) continue;
    slice.first += begin - local;
    slice.size = end - begin;
    list.push_back({slice, begin - held.begin});
  }
  return list;
}

}  // namespace mw
