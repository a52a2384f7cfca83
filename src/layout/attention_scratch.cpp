#include "layout/attention_scratch.h"

#include <algorithm>

#include "base/library_attention.h"

namespace mw {
namespace {

// Of one rank and micro-batch.
struct Sequences {
  int64_t sequences = 0, seq_len = 0;
  int64_t tokens() const { return sequences * seq_len; }
};

constexpr int64_t kFloat = sizeof(float);

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Tiles of 64 queries and keys and, for each thread of the backward pass, the gradients of a whole sequence's keys and
// values in fp32; rows as AVX-512 pads them, which is the most.
int64_t on_cpu(const AttentionSpec& a, const Sequences& batch, int64_t threads) {
  constexpr int64_t kTile = 64, kLanes = 16, kRows = 8;
  const int64_t head = round_up(a.head_dim, kLanes), value = round_up(a.value_dim(), kLanes),
                tiles = (batch.seq_len + kTile - 1) / kTile;
  const int64_t forward = kTile * (3 * head + 2 * value + kTile + 3),
                backward =
                    kTile * (4 * head + 3 * value + 2 * kTile + 2) + round_up(batch.seq_len, kRows) * (head + value);
  const int64_t floats = std::max(std::min(batch.sequences * a.heads * tiles, threads) * forward,
                                  std::min(batch.sequences * a.kv_heads, threads) * backward);
  return round_up(floats * kFloat, 64);
}

// Own kernels keep one number for each token and head.
int64_t on_gpu(const AttentionSpec& a, const Sequences& batch) {
  return round_up(a.heads * batch.tokens() * kFloat, 64);
}

int64_t of_layer(const AttentionSpec& a, const Sequences& batch, DType dtype, const Platform& platform) {
  switch (platform.scratch) {
    case ScratchRule::asked: break;
    case ScratchRule::on_cpu: return on_cpu(a, batch, platform.threads);
    case ScratchRule::on_gpu: return on_gpu(a, batch);
    case ScratchRule::by_library:
      if (dtype != DType::bf16) return on_gpu(a, batch);
      return std::max(on_gpu(a, batch), library_attention::scratch_bytes({batch.sequences, batch.seq_len, a.heads,
                                                                          a.kv_heads, a.head_dim, a.value_dim()}));
  }
  return 0;
}

}  // namespace

int64_t attention_scratch_bytes(const ModelSpec& model, const RunSpec& run, const Mesh& mesh,
                                const Platform& platform) {
  if (platform.scratch == ScratchRule::asked) return 0;
  int64_t bytes = 0;
  // Fewer sequences or heads can need more scratch, where the library divides them.
  for (const int64_t sequences : different_samples(run, run.train.micro_batches, mesh.dp))
    for (const LayerSpec& layer : model.layers)
      for (const AttentionSpec& local : local_attention_at_ends(layer.attention, mesh))
        bytes = std::max(bytes, of_layer(local, {sequences, run.train.seq_len}, run.train.dtype, platform));
  return bytes;
}

}  // namespace mw
