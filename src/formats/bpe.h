// Byte pair encoding of one word: neighbouring tokens are merged in the order that training found the merges.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace mw {

// Filled once, then immutable; for use by many threads at once.
class BpeMerges {
 public:
  struct Merge {
    uint32_t rank = 0;  // lower ones first
    int32_t result = -1;
  };

  explicit BpeMerges(size_t count);  // room for so many pairs
  // A pair that is there already gets the new merge. Ids are not negative; a rank is below 2^32 - 1.
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

// Appends the tokens of `word` to `ids`: the bytes' own tokens, of which the pair of lowest rank, the leftmost first,
// is merged until none is left. Takes O(n log n). `word` is shorter than 2^31 bytes.
void encode_word(const BpeMerges& merges, const std::array<int32_t, 256>& byte_ids, std::string_view word,
                 std::vector<int32_t>& ids);

}  // namespace mw
