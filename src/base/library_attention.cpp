#include "base/library_attention.h"

#include <algorithm>

namespace mw::library_attention {
namespace {

constexpr int64_t kMaxWidth = 256;
constexpr int64_t kPartBytes = int64_t{1} << 30;       // at a time, where one KV head has no more
constexpr int64_t kMaxKvHeadBytes = int64_t{8} << 30;  // longer sequences go without the library

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t largest_divisor(int64_t of, int64_t at_most) {
  int64_t divisor = std::clamp<int64_t>(at_most, 1, of);
  while (of % divisor != 0) --divisor;
  return divisor;
}

// Of gradients of scores in bf16, or of queries in fp32.
int64_t bytes_of_kv_head(const Sizes& s, bool deterministic) {
  const int64_t rows = round_up(s.seq_len, kScoreRows);
  return s.heads / s.kv_heads * rows * (deterministic ? 2 * rows : 4 * s.head_dim);
}

// The library is told that operands lie on borders of 16 bytes; the lse of a later part lies wherever earlier ones end.
bool is_aligned(const Sizes& s, bool deterministic) {
  const Part part = part_of(s, deterministic);
  const int64_t heads = part.sequences * part.kv_heads * (s.heads / s.kv_heads);
  return heads == s.sequences * s.heads || heads * s.seq_len % 4 == 0;
}

}  // namespace

Part part_of(const Sizes& s, bool deterministic) {
  const int64_t kv_heads = kPartBytes / bytes_of_kv_head(s, deterministic);
  if (kv_heads < s.kv_heads) return {1, largest_divisor(s.kv_heads, kv_heads)};
  return {largest_divisor(s.sequences, kv_heads / s.kv_heads), s.kv_heads};
}

const char* reason_against(const Sizes& s, bool deterministic) {
  const auto is_width = [](int64_t width) { return width % 8 == 0 && width <= kMaxWidth; };
  if (s.sequences == 0 || s.seq_len <= 1) return "a single token per sequence is no attention to it";
  if (!is_width(s.head_dim) || !is_width(s.value_dim)) return "a width that is no multiple of 8 up to 256";
  if (bytes_of_kv_head(s, deterministic) > kMaxKvHeadBytes) return "the sequence is too long";
  if (!is_aligned(s, deterministic)) return "heads and length put parts on no border of 16 bytes";
  return nullptr;
}

bool tensor_cores_take(int64_t head_dim, int64_t value_dim) {
  return head_dim % 8 == 0 && value_dim % 8 == 0 && head_dim <= 192 && value_dim <= 128;
}

// Those bytes, and for every query head the gradients of keys and values and a few statistics. cuDNN 9.19 takes less;
// the spare is for what it rounds up.
int64_t scratch_bound(const Sizes& s, bool deterministic) {
  constexpr int64_t kSpare = int64_t{1} << 20;
  const Part part = part_of(s, deterministic);
  const int64_t kv_heads = part.sequences * part.kv_heads, rows = round_up(s.seq_len, kScoreRows),
                row_bytes = (s.head_dim + s.value_dim + 8) * 2;
  return kv_heads * (bytes_of_kv_head(s, deterministic) + s.heads / s.kv_heads * rows * row_bytes) + kSpare;
}

int64_t scratch_bytes(const Sizes& s) {
  int64_t bytes = 0;
  for (const bool deterministic : {true, false})
    if (reason_against(s, deterministic) == nullptr)
      bytes = std::max(bytes, round_up(scratch_bound(s, deterministic) + kBorder, 64));
  return bytes;
}

}  // namespace mw::library_attention
