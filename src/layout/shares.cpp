#include "layout/shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "layout/placement.h"
#include "layout/row_split.h"

namespace mw {
namespace {

constexpr const char *kKey = "mesh.shares", *kWidthKey = "mesh.width_shares", *kExpertKey = "mesh.expert_shares";
constexpr int64_t kWidthUnit = 64;   // packed weights are then plain copies
constexpr int64_t kTileWidth = 128;  // of products on GPUs; part of a tile takes as long as a tile
constexpr int64_t kLeastTiles = 8;   // of an equal share, so that unequal shares can come close to any ratio

std::string nearest_micro_batches(const TrainSpec& train, int64_t dp) {
  std::string below, above;
  for (int64_t m = train.micro_batches; m >= 1 && below.empty(); --m)
    if (train.global_batch % (m * dp) == 0) below = fmt::format("{}", m);
  for (int64_t m = train.micro_batches + 1; m <= train.global_batch && above.empty(); ++m)
    if (train.global_batch % (m * dp) == 0) above = fmt::format("{}", m);
  if (below.empty() && above.empty()) {
    const int64_t unit = train.micro_batches * dp;
    return fmt::format(
        "set train.global_batch to a multiple of train.micro_batches x the {} data-parallel ranks, such as {}", dp,
        (train.global_batch + unit - 1) / unit * unit);
  }
  return fmt::format("set train.micro_batches to {}{}{}", below, below.empty() || above.empty() ? "" : " or ", above);
}

// Of `count` ranks, if `text` names none.
std::vector<int64_t> weights_of(const std::string& text, const std::string& key, int64_t count) {
  if (!text.empty() && text != kMeasuredShares) return parse_shares(text, key);
  return std::vector<int64_t>(static_cast<size_t>(count), 1);
}

std::vector<int64_t> uneven_samples(const RunSpec& run, int64_t micro_batches, int64_t dp) {
  const std::vector<int64_t> weights = weights_of(run.mesh.shares, kKey, dp);
  const int64_t global = run.train.global_batch;
  if (std::ssize(weights) != dp)
    fail(Exit::config,
         fmt::format("mesh.shares = \"{}\" has {} shares, but the layout has {} data-parallel ranks", run.mesh.shares,
                     weights.size(), dp),
         "list one share per data-parallel rank, or leave mesh.shares empty");
  if (global % micro_batches != 0 || global / micro_batches < dp)
    fail(Exit::config,
         fmt::format(
             "train.global_batch = {} cannot be divided into {} micro-batches of at least one sample for each of "
             "{} data-parallel ranks",
             global, micro_batches, dp),
         fmt::format("set train.global_batch to a multiple of train.micro_batches, and to at least {}",
                     micro_batches * dp));
  return divide_by_shares(global / micro_batches, weights);
}

// Of EP ranks. Errors: config, where there are not ep.
std::vector<int64_t> weights_of_ep(const std::string& text, const std::string& key, int64_t ep) {
  const std::vector<int64_t> weights = weights_of(text, key, ep);
  if (std::ssize(weights) != ep)
    fail(Exit::config, fmt::format("{} = \"{}\" has {} shares, but mesh.ep = {}", key, text, weights.size(), ep),
         fmt::format("list one share per expert-parallel rank, or leave {} empty", key));
  return weights;
}

}  // namespace

std::vector<int64_t> parse_shares(const std::string& text, const std::string& key, const char* hint) {
  constexpr int64_t kMost = int64_t{1} << 24;
  std::vector<int64_t> weights;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t weight = 0;
    const auto [next, error] = std::from_chars(text.data() + begin, text.data() + end, weight);
    if (error != std::errc() || next != text.data() + end || weight < 1 || weight > kMost)
      fail(Exit::config,
           fmt::format("{} = \"{}\" is not a comma-separated list of integers from 1 to {}", key, printable(text),
                       kMost),
           hint);
    weights.push_back(weight);
    begin = end + 1;
  }
  return weights;
}

std::vector<int64_t> divide_by_shares(int64_t units, const std::vector<int64_t>& weights) {
  const auto count = std::ssize(weights);
  MW_CHECK(units >= count && count > 0, "{} units for {} shares", units, count);
  const int64_t sum = std::accumulate(weights.begin(), weights.end(), int64_t{0}), rest = units - count;
  std::vector<int64_t> parts, order(weights.size());
  std::vector<int64_t> remainders;
  for (const int64_t weight : weights) {
    // One unit is everyone's: the others bring each part as near to its exact share as that allows.
    const int64_t wanted = std::max<int64_t>(units * weight - sum, 0);
    parts.push_back(wanted / sum);
    remainders.push_back(wanted % sum);
  }
  int64_t left = rest - std::accumulate(parts.begin(), parts.end(), int64_t{0});
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return remainders[static_cast<size_t>(a)] > remainders[static_cast<size_t>(b)];
  });
  for (size_t i = 0; left > 0; i = (i + 1) % order.size(), --left) ++parts[static_cast<size_t>(order[i])];
  // Members below one unit took more than their share: the largest parts give it back.
  for (; left < 0; ++left) --*std::max_element(parts.begin(), parts.end());
  for (int64_t& part : parts) ++part;
  return parts;
}

