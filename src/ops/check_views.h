// What the checks of all operators ask of a tensor (ops/checks.h).
#pragma once

#include <initializer_list>

#include "core/tensor.h"

namespace mw {

inline bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }
inline bool is_given(const TensorView& view) { return view.data != nullptr; }  // of operands that may be empty views
inline bool same_shape(const TensorView& a, const TensorView& b) { return a.rank == b.rank && a.shape == b.shape; }

inline void check_view(const TensorView& view, DType dtype, std::initializer_list<int64_t> dims, const char* name) {
  const TensorView expected(nullptr, dtype, dims);
  MW_CHECK(view.dtype == dtype && same_shape(view, expected), "{} is {}, expected {}", name, view.describe(),
           expected.describe());
}

}  // namespace mw
