// Weighted blends of data sets: which data set sample n comes from. A pure function, so that resumed runs and all
// layouts read the same data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mw {

struct BlendPart {
  double weight = 1;  // share of the samples; the shares of a blend add up to 1
  std::string path;
};

// Parses items of the form "WEIGHT PATH" and normalizes the weights. Errors: config naming the item.
std::vector<BlendPart> parse_blend(const std::vector<std::string>& items);

// The number of samples from each part among the first `count`: for two parts within 1 of its share, for k parts within
// k / 2.
std::vector<int64_t> blend_counts(std::span<const BlendPart> parts, int64_t count);

struct BlendPlace {
  size_t part = 0;
  int64_t number = 0;  // index of the sample within the part
};
// Locates sample `number` of the blend. The i-th sample of a part is due at (i + 1/2) / share; samples are taken in the
// order of their due times, ties from the lower part. O(k^2) for k parts, at any position.
BlendPlace blend_place(std::span<const BlendPart> parts, int64_t number);

}  // namespace mw
