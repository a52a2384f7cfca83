// Stands in for src/ops/gpu/tensor_map.h in a build without a GPU.
#pragma once

#include "core/tensor.h"
#include "ops/gpu/wgmma.h"

namespace mw::gpu {

struct Heads {
  const void* first;
  int64_t sequences, stride, tokens, heads, width;
};
struct Matrices {
  const void* first;
  DType dtype;
  int64_t count, rows, columns, spacing;
};
struct TensorMap {
  Heads heads;
  int rows;
  Matrices matrices = {};
};
inline bool describe_matrices(const Matrices& matrices, int box_rows, TensorMap* out) {
  *out = {{}, box_rows, matrices};
  return true;
}
inline bool describe_heads(const Heads& heads, int box_tokens, TensorMap* out) {
  *out = {heads, box_tokens};
  return true;
}

inline void end_copy(unsigned barrier, int rows) {
  EmulatedBarrier& b = barrier_at(barrier);
  b.bytes -= rows * kRowBytes;
  b.end_if_complete();
  emulated::tell_waiting();
}

// Copies happen at once: a stage that products still read is overwritten as soon as it was released.
inline void copy_bytes(unsigned to, const void* from, int bytes, unsigned barrier) {
  if (bytes % kRowBytes != 0) emulated::refuse("copies are counted in rows");
  for (int i = 0; i < bytes; i += kRowBytes)
    std::memcpy(in_shared(to + static_cast<unsigned>(i)), static_cast<const std::byte*>(from) + i, kRowBytes);
  end_copy(barrier, bytes / kRowBytes);
}
inline void copy_box_of_head(unsigned to, const TensorMap& map, int sequence, int token, int head, int column,
                             unsigned barrier) {
  const Heads& h = map.heads;
  for (int row = 0; row < map.rows; ++row)
    for (int i = 0; i < 64; ++i) {
      bf16 value = to_bf16(0.0f);
      if (token + row < h.tokens && column + i < h.width)
        value = static_cast<const bf16*>(
            h.first)[((sequence * h.stride + token + row) * h.heads + head) * h.width + column + i];
      std::memcpy(in_shared(swizzle(to + static_cast<unsigned>(row * kRowBytes + i * 2))), &value, sizeof value);
    }
  end_copy(barrier, map.rows);
}

// Calls body(element of the matrix, its place in the box) for each element of a box inside the matrix. T: bf16, float.
template <class T, class Body>
void for_box(const TensorMap& map, int matrix, int row, int column, const Body& body) {
  const Matrices& m = map.matrices;
  constexpr int kColumns = kRowBytes / sizeof(T);
  for (int r = 0; r < map.rows && row + r < m.rows; ++r)
    for (int c = 0; c < kColumns && column + c < m.columns; ++c)
      body(const_cast<T*>(static_cast<const T*>(m.first)) + matrix * m.spacing + (row + r) * m.columns + column + c,
           static_cast<unsigned>(r * kRowBytes + c * static_cast<int>(sizeof(T))));
}

// At once, as of heads.
inline void copy_box(unsigned to, const TensorMap& map, int matrix, int row, int column, unsigned barrier) {
  for (int r = 0; r < map.rows; ++r) std::memset(in_shared(to + static_cast<unsigned>(r * kRowBytes)), 0, kRowBytes);
  for_box<bf16>(map, matrix, row, column,
                [&](const bf16* from, unsigned at) { std::memcpy(in_shared(swizzle(to + at)), from, sizeof *from); });
  end_copy(barrier, map.rows);
}
inline void copy_box_to_pair(unsigned to, const TensorMap& map, int matrix, int row, int column, unsigned barrier) {
  for (int block = 0; block < kPair; ++block)
    copy_box(address_in(block, to), map, matrix, row, column, address_in(block, barrier));
}

// Stores of a thread that the copy engine has not made: batches, and the open one. The engine reads a box when the
// thread waits for it, or at once.
inline std::vector<EmulatedBatch> box_batches[emulated::kMaxThreads];
inline EmulatedBatch open_boxes[emulated::kMaxThreads];
template <class T>
void move_box(const TensorMap& map, int matrix, int row, int column, unsigned from, bool add) {
  for_box<T>(map, matrix, row, column, [&](T* to, unsigned at) {
    T value{};
    std::memcpy(&value, in_shared(swizzle(from + at)), sizeof value);
    *to = add ? from_float<T>(to_float(*to) + to_float(value)) : value;
  });
}
inline void put_box(const TensorMap& map, int matrix, int row, int column, unsigned from, bool add) {
  const auto move = [=, &map] {
    if (map.matrices.dtype == DType::f32) move_box<float>(map, matrix, row, column, from, add);
    else move_box<bf16>(map, matrix, row, column, from, add);
  };
  if (copies_happen_at_once) move();
  else open_boxes[emulated::this_thread()].push_back(move);
}
inline void store_box(const TensorMap& map, int matrix, int row, int column, unsigned from) {
  put_box(map, matrix, row, column, from, false);
}
inline void add_box(const TensorMap& map, int matrix, int row, int column, unsigned from) {
  put_box(map, matrix, row, column, from, true);
}
inline void commit_boxes() {
  box_batches[emulated::this_thread()].push_back(std::exchange(open_boxes[emulated::this_thread()], {}));
}
template <int kPending>
void wait_for_boxes() {
  auto& own = box_batches[emulated::this_thread()];
  while (own.size() > kPending) {
    for (const auto& move : own.front()) move();
    own.erase(own.begin());
  }
}

}  // namespace mw::gpu
