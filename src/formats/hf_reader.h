// Weights of a Hugging Face model folder as numbers, with the scales of fp8 weights multiplied out.
#pragma once

#include <span>
#include <string>

#include "formats/hf_names.h"
#include "formats/safetensors.h"

namespace mw {

// The name of the scales of a tensor that is stored in fp8: DeepSeek's "X.weight_scale_inv", f32, one number for each
// block of 128 x 128.
std::string scale_name(const std::string& tensor);

// Checks that the folder holds `tensor` in its shape, and with F8_E4M3 the scales that belong to it. Errors: data.
void check_hf_tensor(const SafetensorsSet& files, const HfTensor& tensor);

// Elements [first, first + out.size()) of a tensor that check_hf_tensor has passed. Errors: data.
void read_hf_tensor(const SafetensorsSet& files, const HfTensor& tensor, int64_t first, std::span<float> out);

}  // namespace mw
