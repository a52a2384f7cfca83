// TensorStore: memory for a list of named tensors, all known before the first step. Fixed tensors lie back to back in
// one committed block; tensors that grow by rows get their own address range, reserved for the worst case and committed
// on demand, so that views never move.
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
  std::vector<int64_t> shape;  // of a growing tensor: axis 0 is the rows committed at start
  int64_t max_rows = 0;        // above 0: grows by rows up to this
  int64_t bytes() const;       // of `shape`, rounded up to 64
};

constexpr int64_t kTensorAlignment = 64;

// A tensor of which the first rows are taken, as many as the data needs. Copies refer to the same memory.
class GrowingTensor {
 public:
  GrowingTensor() = default;
  // The first `rows` rows, committing more when needed. Errors: memory; internal beyond max_rows.
  TensorView take(int64_t rows);
  int64_t committed_rows() const { return shared_ == nullptr ? max_rows_ : shared_->committed_rows; }
  int64_t grows() const { return shared_ == nullptr ? 0 : shared_->grows; }  // how often take() had to commit more

 private:
  friend class TensorStore;
  int64_t commit_more(int64_t rows);
  struct Shared {
    std::unique_ptr<Reservation> memory;
    int64_t committed_rows = 0, peak_rows = 0, grows = 0;
  };
  std::shared_ptr<Shared> shared_;  // null: rows of a fixed tensor
  TensorView shape_;                // axis 0 is replaced
  int64_t max_rows_ = 0, row_bytes_ = 0;
};

class TensorStore {
 public:
  // Allocates every slot; fixed memory is zeroed (and so committed). Errors: memory, naming what was asked.
  explicit TensorStore(const std::vector<TensorSlot>& slots, const Reserve& reserve = reserve_host);

  bool has(const std::string& name) const { return entries_.count(name) != 0; }
  // Errors: internal for a name that is not in the table; fixed() also for a tensor that grows.
  TensorView fixed(const std::string& name);
  // Rows of a growing tensor, or of a fixed one whose row count the table knows exactly.
  GrowingTensor rows(const std::string& name);

  int64_t fixed_bytes() const { return fixed_bytes_; }  // where the bump pointer of the fixed block stands
  int64_t peak_growing_bytes() const;                   // rows ever taken
  int64_t arena_grows() const;
  // Names that nothing asked for: a table row without a user is a bug.
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