// A unit goes to the part that would be done with it first. Were another division faster, it would give the slowest
// part here one unit less and some other part one more, which would be done later than the slowest part is.
std::vector<int64_t> divide_by_speed(int64_t units, std::span<const double> seconds, std::span<const int64_t> most) {
  MW_CHECK(units >= std::ssize(seconds) && seconds.size() == most.size(), "{} units for {} parts", units,
           seconds.size());
  std::vector<int64_t> parts(seconds.size(), 1);
  using Next = std::pair<double, size_t>;  // the time of a part with one unit more
  std::priority_queue<Next, std::vector<Next>, std::greater<>> order;
  const auto offer = [&](size_t i) {
    if (parts[i] < most[i]) order.emplace(seconds[i] * static_cast<double>(parts[i] + 1), i);
  };
  for (size_t i = 0; i < parts.size(); ++i) offer(i);
  for (int64_t left = units - std::ssize(parts); left > 0; --left) {
    MW_CHECK(!order.empty(), "no room for {} of {} units", left, units);
    const size_t first = order.top().second;
    order.pop();
    ++parts[first];
    offer(first);
  }
  return parts;
}

double time_of_slowest(std::span<const int64_t> parts, std::span<const double> seconds) {
  double longest = 0;
  for (size_t i = 0; i < parts.size(); ++i) longest = std::max(longest, seconds[i] * static_cast<double>(parts[i]));
  return longest;
}

std::vector<int64_t> samples_by_rank(const RunSpec& run, int64_t micro_batches, int64_t dp) {
  if (!run.mesh.shares.empty()) return uneven_samples(run, micro_batches, dp);
  const TrainSpec& train = run.train;
  if (train.global_batch % (micro_batches * dp) != 0)
    fail(Exit::config,
         fmt::format("train.global_batch = {} is not divisible by train.micro_batches = {} x {} data-parallel ranks",
                     train.global_batch, micro_batches, dp),
         nearest_micro_batches(train, dp));
  return std::vector<int64_t>(static_cast<size_t>(dp), train.global_batch / (micro_batches * dp));
}

bool can_share_samples(const RunSpec& run, int64_t micro_batches, int64_t dp) {
  const int64_t global = run.train.global_batch;
  if (run.mesh.shares.empty()) return global % (micro_batches * dp) == 0;
  return std::ssize(weights_of(run.mesh.shares, kKey, dp)) == dp && global % micro_batches == 0 &&
         global / micro_batches >= dp;
}

std::vector<int64_t> different_samples(const RunSpec& run, int64_t micro_batches, int64_t dp) {
  if (run.mesh.shares.empty()) return {most_samples(run, micro_batches, dp)};
  std::vector<int64_t> samples = samples_by_rank(run, micro_batches, dp);
  std::sort(samples.begin(), samples.end());
  samples.erase(std::unique(samples.begin(), samples.end()), samples.end());
  return samples;
}

int64_t most_samples(const RunSpec& run, int64_t micro_batches, int64_t dp) {
  if (run.mesh.shares.empty() && can_share_samples(run, micro_batches, dp))  // for searches, which ask for many sizes
    return run.train.global_batch / (micro_batches * dp);
  const std::vector<int64_t> samples = samples_by_rank(run, micro_batches, dp);
  return *std::max_element(samples.begin(), samples.end());
}

int64_t width_unit(int64_t width, int64_t ep) {
  if (width % (kTileWidth * ep) == 0 && width >= kLeastTiles * kTileWidth * ep) return kTileWidth;
  return width % kWidthUnit == 0 && width >= kWidthUnit * ep ? kWidthUnit : 1;
}

std::vector<int64_t> expert_widths(const RunSpec& run, int64_t width, int64_t ep) {
  const std::vector<int64_t> weights = weights_of_ep(run.mesh.width_shares, kWidthKey, ep);
  if (width < ep)
    fail(Exit::config,
         fmt::format("moe.transport = \"gather_tokens\": mesh.ep = {} ranks cannot share experts of width {}", ep,
                     width),
         fmt::format("set mesh.ep to at most {}, or another moe.transport", width));
  const int64_t unit = width_unit(width, ep);
  std::vector<int64_t> widths = divide_by_shares(width / unit, weights);
  for (int64_t& own : widths) own *= unit;
  return widths;
}

bool can_share_width(const RunSpec& run, int64_t width, int64_t ep) {
  return width >= ep && std::ssize(weights_of(run.mesh.width_shares, kWidthKey, ep)) == ep;
}

std::vector<int64_t> experts_by_rank(const RunSpec& run, int64_t experts, int64_t ep) {
  const std::vector<int64_t> weights = weights_of_ep(run.mesh.expert_shares, kExpertKey, ep);
  check_expert_ranks(experts, ep);
  return divide_by_shares(experts, weights);
}

bool can_share_experts(const RunSpec& run, int64_t experts, int64_t ep) {
  return experts >= ep && std::ssize(weights_of(run.mesh.expert_shares, kExpertKey, ep)) == ep;
}

std::vector<int64_t> expert_speeds(const RunSpec& run, int64_t ep) {
  std::vector<int64_t> speeds = weights_of_ep(run.mesh.expert_shares, kExpertKey, ep);
  const int64_t most = *std::max_element(speeds.begin(), speeds.end());
  if (most > kMostSpeed)
    for (int64_t& speed : speeds) speed = std::max<int64_t>(1, speed * kMostSpeed / most);
  return speeds;
}

LocalBatch make_local_batch(const RunSpec& run, int64_t dp, int64_t rank) {
  const std::vector<int64_t> samples = samples_by_rank(run, run.train.micro_batches, dp);
  const auto own = samples.begin() + rank;
  return {*own, run.train.seq_len, std::accumulate(samples.begin(), own, int64_t{0}),
          *std::max_element(samples.begin(), samples.end()),
          std::accumulate(samples.begin(), samples.end(), int64_t{0})};
}

}  // namespace mw
