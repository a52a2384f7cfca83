#include "model/attention.h"

#include <cmath>

namespace mw {

AttentionShape attention_shape(const AttentionSpec& spec, int64_t tokens, int64_t seq_len, bool documents) {
  AttentionShape s;
  s.sequences = seq_len == 0 ? 0 : tokens / seq_len;
  s.seq_len = seq_len;
  s.heads = spec.heads;
  s.kv_heads = spec.kv_heads;
  s.head_dim = spec.head_dim;
  s.value_dim = spec.value_dim();
  s.documents = documents;
  s.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  if (spec.is_latent()) s.scale *= static_cast<float>(spec.yarn.score_scale());
  return s;
}

}  // namespace mw
