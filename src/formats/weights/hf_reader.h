// Reads weights of a Hugging Face model folder as fp32; fp8 and MXFP4 weights are dequantized with their scales.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "formats/weights/hf_names.h"
#include "formats/weights/safetensors.h"

namespace mw {

// The name of the scales of a tensor stored in fp8: DeepSeek's "X.weight_scale_inv", f32, one number per 128 x 128
// block.
std::string scale_name(const std::string& tensor);

// The names under which the folder stores a tensor that it has.
std::vector<std::string> stored_names(const SafetensorsSet& files, const HfTensor& tensor);

// Checks that the folder contains `tensor` with its shape, and for F8_E4M3 also its scales. Errors: data.
void check_hf_tensor(const SafetensorsSet& files, const HfTensor& tensor);

// Reads elements [first, first + out.size()) of a tensor that passed check_hf_tensor, counted as the parameter has
// them. Errors: data.
void read_hf_tensor(const SafetensorsSet& files, const HfTensor& tensor, int64_t first, std::span<float> out);

}  // namespace mw
