// Builds layers: looks up their tensors in the byte table by name.
#pragma once

#include <memory>
#include <string>

#include "comm/world.h"
#include "layout/plan.h"
#include "model/attention.h"
#include "model/param_store.h"
#include "model/token_shards.h"
#include "moe/moe_layer.h"
#include "moe/weight_cache.h"

namespace mw {

// The weights named "<at>w_up" and "<at>w_down".
FeedForwardWeights feed_forward_weights(ParamStore& params, const std::string& at);

// Layer `index` of the plan for one micro-batch in flight, with its rows of the byte table (layout/recompute.h) and the
// shared rows work.*. weight_cache: the rank's, null if it gathers no weights. All arguments must outlive the result.
std::unique_ptr<Attention> make_attention(const Plan& plan, int64_t index, int64_t slot, ParamStore& params,
                                          TensorStore& store, const TokenShards& shards);
std::unique_ptr<MoeLayer> make_moe_layer(const Plan& plan, int64_t index, int64_t slot, ParamStore& params,
                                         TensorStore& store, MeshComms& comms, WeightCache* weight_cache);

}  // namespace mw
