// TensorView: a typed, shaped, contiguous (row-major) view. It does not own its memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace mw {

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::u16;
};

struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};

  TensorView() = default;
  TensorView(void* pointer, DType type, std::span<const int64_t> dims);
  TensorView(void* pointer, DType type, std::initializer_list<int64_t> dims)
      : TensorView(pointer, type, std::span<const int64_t>(dims.begin(), dims.size())) {}

  int64_t dim(int axis) const { return shape[static_cast<size_t>(axis)]; }
  int64_t numel() const;
  int64_t bytes() const { return numel() * size_of(dtype); }
  // The tensor as a matrix: the last axis is the row width, all other axes together are the rows. A rank-1 tensor is
  // one row.
  int64_t cols() const { return rank == 0 ? 1 : dim(rank - 1); }
  int64_t rows() const;

  // Typed pointer. Errors: internal, when T is not the tensor's dtype.
  template <class T>
  T* as() const {
    MW_CHECK(dtype == DTypeOf<T>::value, "a {} tensor read as {}", name_of(dtype), name_of(DTypeOf<T>::value));
    return static_cast<T*>(data);
  }

  // Entries [begin, begin + count) of axis 0.
  TensorView slice(int64_t begin, int64_t count) const;
  // Entry `index` of axis 0, with that axis dropped.
  TensorView at(int64_t index) const;
  // The same elements with another shape.
  TensorView reshape(std::initializer_list<int64_t> dims) const;
  TensorView flat() const { return reshape({numel()}); }

  std::string describe() const;  // "bf16[128, 64]"
};

// The memory of `view`.
inline std::span<std::byte> bytes_of(const TensorView& view) {
  return {static_cast<std::byte*>(view.data), static_cast<size_t>(view.bytes())};
}

// The first elements of `view` with another shape.
TensorView take_front(TensorView view, std::initializer_list<int64_t> dims);

// Element i of an f32 or bf16 tensor, as fp32. The memory must be readable by the host.
inline float value_at(const TensorView& view, int64_t i) {
  return view.dtype == DType::bf16 ? to_float(view.as<bf16>()[i]) : view.as<float>()[i];
}

// Calls body with a value of the C++ type of dtype, which must be f32 or bf16, to select a template instance. Errors:
// internal, for any other dtype.
template <class Body>
void with_float_type(DType dtype, Body&& body) {
  MW_CHECK(dtype == DType::f32 || dtype == DType::bf16, "{} where f32 or bf16 is needed", name_of(dtype));
  if (dtype == DType::bf16) body(bf16{});
  else body(float{});
}

}  // namespace mw
