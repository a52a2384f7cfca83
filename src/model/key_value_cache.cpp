#include "model/key_value_cache.h"

namespace mw {

void KeyValueCache::extend(Stream& stream, const AttentionShape& shape, TensorView& k_TGh, TensorView& v_TGh) const {
  MW_CHECK(k.data != nullptr && shape.sequences <= k.dim(0) && shape.past + shape.seq_len <= k.dim(1),
           "{} sequences of {} tokens after {} in a cache {}", shape.sequences, shape.seq_len, shape.past,
           k.describe());
  const auto extend_one = [&](const TensorView& all, TensorView& added) {
    for (int64_t b = 0; b < shape.sequences; ++b) {
      const TensorView from = added.slice(b * shape.seq_len, shape.seq_len);
      stream.queue().copy(all.at(b).slice(shape.past, shape.seq_len).data, from.data,
                          static_cast<size_t>(from.bytes()));
    }
    if (shape.past > 0) added = take_front(all, {shape.sequences * all.dim(1), all.dim(2), all.dim(3)});
  };
  extend_one(k, k_TGh);
  extend_one(v, v_TGh);
}

}  // namespace mw
