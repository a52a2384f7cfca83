#include "core/tensor.h"

#include "base/text.h"

namespace mw {

TensorView::TensorView(void* pointer, DType type, std::span<const int64_t> dims)
    : data(pointer), dtype(type), rank(static_cast<int>(dims.size())) {
  MW_CHECK(dims.size() <= kMaxRank, "rank {} above {}", dims.size(), kMaxRank);
  for (size_t i = 0; i < dims.size(); ++i) shape[i] = dims[i];
}

int64_t TensorView::numel() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= dim(i);
  return n;
}

int64_t TensorView::rows() const {
  int64_t n = 1;
  for (int i = 0; i + 1 < rank; ++i) n *= dim(i);
  return n;
}

TensorView TensorView::slice(int64_t begin, int64_t count) const {
  MW_CHECK(rank > 0 && begin >= 0 && count >= 0 && begin + count <= dim(0), "slice [{}, {}) of {}", begin,
           begin + count, describe());
  TensorView view = *this;
  view.shape[0] = count;
  const int64_t entry = dim(0) == 0 ? 0 : bytes() / dim(0);
  view.data = static_cast<char*>(data) + begin * entry;
  return view;
}

TensorView TensorView::at(int64_t index) const {
  TensorView view = slice(index, 1);
  for (int i = 0; i + 1 < rank; ++i) view.shape[static_cast<size_t>(i)] = dim(i + 1);
  view.rank = rank - 1;
  view.shape[static_cast<size_t>(view.rank)] = 0;  // as in a view made of so few axes
  return view;
}

TensorView TensorView::reshape(std::initializer_list<int64_t> dims) const {
  TensorView view(data, dtype, dims);
  MW_CHECK(view.numel() == numel(), "{} reshaped to {} elements", describe(), view.numel());
  return view;
}

TensorView take_front(TensorView view, std::initializer_list<int64_t> dims) {
  const TensorView out(view.data, view.dtype, dims);
  MW_CHECK(out.numel() <= view.numel(), "{} taken from {}", out.describe(), view.describe());
  return out;
}

std::string TensorView::describe() const {
  return std::string(name_of(dtype)) + format_shape(std::span(shape).first(static_cast<size_t>(rank)));
}

}  // namespace mw
