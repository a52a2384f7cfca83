#include "train/loop/token_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace mw {

int32_t choose_token(std::span<const float> logits, const SampleSpec& spec, float uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (!std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); }))
    fail(Exit::numeric, "the logits of the next token are not finite", kNotFiniteHint);
  const size_t kept = spec.temperature == 0 ? 1
                      : spec.top_k == 0     ? order.size()
                                            : std::min(order.size(), static_cast<size_t>(spec.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), better);
  if (kept == 1) return order[0];
  std::vector<double> cumulative;
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum +=
        std::exp((static_cast<double>(logits[static_cast<size_t>(order[i])]) - logits[static_cast<size_t>(order[0])]) /
                 spec.temperature);
    cumulative.push_back(sum);
  }
  const auto nucleus = std::lower_bound(cumulative.begin(), cumulative.end() - 1, spec.top_p * sum);
  const auto chosen = std::upper_bound(cumulative.begin(), nucleus, static_cast<double>(uniform) * *nucleus);
  return order[static_cast<size_t>(chosen - cumulative.begin())];
}

}  // namespace mw
