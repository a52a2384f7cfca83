// The slots of a rank for gathered weights, which the transports of its layers use in the order of the plan
// (layout/weight_cache.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "layout/weight_cache.h"

namespace mw {

class WeightCache {
 public:
  // memory: u8, at least slots.all_bytes(); must outlive this object.
  WeightCache(TensorView memory, const WeightSlots& slots);

  // The uses that follow, over and over: slots are empty before the first of them. `uses` must outlive this object, or
  // the next call. Errors: internal, in the middle of other uses.
  void follow(const std::vector<WeightUse>& uses);
  // The next use. Errors: internal, if it is of another piece or pass.
  const WeightUse& next(int64_t layer, bool backward, int64_t piece);

  std::byte* slot(int64_t index) const { return static_cast<std::byte*>(memory_.data) + index * slots_.bytes; }
  const WeightSlots& slots() const { return slots_; }

 private:
  TensorView memory_;
  WeightSlots slots_;
  const std::vector<WeightUse>* uses_ = nullptr;
  size_t next_ = 0;
};

}  // namespace mw
