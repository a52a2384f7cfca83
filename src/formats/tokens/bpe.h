// Byte pair encoding (BPE) of one word: repeatedly merges the pair of neighbouring tokens with the lowest merge rank.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace mw {

// The merge table. Filled once, then immutable and thread-safe.
class BpeMerges {
 public:
  struct Merge {
    uint32_t rank = 0;  // lower ranks are merged first
    int32_t result = -1;
  };

  explicit BpeMerges(size_t count);  // count: expected number of pairs
  // Sets a merge; replaces an earlier one of the same pair. Ids must not be negative; ranks must be below 2^32 - 1.
  void set(int32_t left, int32_t right, Merge merge);
  const Merge* find(int32_t left, int32_t right) const;  // null: the pair does not merge

 private:
  struct Slot {
    uint64_t pair = ~uint64_t{0};
    Merge merge;
  };
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;  // a power of two of them, open addressing
  size_t mask_;
};

// Appends the tokens of `word` to `ids`: starts from the tokens of its bytes and merges the pair of lowest rank (ties:
// the leftmost) until no pair merges. O(n log n). `word` must be shorter than 2^31 bytes.
void encode_word(const BpeMerges& merges, const std::array<int32_t, 256>& byte_ids, std::string_view word,
                 std::vector<int32_t>& ids);

}  // namespace mw
