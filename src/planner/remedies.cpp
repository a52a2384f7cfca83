#include "planner/remedies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace mw {
namespace {

constexpr int kMostHalvings = 6, kMostDoublings = 6;
constexpr int64_t kShortest = 128;  // tokens of a sequence that is worth training on

// What `train` refuses is no remedy.
bool is_enough(const Request& request) {
  try {
    return fits_somehow(request);
  } catch (const Error&) {
    return false;
  }
}

void try_change(Remedies& remedies, const std::string& change, const Request& changed) {
  (is_enough(changed) ? remedies.enough : remedies.tried).push_back(change);
}

void try_memory(Remedies& remedies, const Request& request) {
  Request full = request;
  full.run.plan.memory_margin = 0;
  if (request.run.plan.memory_margin > 0 && is_enough(full)) remedies.enough.push_back("plan.memory_margin=0");
  const auto try_key = [&](const char* key, auto RunSpec::*value, auto to, bool exists) {
    if (!exists || request.run.*value == to) return;
    Request changed = request;
    changed.run.*value = to;
    try_change(remedies, fmt::format("memory.{}={}", key, word_of(to)), changed);
  };
  try_key("moments", &RunSpec::moments, DType::bf16, true);
  const bool is_bf16 = request.run.train.dtype == DType::bf16;
  try_key("expert_gradients", &RunSpec::expert_gradients, DType::bf16, is_bf16);
  try_key("logits", &RunSpec::logits, DType::bf16, is_bf16);
  try_key("offload", &RunSpec::offload, Offload::optimizer, request.profile.host_bytes_per_s.has_value());
}

void try_lengths(Remedies& remedies, const Request& request) {
  Request shorter = request;
  std::string last;
  for (int i = 0; i < kMostHalvings && shorter.run.train.seq_len / 2 >= kShortest; ++i) {
    shorter.run.train.seq_len /= 2;
    last = fmt::format("train.seq_len={}", shorter.run.train.seq_len);
    if (is_enough(shorter)) return remedies.enough.push_back(last);
  }
  if (!last.empty()) remedies.tried.push_back(last);
}

void try_ranks(Remedies& remedies, const Request& request) {
  Request more = request;
  for (int i = 0; i < kMostDoublings && 2 * int64_t{more.ranks} <= request.profile.levels.back().ranks; ++i) {
    more.ranks *= 2;
    if (is_enough(more)) return remedies.enough.push_back(fmt::format("--ranks {}", more.ranks));
  }
  if (more.ranks > request.ranks) remedies.tried.push_back(fmt::format("--ranks {}", more.ranks));
}

}  // namespace

Remedies find_remedies(const Request& request) {
  Remedies remedies;
  try_memory(remedies, request);
  try_lengths(remedies, request);
  try_ranks(remedies, request);
  return remedies;
}

std::string describe(const Remedies& remedies, const Request& request) {
  const int64_t reach = request.profile.levels.back().ranks;
  const std::string bound =
      reach < 2 * int64_t{request.ranks}
          ? fmt::format("; more ranks were not tried, because the profile describes links among {} only", reach)
          : "";
  if (!remedies.enough.empty()) {
    const char* how = remedies.enough.size() > 1 ? "any one of these makes it fit: " : "it fits with ";
    return how + fmt::format("{}", fmt::join(remedies.enough, ", ")) + bound;
  }
  if (remedies.tried.empty()) return "a smaller model, or GPUs with more memory" + bound;
  return fmt::format("a smaller model, or more of these: none of {} is enough alone", fmt::join(remedies.tried, ", ")) +
         bound;
}

}  // namespace mw
