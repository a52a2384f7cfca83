// The key/value cache of one attention block, for text generation: keys and values of all tokens so far, as the
// attention operator reads them, after norm and rotation. Those of latent attention are of all heads: nothing is
// computed again.
#pragma once

#include "ops/attention.h"

namespace mw {

struct KeyValueCache {
  // [B, S, G, h] and [B, S, G, hv] of up to B sequences of up to S tokens; empty in runs that generate no text.
  TensorView k, v;

  // Copies keys and values [T, G, ..] of the tokens of `shape` behind the first shape.past rows of each sequence. Where
  // there are such rows, the views then are those of the whole cache, as `attention` takes them. Errors: internal, when
  // the cache is too small.
  void extend(Stream& stream, const AttentionShape& shape, TensorView& k_TGh, TensorView& v_TGh) const;
};

}  // namespace mw
