// Text from a model: one token after another, each from a full forward pass over the context (there is no key/value
// cache).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/engine.h"

namespace mw {

// "" or why this run cannot continue a prompt in bytes.
std::string why_no_sample(const ModelSpec& model, const RunSpec& run);

// Continues `prompt` by up to spec.tokens tokens; the context is the last train.seq_len of them. Tokens are drawn on
// rank 0 and shared; `emit` is called on every rank and ends the generation by returning false (alike on all ranks).
// Collective over the world.
std::vector<int32_t> generate(Engine& engine, const std::vector<int32_t>& prompt, const SampleSpec& spec,
                              const std::function<bool(int32_t)>& emit = {});

}  // namespace mw
