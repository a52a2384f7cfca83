#include "model/attention.h"

#include <cmath>

namespace mw {

AttentionShape attention_shape(const AttentionSpec& spec, int64_t tokens, const Sequences& sequences, bool documents) {
  AttentionShape s;
  s.sequences = sequences.length == 0 ? 0 : tokens / sequences.length;
  s.seq_len = sequences.length;
  s.past = sequences.first_position();
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
