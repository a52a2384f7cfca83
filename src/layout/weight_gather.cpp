#include "layout/weight_gather.h"

#include <algorithm>
#include <numeric>

#include "base/dtype.h"
#include "base/product_bytes.h"
#include "layout/byte_table.h"

namespace mw {
namespace {

constexpr int64_t kAlignment = 64;  // bytes

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

ExpertForms expert_forms(const LayerSpec& local, int64_t width, DType dtype, bool recomputes_hidden,
                         const Platform& platform) {
  ExpertForms forms;
  forms.up_n = halves_of(local.activation) * local.moe.width;
  forms.up_k = forms.down_n = width;
  forms.down_k = local.moe.width;
  forms.packed = dtype == DType::bf16;
  forms.one_form = !forms.packed || platform.one_packed_form;
  forms.up_twice = recomputes_hidden && !forms.one_form;
  const auto bytes = [&](int64_t n, int64_t k) {
    return forms.packed ? packed_weight_bytes(n, k, platform.native_bf16) : n * k * size_of(DType::f32);
  };
  forms.up_bytes = bytes(forms.up_n, forms.up_k);
  forms.down_bytes = bytes(forms.down_n, forms.down_k);
  return forms;
}

int64_t WeightGather::experts_in(int64_t piece) const {
  const std::vector<int64_t>& of_ranks = counts[static_cast<size_t>(piece)];
  return std::accumulate(of_ranks.begin(), of_ranks.end(), int64_t{0});
}

int64_t WeightGather::largest() const {
  int64_t most = 0;
  for (int64_t piece = 0; piece < pieces(); ++piece) most = std::max(most, experts_in(piece));
  return most;
}

std::vector<int32_t> WeightGather::position_of_expert() const {
  std::vector<int32_t> position(experts.size());
  for (size_t i = 0; i < experts.size(); ++i) position[static_cast<size_t>(experts[i])] = static_cast<int32_t>(i);
  return position;
}

int64_t WeightGather::slot_bytes() const {
  return round_up(largest() * std::max(forms.forward_bytes(), forms.backward_bytes()), kAlignment);
}

int64_t WeightGather::down_gradients_begin() const {
  return round_up(largest() * forms.up_n * forms.up_k, kAlignment / size_of(DType::f32));
}

int64_t WeightGather::gradient_elements() const {
  return down_gradients_begin() + largest() * forms.down_n * forms.down_k;
}

WeightGather make_weight_gather(const ExpertPlacement& placement, int64_t pieces, const ExpertForms& forms) {
  std::vector<std::vector<int>> held;
  int64_t most = 0;
  for (int rank = 0; rank < placement.ep; ++rank) {
    held.push_back(placement.experts_of(rank));
    most = std::max<int64_t>(most, std::ssize(held.back()));
  }
  WeightGather gather;
  gather.forms = forms;
  gather.counts.resize(static_cast<size_t>(std::min(pieces, most)));
  for (int64_t p = 0; p < gather.pieces(); ++p)
    for (const std::vector<int>& own : held) {
      const int64_t n = std::ssize(own), begin = n * p / gather.pieces(), end = n * (p + 1) / gather.pieces();
      gather.experts.insert(gather.experts.end(), own.begin() + begin, own.begin() + end);
      gather.counts[static_cast<size_t>(p)].push_back(end - begin);
    }
  return gather;
}

}  // namespace mw
