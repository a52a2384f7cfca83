// Elements of a parameter in the order in which a Hugging Face tensor has them (HfTensor::file_sizes).
#pragma once

#include <algorithm>
#include <cstdint>

#include "formats/weights/hf_names.h"

namespace mw {

// For elements [first, first + count) of the parameter: calls run(at, begin, stride, n) for stretches of them, in
// order. Elements first + at to first + at + n - 1 are elements begin, begin + stride, .. of the tensor. With axes in
// the parameter's own order that is one stretch.
template <class Run>
void for_each_file_run(const HfTensor& tensor, int64_t first, int64_t count, const Run& run) {
  if (tensor.axes.empty()) {
    run(int64_t{0}, first, int64_t{1}, count);
    return;
  }
  const size_t rank = tensor.axes.size();
  const auto size_of_axis = [&](size_t axis) { return tensor.file_sizes[tensor.axes[axis]]; };
  const auto stride_of_axis = [&](size_t axis) {
    int64_t stride = 1;
    for (size_t i = tensor.axes[axis] + 1; i < rank; ++i) stride *= tensor.file_sizes[i];
    return stride;
  };
  const int64_t width = size_of_axis(rank - 1), stride = stride_of_axis(rank - 1);
  for (int64_t at = 0; at < count;) {
    int64_t index = (first + at) / width, begin = (first + at) % width * stride;
    const int64_t n = std::min(count - at, width - (first + at) % width);
    for (size_t axis = rank - 1; axis-- > 0;) {
      begin += index % size_of_axis(axis) * stride_of_axis(axis);
      index /= size_of_axis(axis);
    }
    run(at, begin, stride, n);
    at += n;
  }
}

}  // namespace mw
