#include "train/loop/byte_model.h"

#include <algorithm>
#include <cmath>

#include "ops/cross_entropy.h"

namespace mw {
namespace {
constexpr size_t kBytes = 256;
constexpr double kBackoff = 4.0;  // how many counts the lower order is worth
}  // namespace

ByteCountModel::ByteCountModel(const TokenSource& source)
    : order2_(kBytes * kBytes * kBytes),
      order1_(kBytes * kBytes),
      order0_(kBytes),
      total2_(kBytes * kBytes),
      total1_(kBytes) {
  std::vector<int32_t> piece(1 << 16);
  size_t previous = 0, before = 0;
  for (int64_t first = 0; first < source.size(); first += static_cast<int64_t>(piece.size())) {
    const auto count =
        static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(piece.size()), source.size() - first));
    source.read(first, std::span(piece).first(count));
    for (size_t i = 0; i < count; ++i) {
      const auto next = static_cast<size_t>(piece[i]) % kBytes, context = before * kBytes + previous;
      ++order2_[context * kBytes + next];
      ++total2_[context];
      ++order1_[previous * kBytes + next];
      ++total1_[previous];
      ++order0_[next];
      ++total0_;
      before = previous;
      previous = next;
    }
  }
}

double ByteCountModel::probability(int64_t context2, int32_t context1, int32_t next) const {
  const auto n = static_cast<size_t>(next) % kBytes, c1 = static_cast<size_t>(context1) % kBytes;
  const double p0 = (order0_[n] + 1.0) / (static_cast<double>(total0_) + kBytes);
  const double p1 = (order1_[c1 * kBytes + n] + kBackoff * p0) / (total1_[c1] + kBackoff);
  if (context2 < 0) return p1;
  const size_t c2 = static_cast<size_t>(context2) % kBytes * kBytes + c1;
  return (order2_[c2 * kBytes + n] + kBackoff * p1) / (total2_[c2] + kBackoff);
}

double ByteCountModel::window_loss(std::span<const int32_t> ids, std::span<const int32_t> labels) const {
  double loss = 0;
  for (size_t t = 0; t < ids.size(); ++t)
    if (labels[t] != kIgnoreLabel) loss -= std::log(probability(t == 0 ? -1 : ids[t - 1], ids[t], labels[t]));
  return loss;
}

}  // namespace mw
