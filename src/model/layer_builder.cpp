#include "model/layer_builder.h"

#include <algorithm>
#include <utility>

#include "layout/recompute.h"
#include "layout/shares.h"
#include "model/attention_block.h"
#include "model/latent_attention_block.h"
#include "model/make_transport.h"
#include "model/platform.h"

namespace mw {
namespace {

// Where ranks share key/value heads, a rank holds the weights of all and computes with those of its own.
AttentionWeights attention_weights(ParamStore& params, const std::string& at, const AttentionSpec& spec,
                                   const HeadShard& shard, bool adds_output_bias) {
  AttentionWeights w;
  const auto bind = [&](const char* name, Weight& weight, TensorView& grad, int64_t head) {
    Parameter& p = params.find(at + name);
    weight = p.weights[static_cast<size_t>(head)];
    grad = p.grad.slice(head * weight.n, weight.n);
  };
  const int64_t kv_head = shard.shares_kv ? shard.kv_heads.begin : 0;
  bind("wq", w.wq, w.d_wq, 0);
  bind("wk", w.wk, w.d_wk, kv_head);
  bind("wv", w.wv, w.d_wv, kv_head);
  bind("wo", w.wo, w.d_wo, 0);
  const auto bind_vector = [&](const char* name, TensorView& vector, TensorView& grad, int64_t begin, int64_t width) {
    const Parameter& p = params.find(at + name);
    vector = p.master.slice(begin, width);
    grad = p.grad.slice(begin, width);
  };
  const int64_t h = spec.head_dim, q = spec.heads * h, kv = spec.kv_heads * h;
  if (spec.qkv_bias) {
    bind_vector("bq", w.bq, w.d_bq, 0, q);
    bind_vector("bk", w.bk, w.d_bk, kv_head * h, kv);
    bind_vector("bv", w.bv, w.d_bv, kv_head * h, kv);
  }
  if (spec.output_bias && adds_output_bias) bind_vector("bo", w.bo, w.d_bo, 0, w.wo.n);
  if (spec.sinks) bind_vector("sinks", w.sinks, w.d_sinks, 0, spec.heads);
  if (spec.qk_norm == QkNorm::none) return w;
  const bool per_head = spec.qk_norm == QkNorm::per_head;
  bind_vector("q_norm", w.q_gain, w.d_q_gain, 0, per_head ? h : q);
  bind_vector("k_norm", w.k_gain, w.d_k_gain, per_head ? 0 : kv_head * h, per_head ? h : kv);
  return w;
}

// Under "ted" the outputs of all TP ranks are summed: one of them adds the biases.
ExpertBiases expert_biases(const Plan& plan, ParamStore& params, const std::string& at,
                           const ExpertPlacement& placement, const WeightGather& gather) {
  const Parameter& up = params.find(at + "b_up");
  const Parameter& down = params.find(at + "b_down");
  const std::vector<int> experts = gather.pieces() > 0 ? gather.experts : placement.copies_of(plan.coords.ep);
  ExpertBiases b;
  b.up = up.master.reshape({up.master.dim(0), up.master.dim(1) * up.master.dim(2)});
  b.d_up = up.grad.reshape({up.grad.dim(0), up.grad.dim(1) * up.grad.dim(2)});
  b.expert_of_slot.assign(experts.begin(), experts.end());
  if (plan.mesh.ted && plan.coords.tp > 0) return b;
  b.down = down.master;
  b.d_down = down.grad;
  return b;
}

ResidentExperts resident_experts(const Parameter& up, const Parameter& down) {
  ResidentExperts e;
  e.up = up.weights;
  e.down = down.weights;
  e.d_up = take_front(up.grad, {up.grad.dim(0), up.grad.dim(1) * up.grad.dim(2), up.grad.dim(3)});
  e.d_down = down.grad;
  return e;
}

// The replica slots of a layer.
ResidentExperts replica_experts(const ParamStore& params, int64_t layer) {
  std::vector<const Parameter*> found;  // up, down
  for (const Parameter& p : params.replicas())
    if (p.row.layer == layer) found.push_back(&p);
  return found.empty() ? ResidentExperts{} : resident_experts(*found.front(), *found.back());
}

MoeScratch moe_scratch(const Plan& plan, TensorStore& store) {
  MoeScratch s;
  s.experts.a = store.rows("work.expert_a");
  s.experts.y = store.rows("work.expert_y");
  s.experts.row_weights = store.rows("work.row_weights");
  s.experts.d_row_weights = store.rows("work.d_row_weights");
  if (store.has("exchange.rows")) s.experts.exchange_rows = store.rows("exchange.rows");
  if (store.has("exchange.weights")) s.experts.exchange_weights = store.rows("exchange.weights");
  s.d_gate = store.fixed("work.d_gate");
  s.d_logits = store.fixed("work.d_logits");
  if (store.has("work.d_shared_gate")) s.d_shared_gate = store.fixed("work.d_shared_gate");
  if (store.has("work.dense_a")) s.shared_a = store.fixed("work.dense_a");
  s.branch = store.fixed(plan.mesh.ted ? "work.whole_branch" : "work.branch");
  return s;
}

HeadSums head_sums(const AttentionSpec& whole, int tp, TensorStore& store, const TokenShards& shards) {
  if (!norms_span_ranks(whole, tp)) return {};
  const int64_t h = whole.head_dim;
  return {&shards, whole.heads * h, std::max<int64_t>(whole.kv_heads, tp) * h, store.fixed("work.head_sums"),
          store.fixed("work.head_sums_of_ranks")};
}

// Generation computes in the first slot.
KeyValueCache key_value_cache(TensorStore& store, int64_t layer, int64_t slot) {
  if (slot > 0 || !store.has(cache_row(layer, "k"))) return {};
  return {store.fixed(cache_row(layer, "k")), store.fixed(cache_row(layer, "v"))};
}

std::unique_ptr<Attention> make_grouped_attention(const Plan& plan, int64_t index, int64_t slot, ParamStore& params,
                                                  TensorStore& store, const TokenShards& shards) {
  const LayerSpec& whole = plan.model.layers[static_cast<size_t>(index)];
  const LayerSpec spec = local_layer(plan, index);
  const LayerRows act(plan.run.recompute, index, slot);
  const std::string param = fmt::format("layers.{}.", index);
  AttentionSaved saved{store.fixed(act("q")),
                       store.fixed(act("k")),
                       store.fixed(act("v")),
                       store.fixed(act("o")),
                       store.fixed(act("lse")),
                       {},
                       {}};
  if (spec.attention.qk_norm != QkNorm::none) {
    saved.q_rstd = store.fixed(act("q_rstd"));
    saved.k_rstd = store.fixed(act("k_rstd"));
  }
  const bool keeps_prepared = keeps_norms(plan.run.recompute);
  const auto prepared = [&](const std::string& name) {
    return store.fixed(keeps_prepared ? act(name + "_in") : "work." + name);
  };
  AttentionScratch scratch{prepared("q"),
                           prepared("k"),
                           {},
                           store.fixed("work.d_q"),
                           store.fixed("work.d_k"),
                           store.fixed("work.d_v"),
                           store.fixed("work.d_o"),
                           store.fixed("work.rope_cos"),
                           store.fixed("work.rope_sin")};
  if (spec.attention.clip_qkv > 0) scratch.v = prepared("v");
  if (store.has("work.first_keys")) scratch.first_keys = store.fixed("work.first_keys");
  if (store.has("work.delta")) scratch.delta = store.fixed("work.delta");
  const HeadShard shard = head_shard(whole.attention, plan.mesh.tp, plan.coords.tp);
  return std::make_unique<AttentionBlock>(
      spec.attention, plan.model.norm_eps,
      attention_weights(params, param + "attn.", spec.attention, shard, plan.coords.tp == 0), saved, scratch,
      head_sums(whole.attention, plan.mesh.tp, store, shards), key_value_cache(store, index, slot),
      weight_part(plan.run).attention, keeps_prepared);
}

LatentWeights latent_weights(ParamStore& params, const std::string& at, bool compressed) {
  LatentWeights w;
  const auto bind = [&](const char* name, Weight& weight, TensorView& grad) {
    weight = params.find(at + name).weights[0];
    grad = params.find(at + name).grad;
  };
  const auto bind_gain = [&](const char* name, TensorView& gain, TensorView& grad) {
    gain = params.find(at + name).master;
    grad = params.find(at + name).grad;
  };
  if (compressed) {
    bind("wq_a", w.wq_a, w.d_wq_a);
    bind("wq_b", w.wq_b, w.d_wq_b);
    bind_gain("q_norm", w.q_gain, w.d_q_gain);
  } else {
    bind("wq", w.wq, w.d_wq);
  }
  bind("wkv_a", w.wkv_a, w.d_wkv_a);
  bind("wkv_b", w.wkv_b, w.d_wkv_b);
  bind("wo", w.wo, w.d_wo);
  bind_gain("kv_norm", w.kv_gain, w.d_kv_gain);
  return w;
}

LatentScratch latent_scratch(TensorStore& store, bool compressed) {
  LatentScratch s;
  s.k = store.fixed("work.k");
  s.v = store.fixed("work.v");
  s.d_q = store.fixed("work.d_q");
  s.d_k = store.fixed("work.d_k");
  s.d_v = store.fixed("work.d_v");
  s.d_o = store.fixed("work.d_o");
  s.latent_kv = store.fixed("work.latent_kv");
  s.d_latent = store.fixed("work.d_latent");
  s.kv_a = store.fixed("work.kv_a");
  s.kv_heads = store.fixed("work.kv_heads");
  s.rope_cos = store.fixed("work.rope_cos");
  s.rope_sin = store.fixed("work.rope_sin");
  if (!compressed) return s;
  s.q = store.fixed("work.q");
  s.latent_q = store.fixed("work.latent_q");
  return s;
}

std::unique_ptr<Attention> make_latent_attention(const Plan& plan, int64_t index, int64_t slot, ParamStore& params,
                                                 TensorStore& store) {
  const LayerSpec spec = local_layer(plan, index);
  const LayerRows act(plan.run.recompute, index, slot);
  const bool compressed = spec.attention.latent.q_rank > 0;
  LatentSaved saved;
  if (compressed) {
    saved.c_q = store.fixed(act("c_q"));
    saved.q_rstd = store.fixed(act("q_rstd"));
  } else {
    saved.q = store.fixed(act("q"));
  }
  saved.c_kv = store.fixed(act("c_kv"));
  saved.kv_rstd = store.fixed(act("kv_rstd"));
  saved.k_rope = store.fixed(act("k_rope"));
  saved.o = store.fixed(act("o"));
  saved.lse = store.fixed(act("lse"));
  return std::make_unique<LatentAttentionBlock>(
      spec.attention, latent_weights(params, fmt::format("layers.{}.attn.", index), compressed), saved,
      latent_scratch(store, compressed), key_value_cache(store, index, slot));
}

}  // namespace

FeedForwardWeights feed_forward_weights(ParamStore& params, const std::string& at) {
  FeedForwardWeights w;
  Parameter& up = params.find(at + "w_up");
  Parameter& down = params.find(at + "w_down");
  w.up = up.weights[0];
  w.down = down.weights[0];
  w.d_up = take_front(up.grad, {w.up.n, w.up.k});
  w.d_down = down.grad;
  return w;
}

std::unique_ptr<Attention> make_attention(const Plan& plan, int64_t index, int64_t slot, ParamStore& params,
                                          TensorStore& store, const TokenShards& shards) {
  const bool latent = plan.model.layers[static_cast<size_t>(index)].attention.is_latent();
  return latent ? make_latent_attention(plan, index, slot, params, store)
                : make_grouped_attention(plan, index, slot, params, store, shards);
}

std::unique_ptr<MoeLayer> make_moe_layer(const Plan& plan, int64_t index, int64_t slot, ParamStore& params,
                                         TensorStore& store, MeshComms& comms, WeightCache* weight_cache) {
  const LayerSpec spec = local_layer(plan, index);
  const Recompute mode = plan.run.recompute;
  const LayerRows act(mode, index, slot);
  const std::string param = fmt::format("layers.{}.", index);
  MoeWeights weights;
  weights.router = params.find(param + "moe.router").weights[0];
  weights.d_router = params.find(param + "moe.router").grad;
  if (spec.moe.selection_bias) weights.bias_E = params.find(param + "moe.bias").master;
  MoeSaved moe{store.fixed(act("logits")),    store.fixed(act("expert_choice")),   store.fixed(act("gate_weights")),
               store.fixed(act("token_ids")), store.fixed(act("expert_ids")),      store.fixed(act("row_weights")),
               store.fixed(act("row_of")),    store.fixed(act("rows_per_expert")), {},
               store.rows(act("h"))};
  if (spec.moe.shared_width > 0) {
    weights.shared = feed_forward_weights(params, param + "moe.shared.");
    moe.shared_h = store.fixed(act("shared.h"));
  }
  if (spec.moe.shared_gate) {
    const Parameter& gate = params.find(param + "moe.shared.gate");
    weights.shared_gate = gate.weights[0];
    weights.d_shared_gate = gate.grad;
    moe.shared_gate = store.fixed(act("shared.gate"));
  }
  const ExpertPlacement& placement = plan.placements->layers[static_cast<size_t>(index)];
  const WeightGather& gather = plan.gathers[static_cast<size_t>(index)];
  if (spec.moe.bias) {
    const Parameter& bias = params.find(param + "moe.router_bias");
    weights.router_bias = bias.master;
    weights.d_router_bias = bias.grad;
    weights.experts = expert_biases(plan, params, param + "moe.", placement, gather);
  }
  const MoeScratch moe_work = moe_scratch(plan, store);
  const TransportKind kind = plan.transports[static_cast<size_t>(index)];
  Islands islands = make_islands(group_of(plan.mesh, MeshAxis::ep, plan.rank), plan.nodes);
  const int64_t chunks = automatic_chunks(traits_of(kind), islands.size(), islands.count() == 1,
                                          comms.gpu_library.empty() ? 1 : kGpuRowChunks);
  std::unique_ptr<Transport> transport =
      make_transport(kind, {comms, placement, std::move(islands), expert_speeds(plan.run, plan.mesh.ep), gather,
                            resident_experts(params.find(param + "moe.w_up"), params.find(param + "moe.w_down")),
                            replica_experts(params, index), moe_work.experts, store, act,
                            plan.run.moe.row_chunks > 0 ? plan.run.moe.row_chunks : chunks,
                            is_recomputed(mode, "received"), plan.run.fault, weight_cache, index});
  MoeOptions options;
  options.capacity_factor = plan.run.moe.capacity_factor;
  options.capacity_per_sequence = plan.run.moe.capacity_domain == CapacityDomain::sequence;
  options.sequences_apart =
      aux_scope(plan.run, plan.model) == AuxScope::sequence && aux_loss_coef(plan.run, plan.model) > 0;
  options.best_scores = counts_best_scores(plan.run, plan.model, spec);
  options.softmax_p = aux_scope(plan.run, plan.model) == AuxScope::model && spec.moe.score == ScoreFunction::sigmoid;
  options.products = plan.run.moe.expert_products;
  options.recompute = {is_recomputed(mode, "logits"), is_recomputed(mode, "received"), is_recomputed(mode, "h")};
  options.defer_up = weight_part(plan.run).moe;
  options.drop_one_row = plan.run.fault == Fault::drop_row && plan.coords.dp == 0 && plan.coords.tp == 0;
  if (index + 1 == plan.model.layer_count()) {
    options.also_when_replayed = plan.run.fault == Fault::wrong_choice;
    options.choose_wrongly = options.also_when_replayed || plan.run.fault == Fault::fleeting_choice;
  }
  std::vector<int32_t> position = gather.pieces() > 0 ? gather.position_of_expert() : placement.position_of_expert();
  return std::make_unique<MoeLayer>(spec, std::move(position), std::move(weights), moe, moe_work, std::move(transport),
                                    options);
}

}  // namespace mw
