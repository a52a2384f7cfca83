#include "moe/weight_cache.h"

#include "base/error.h"

namespace mw {

WeightCache::WeightCache(TensorView memory, const WeightSlots& slots) : memory_(memory), slots_(slots) {
  MW_CHECK(memory_.bytes() >= slots_.all_bytes(), "{} slots of {} bytes in {}", slots_.count(), slots_.bytes,
           memory_.describe());
}

void WeightCache::follow(const std::vector<WeightUse>& uses) {
  if (uses_ == &uses) return;
  MW_CHECK(next_ == 0, "use {} of {} is due", next_, uses_->size());
  uses_ = &uses;
}

const WeightUse& WeightCache::next(int64_t layer, bool backward, int64_t piece) {
  const WeightUse& use = uses_->at(next_);
  MW_CHECK(use.layer == layer && use.backward == backward && use.piece == piece,
           "piece {} of layer {} in place of piece {} of layer {}", piece, layer, use.piece, use.layer);
  if (++next_ == uses_->size()) next_ = 0;
  return use;
}

}  // namespace mw
