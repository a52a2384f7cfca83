#include "formats/tokens/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"

namespace mw {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

struct Symbol {
  int32_t id = -1;  // -1: merged into the one before
  int32_t previous = -1, next = -1;
};

struct Candidate {
  BpeMerges::Merge merge;
  int32_t position = 0;  // of the left symbol
  uint64_t pair = 0;
};

// For a heap whose top is the merge to do next.
bool comes_later(const Candidate& a, const Candidate& b) {
  return a.merge.rank != b.merge.rank ? a.merge.rank > b.merge.rank : a.position > b.position;
}

}  // namespace

BpeMerges::BpeMerges(size_t count) : slots_(std::bit_ceil(2 * count + 2)), mask_(slots_.size() - 1) {}

size_t BpeMerges::slot_of(uint64_t pair) const {
  size_t at = (pair * 0x9e3779b97f4a7c15ull) >> 20 & mask_;
  while (slots_[at].pair != pair && slots_[at].pair != ~uint64_t{0}) at = (at + 1) & mask_;
  return at;
}

void BpeMerges::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t pair = pair_of(left, right);
  slots_[slot_of(pair)] = {pair, merge};
}

const BpeMerges::Merge* BpeMerges::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  const Slot& slot = slots_[slot_of(pair)];
  return slot.pair == pair ? &slot.merge : nullptr;
}

void encode_word(const BpeMerges& merges, const std::array<int32_t, 256>& byte_ids, std::string_view word,
                 std::vector<int32_t>& ids) {
  MW_CHECK(word.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()), "a word of {} bytes", word.size());
  const auto count = static_cast<int32_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  for (int32_t i = 0; i < count; ++i)
    symbols[static_cast<size_t>(i)] = {byte_ids[static_cast<unsigned char>(word[static_cast<size_t>(i)])], i - 1,
                                       i + 1 < count ? i + 1 : -1};
  std::vector<Candidate> heap;
  const auto propose = [&](int32_t position) {
    if (position < 0) return;
    const Symbol& left = symbols[static_cast<size_t>(position)];
    if (left.next < 0) return;
    const int32_t right = symbols[static_cast<size_t>(left.next)].id;
    const BpeMerges::Merge* merge = merges.find(left.id, right);
    if (merge == nullptr) return;
    heap.push_back({*merge, position, pair_of(left.id, right)});
    std::push_heap(heap.begin(), heap.end(), comes_later);
  };
  for (int32_t i = 0; i < count; ++i) propose(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), comes_later);
    const Candidate candidate = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(candidate.position)];
    if (left.id < 0 || left.next < 0) continue;  // a merge has changed this place since
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (pair_of(left.id, right.id) != candidate.pair) continue;
    left.id = candidate.merge.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = candidate.position;
    propose(left.previous);
    propose(candidate.position);
  }
  for (int32_t i = 0; i >= 0 && i < count; i = symbols[static_cast<size_t>(i)].next)
    ids.push_back(symbols[static_cast<size_t>(i)].id);
}

}  // namespace mw
