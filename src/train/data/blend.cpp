#include "train/data/blend.h"

#include <cmath>
#include <cstdlib>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

constexpr int64_t kMostSamples = int64_t{1} << 50;  // doubles still tell halves apart

double due(const BlendPart& part, int64_t index) { return (static_cast<double>(index) + 0.5) / part.weight; }

// The part whose next sample is due first.
size_t next_part(std::span<const BlendPart> parts, const std::vector<int64_t>& counts) {
  size_t first = 0;
  for (size_t k = 1; k < parts.size(); ++k)
    if (due(parts[k], counts[k]) < due(parts[first], counts[first])) first = k;
  return first;
}

// How many samples of a part are due up to `time`: the same comparison as in next_part, whatever is rounded.
int64_t due_until(const BlendPart& part, double time) {
  auto count = static_cast<int64_t>(std::max(0.0, std::floor(part.weight * time + 0.5)));
  while (count > 0 && due(part, count - 1) > time) --count;
  while (due(part, count) <= time) ++count;
  return count;
}

}  // namespace

std::vector<BlendPart> parse_blend(const std::vector<std::string>& items) {
  std::vector<BlendPart> parts;
  double sum = 0;
  for (const std::string& item : items) {
    char* end = nullptr;
    const double weight = std::strtod(item.c_str(), &end);
    const std::string rest = end;
    const size_t path = rest.find_first_not_of(' ');
    if (end == item.c_str() || path == 0 || path == std::string::npos || !(weight >= 1e-9 && weight <= 1e9))
      fail(Exit::config,
           fmt::format("data.blend: expected \"WEIGHT PATH\" with a weight from 1e-9 to 1e9, got \"{}\"",
                       printable(item)),
           "write, for example, data.blend = [\"0.7 data/web\", \"0.3 data/code\"]; weights need not add up to 1");
    parts.push_back({weight, rest.substr(path)});
    sum += weight;
  }
  for (BlendPart& part : parts) part.weight /= sum;
  return parts;
}

std::vector<int64_t> blend_counts(std::span<const BlendPart> parts, int64_t count) {
  if (parts.size() == 1) return {count};
  MW_CHECK(count <= kMostSamples, "{} samples of a blend", count);
  // At this time at most `count` samples are due in all: each part is within 1/2 of its share of the time.
  const double time = static_cast<double>(count) - 0.5 * static_cast<double>(parts.size()) - 1;
  std::vector<int64_t> counts(parts.size(), 0);
  if (time > 0)
    for (size_t k = 0; k < parts.size(); ++k) counts[k] = due_until(parts[k], time);
  int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  MW_CHECK(total <= count, "{} of {} samples", total, count);
  for (; total < count; ++total) ++counts[next_part(parts, counts)];
  return counts;
}

BlendPlace blend_place(std::span<const BlendPart> parts, int64_t number) {
  if (parts.size() == 1) return {0, number};
  const std::vector<int64_t> counts = blend_counts(parts, number);
  const size_t part = next_part(parts, counts);
  return {part, counts[part]};
}

}  // namespace mw
