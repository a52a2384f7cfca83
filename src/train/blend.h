// Weighted blends of data sets: which of them gives sample n. A pure function, so that a run resumes and any layout
// reads the same.
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

// Reads "WEIGHT PATH" of each item and divides the weights by their sum. Errors: config naming the item.
std::vector<BlendPart> parse_blend(const std::vector<std::string>& items);

// Samples that each part has among the first `count`: for two parts within 1 of its share, for k parts within k / 2.
std::vector<int64_t> blend_counts(std::span<const BlendPart> parts, int64_t count);

struct BlendPlace {
  size_t part = 0;
  int64_t number = 0;  // how many samples before this one came from the part
};
// Sample `number` of the blend. The i-th sample of a part is due at (i + 1/2) / share; those due earlier come first,
// of equal ones the lower part. Takes O(k^2) for k parts, at any place.
BlendPlace blend_place(std::span<const BlendPart> parts, int64_t number);

}  // namespace mw
