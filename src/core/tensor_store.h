// TensorStore: the memory of a list of named tensors, all known before the first step. Fixed tensors lie back to back
// in one committed block. Each growing tensor has an address range of its own, reserved for the worst case and
// committed on demand, so that views stay valid when it grows.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/reservation.h"
#include "core/tensor.h"

namespace mw {

struct TensorSlot {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;  // for a growing tensor, axis 0 is the number of rows committed at start
  int64_t max_rows = 0;        // above 0: a growing tensor with at most this many rows
  int64_t bytes() const;       // of `shape`, rounded up to 64
};

constexpr int64_t kTensorAlignment = 64;

// A tensor whose number of rows depends on the data: callers take as many of its first rows as they need. Copies of
// this object refer to the same memory.
class GrowingTensor {
 public:
  GrowingTensor() = default;
  // Returns the first `rows` rows, committing memory where needed. Errors: memory; internal beyond max_rows.
  TensorView take(int64_t rows);
  // Returns rows [first, first + rows), committing memory as above.
  TensorView take(int64_t first, int64_t rows) { return take(first + rows).slice(first, rows); }
  TensorView committed() const;  // all committed rows; unlike take(), does not count in peak_growing_bytes()
  int64_t committed_rows() const { return shared_ == nullptr ? max_rows_ : shared_->committed_rows; }
  int64_t grows() const { return shared_ == nullptr ? 0 : shared_->grows; }  // how often take() had to commit more

 private:
  friend class TensorStore;
  int64_t commit_more(int64_t rows);
  struct Shared {
    std::unique_ptr<Reservation> memory;
    int64_t committed_rows = 0, peak_rows = 0, grows = 0;
  };
  std::shared_ptr<Shared> shared_;  // null: the tensor is fixed
  TensorView shape_;                // axis 0 is replaced by the rows taken
  int64_t max_rows_ = 0, row_bytes_ = 0;
};

class TensorStore {
 public:
  // Allocates every slot; fixed memory is zeroed (and so committed). Errors: memory, naming the slot.
  explicit TensorStore(const std::vector<TensorSlot>& slots, const Reserve& reserve = reserve_host);

  bool has(const std::string& name) const { return entries_.count(name) != 0; }
  // Errors: internal for an unknown name; fixed() also for a growing tensor.
  TensorView fixed(const std::string& name);
  // A growing tensor, or a fixed one whose number of rows the byte table knows exactly.
  GrowingTensor rows(const std::string& name);

  int64_t fixed_bytes() const { return fixed_bytes_; }  // bytes of all fixed tensors
  int64_t peak_growing_bytes() const;                   // at the largest number of rows ever taken
  int64_t arena_grows() const;
  // Names that were never requested: a table row without a user is a bug.
  std::vector<std::string> unused() const;

 private:
  struct Entry {
    TensorView view;
    GrowingTensor growing;
    bool grows = false;
    bool used = false;
  };
  Entry& find(const std::string& name);
  std::unique_ptr<Reservation> block_;
  std::map<std::string, Entry> entries_;
  int64_t fixed_bytes_ = 0;
};

}  // namespace mw
