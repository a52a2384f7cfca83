// MXFP4 weights as gpt-oss stores them: X_blocks, U8 [.., K / 32, 16], and X_scales, U8 [.., K / 32]. 32 neighbours of
// a row share a scale s: element i is value(nibble i) * 2^(s - 127). Low nibbles come first; the values are 0, 0.5,
// 1, 1.5, 2, 3, 4, 6, and with the highest bit their negatives.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/weights/safetensors.h"

namespace mw {

std::string mxfp4_blocks_name(const std::string& tensor);
std::string mxfp4_scales_name(const std::string& tensor);

// Checks that the folder has both tensors for one of this shape. Errors: data.
void check_mxfp4(const SafetensorsSet& files, const std::string& tensor, const std::vector<int64_t>& shape);

// Elements [first, first + out.size()) of a tensor that passed check_mxfp4; exact. Errors: data.
void read_mxfp4(const SafetensorsSet& files, const std::string& tensor, int64_t first, std::span<float> out);

}  // namespace mw
