// Sequences that grow token by token: each pass computes the tokens that came since the last one, and reads keys and
// values of all others from a cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace mw {

class Generation {
 public:
  // prompts: token ids, at least one each, the same on all ranks; at most sample.sequences of them, and with
  // data.document_mask if there are several. The engine's run has sample.tokens > 0.
  Generation(Engine& engine, const std::vector<std::vector<int32_t>>& prompts);

  size_t sequences() const { return tokens_.size(); }

  // Appends as many tokens to every sequence: added[b] are those of sequence b.
  void add(const std::vector<std::vector<int32_t>>& added);

  // Logits [B, V] of the token after each sequence, on ranks that hold the last stage; empty on the others. Computes
  // the tokens that were added since the last call. Where they do not fit into train.seq_len positions any more, the
  // context becomes the last half of these (at least one), and is computed again. Collective over the world.
  std::vector<float> next_logits();

 private:
  void shorten(int64_t kept);

  Engine& engine_;
  std::vector<std::vector<int32_t>> tokens_;  // of each sequence, of equal length: shorter prompts begin with padding
  std::vector<int64_t> padding_;              // tokens of it, which form a document of their own
  int64_t computed_ = 0;                      // tokens of each sequence whose keys and values are in the cache
};

}  // namespace mw
