// An order-2 byte-count model: a baseline of simple counts on the same data, printed next to the trained model's loss.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/tokens/token_file.h"

namespace mw {

// P(next | previous two bytes), backing off to order 1 and 0 (each order is mixed with the lower one by a fixed
// weight). Tokens must be bytes.
class ByteCountModel {
 public:
  // Counts a whole source of bytes.
  explicit ByteCountModel(const TokenSource& source);
  // Sum of -ln P(labels[t] | ids[t-1], ids[t]) over the labels of one window that are not
  // ignored; the first position only has one byte of context.
  double window_loss(std::span<const int32_t> ids, std::span<const int32_t> labels) const;

 private:
  double probability(int64_t context2, int32_t context1, int32_t next) const;
  std::vector<uint64_t> order2_, order1_, order0_;  // counts by context and next byte
  std::vector<uint64_t> total2_, total1_;
  uint64_t total0_ = 0;
};

}  // namespace mw
