#include "model/transformer.h"

#include <algorithm>
#include <utility>

#include "model/platform.h"
#include "ops/rope.h"

namespace mw {

Transformer::~Transformer() = default;

Transformer::Transformer(const Plan& plan, ParamStore& params, MeshComms& comms, Stream& stream, const Reserve& reserve)
    : plan_(plan),
      params_(params),
      comms_(comms),
      stream_(stream),
      store_(to_slots(plan.activation_rows), reserve),
      shards_(plan, *comms.tp, store_, stream),
      auxiliary_(plan),
      splits_(splits_backward(plan.pipeline.kind)) {
  attach_workspaces(store_, stream_, *comms.ep);
  step_tokens_ = {store_.fixed("data.ids"), store_.fixed("data.labels"), {}};
  if (plan_.run.data.document_mask) step_tokens_.document_starts = store_.fixed("data.document_starts");
  fill_rope_table();
  if (store_.has(kWeightSlots))
    weight_cache_ = std::make_unique<WeightCache>(store_.fixed(kWeightSlots), plan_.weight_cache.slots);
  for (int64_t i = 0; i < plan_.model.layer_count(); ++i)
    if (plan_.model.layers[static_cast<size_t>(i)].feed_forward == FeedForwardKind::moe) moe_index_.push_back(i);
  for (const StagePlan& stage : plan_.stages) stages_.push_back(make_stage(stage, comms));
  if (stages_.front().plan.embeds) embedding_ = std::make_unique<TokenEmbedding>(plan_, params_, store_, shards_);
  if (stages_.back().plan.has_head) {
    head_ = std::make_unique<LossHead>(plan_, params_, store_, *comms.tp, shards_);
    d_x_ = store_.fixed("work.d_x");
  }
  const std::vector<std::string> unused = store_.unused();
  MW_CHECK(unused.empty(), "the table of bytes has {} rows that nothing uses, first {}", unused.size(), unused.front());
  choose_scratch();
}

void Transformer::choose_scratch() {
  for (const char* name : {"work.expert_y", "work.dense_a", "work.logits"}) {
    if (!store_.has(name)) continue;
    const TensorView committed = store_.rows(name).committed();
    if (committed.bytes() > scratch_.bytes()) scratch_ = TensorView(committed.data, DType::u8, {committed.bytes()});
  }
}

// One table serves all layers.
void Transformer::fill_rope_table() {
  const AttentionSpec& first = plan_.model.layers.front().attention;
  for (const LayerSpec& layer : plan_.model.layers) {
    const AttentionSpec& a = layer.attention;
    if (a.rope_dim() != first.rope_dim() || a.rope_theta != first.rope_theta || !(a.yarn == first.yarn))
      fail(Exit::unsupported, "layers with different rotary embeddings are not supported yet",
           "use the same rope_theta, rope_dim and rope_scaling in every layer");
  }
  const YarnSpec& yarn = first.yarn;
  const std::vector<float> frequencies =
      rope_frequencies(static_cast<float>(first.rope_theta), first.rope_dim() / 2,
                       {yarn.factor, yarn.beta_fast, yarn.beta_slow, yarn.positions, yarn.truncate});
  make_rope_table(frequencies, static_cast<float>(yarn.table_scale()), store_.fixed("work.rope_cos"),
                  store_.fixed("work.rope_sin"));
}

Transformer::Stage Transformer::make_stage(const StagePlan& plan, MeshComms& comms) {
  Stage stage;
  stage.plan = plan;
  std::copy_if(moe_index_.begin(), moe_index_.end(), std::back_inserter(stage.moe_layers),
               [&](int64_t layer) { return plan.has_layer(layer); });
  if (plan.receives) stage.input_gradient = store_.fixed(stage_row(plan.stage, "d_in"));
  if (plan.sends) stage.output = store_.fixed(stage_row(plan.stage, "out"));
  for (int64_t i = 0; !plan.has_head && i < plan.gradients; ++i)
    stage.output_gradients.push_back(store_.fixed(stage_row(plan.stage, "d_out", i)));
  for (int64_t s = 0; s < plan.slots; ++s) {
    Slot slot;
    for (int64_t layer = plan.first_layer; layer < plan.end_layer; ++layer)
      slot.layers.emplace_back(plan_, layer, s, params_, store_, comms, shards_, weight_cache_.get());
    if (plan.has_head) slot.final_x = store_.fixed(final_row(s));
    stage.slots.push_back(std::move(slot));
  }
  return stage;
}

void Transformer::place_experts(SharedPlacements placements) {
  mw::place_experts(plan_, std::move(placements));
  for (Stage& stage : stages_) {
    MW_CHECK(live(stage.plan.stage) == 0, "experts move while {} micro-batches are in flight", live(stage.plan.stage));
    for (size_t s = 0; s < stage.slots.size(); ++s)
      for (size_t i = 0; i < stage.slots[s].layers.size(); ++i)
        stage.slots[s].layers[i].place_experts(plan_, stage.plan.first_layer + static_cast<int64_t>(i),
                                               static_cast<int64_t>(s), params_, store_, comms_, weight_cache_.get());
  }
}

std::vector<TensorView> Transformer::largest_logits(int64_t layer) const {
  std::vector<TensorView> of_slots;
  for (const Stage& stage : stages_)
    if (plan_.run.train.qk_clip > 0 && stage.plan.has_layer(layer))
      for (const Slot& slot : stage.slots)
        of_slots.push_back(slot.layers[static_cast<size_t>(layer - stage.plan.first_layer)].largest_logits());
  return of_slots;
}

const Transformer::Stage& Transformer::stage_of(int stage) const {
  for (const Stage& s : stages_)
    if (s.plan.stage == stage) return s;
  MW_CHECK(false, "stage {} is not on this rank", stage);
}

Transformer::Stage& Transformer::stage_of(int stage) {
  return const_cast<Stage&>(std::as_const(*this).stage_of(stage));
}

Transformer::Slot& Transformer::slot_of(int stage, int64_t micro_batch) {
  std::vector<Slot>& slots = stage_of(stage).slots;
  const auto of = [&](int64_t wanted) {
    return std::find_if(slots.begin(), slots.end(), [&](const Slot& s) { return s.micro_batch == wanted; });
  };
  auto it = of(micro_batch);
  if (it == slots.end()) it = of(-1);
  MW_CHECK(it != slots.end(), "micro-batch {} finds the {} slots of stage {} taken", micro_batch, slots.size(), stage);
  it->micro_batch = micro_batch;
  return *it;
}

TensorView Transformer::rows(TensorView view, int64_t tokens) const {
  return take_front(view, {shards_.own(tokens).count, plan_.model.width});
}

TensorView Transformer::input(int stage, int64_t micro_batch, int64_t tokens) {
  return slot_of(stage, micro_batch).layers.front().input(tokens);
}

TensorView Transformer::output(int stage, int64_t micro_batch, int64_t tokens) {
  Stage& own = stage_of(stage);
  if (own.plan.has_head) return rows(slot_of(stage, micro_batch).final_x, tokens);
  return own.plan.sends ? rows(own.output, tokens) : input(stage + 1, micro_batch, tokens);
}

TensorView Transformer::output_gradient(int stage, int64_t micro_batch, int64_t tokens) {
  Stage& own = stage_of(stage);
  if (own.plan.has_head) return rows(d_x_, tokens);
  return rows(own.output_gradients[static_cast<size_t>(micro_batch % own.plan.gradients)], tokens);
}

TensorView Transformer::input_gradient(int stage, int64_t micro_batch, int64_t tokens) {
  Stage& own = stage_of(stage);
  // The embedding reads it where the layers leave it.
  if (own.plan.embeds) return output_gradient(stage, micro_batch, tokens);
  return own.plan.receives ? rows(own.input_gradient, tokens) : output_gradient(stage - 1, micro_batch, tokens);
}

// Weights that a transport gathers travel while attention is computed.
static void begin_weights(Stream& stream, DecoderLayer& layer, Pass pass) {
  if (layer.moe() != nullptr) layer.moe()->weights_begin(stream, pass);
}

void Transformer::forward(int stage, int64_t micro_batch, const Batch& batch, bool training,
                          const std::vector<RoutingTap>& taps) {
  const int64_t tokens = batch.tokens();
  MW_CHECK(tokens <= plan_.batch.tokens() && batch.seq_len <= plan_.run.train.seq_len,
           "a batch of {} x {} tokens in a plan for {} x {}", batch.sequences, batch.seq_len, plan_.batch.sequences,
           plan_.batch.seq_len);
  const StagePlan& own = stage_of(stage).plan;
  std::vector<DecoderLayer>& layers = slot_of(stage, micro_batch).layers;
  if (weight_cache_ != nullptr) weight_cache_->follow(training ? plan_.weight_cache.step : plan_.weight_cache.forward);
  if (own.embeds) embedding_->forward(stream_, batch, layers.front().input(tokens));
  auto tap = taps.begin();  // of the stage's first MoE layer
  if (!taps.empty())
    tap += std::lower_bound(moe_index_.begin(), moe_index_.end(), own.first_layer) - moe_index_.begin();
  for (size_t i = 0; i < layers.size(); ++i) {
    const TensorView out = i + 1 < layers.size() ? layers[i + 1].input(tokens) : output(stage, micro_batch, tokens);
    const TraceScope part(stream_.trace(), "layer", {"layer", own.first_layer + static_cast<int64_t>(i)});
    begin_weights(stream_, layers[i], Pass::forward);
    const bool tapped = layers[i].moe() != nullptr && !taps.empty();
    layers[i].forward(stream_, batch, out, training, tapped ? &*tap++ : nullptr);
    if (own.has_head) last_output_ = out;
  }
  if (own.has_head) last_tokens_ = tokens;
}

void Transformer::loss(int64_t micro_batch, const Batch& batch, float seed, std::vector<float>& losses, Store store) {
  const int stage = stages_.back().plan.stage;
  const int64_t tokens = batch.tokens();
  head_->loss(stream_, batch, output(stage, micro_batch, tokens), seed, output_gradient(stage, micro_batch, tokens),
              losses, store);
}

void Transformer::backward(int stage, int64_t micro_batch, const Batch& batch, GradientStore gradients,
                           const FeedForwardDone& done) {
  const int64_t tokens = batch.tokens();
  const StagePlan& own = stage_of(stage).plan;
  std::vector<DecoderLayer>& layers = slot_of(stage, micro_batch).layers;
  const TensorView d_x = output_gradient(stage, micro_batch, tokens);
  begin_weights(stream_, layers.back(), Pass::backward);
  for (size_t i = layers.size(); i-- > 0;) {
    const int64_t number = own.first_layer + static_cast<int64_t>(i);
    const TraceScope part(stream_.trace(), "layer_backward", {"layer", number});
    layers[i].recompute_attention(stream_, batch);
    layers[i].backward_feed_forward(stream_, tokens, d_x, gradients);
    if (done && !splits_) done(number);
    if (i > 0) begin_weights(stream_, layers[i - 1], Pass::backward);
    layers[i].backward_attention(stream_, batch, d_x, i == 0 ? input_gradient(stage, micro_batch, tokens) : d_x,
                                 gradients.store);
  }
  if (own.embeds) embedding_->backward(stream_, batch, input_gradient(stage, micro_batch, tokens));
  if (!splits_) release(stage, micro_batch);
}

void Transformer::backward_weights(int stage, int64_t micro_batch, const Batch& batch, GradientStore gradients,
                                   const FeedForwardDone& done) {
  MW_CHECK(splits_, "backward of {} leaves no weight part", describe(plan_.pipeline));
  std::vector<DecoderLayer>& layers = slot_of(stage, micro_batch).layers;
  for (size_t i = layers.size(); i-- > 0;) {
    const int64_t number = stage_of(stage).plan.first_layer + static_cast<int64_t>(i);
    const TraceScope part(stream_.trace(), "layer_backward_weights", {"layer", number});
    layers[i].backward_feed_forward_weights(stream_, batch.tokens(), gradients);
    if (done) done(number);
    layers[i].backward_attention_weights(stream_, batch, gradients.store);
  }
  release(stage, micro_batch);
}

void Transformer::release(int stage, int64_t micro_batch) {
  for (Slot& slot : stage_of(stage).slots)
    if (slot.micro_batch == micro_batch) slot.micro_batch = -1;
}

int64_t Transformer::live(int stage) const {
  const std::vector<Slot>& slots = stage_of(stage).slots;
  return std::count_if(slots.begin(), slots.end(), [](const Slot& slot) { return slot.micro_batch >= 0; });
}

const std::vector<int64_t>& Transformer::moe_layers_of(int stage) const { return stage_of(stage).moe_layers; }

std::vector<double> Transformer::statistics(int stage, int64_t micro_batch) {
  std::vector<double> out;
  for (const DecoderLayer& layer : slot_of(stage, micro_batch).layers)
    if (layer.moe() != nullptr) append_statistics(layer.moe()->statistics(), out);
  return out;
}

std::vector<ExpertRows> Transformer::expert_rows(int stage, int64_t micro_batch) {
  std::vector<ExpertRows> rows;
  for (const DecoderLayer& layer : slot_of(stage, micro_batch).layers)
    if (layer.moe() != nullptr) rows.push_back({layer.moe()->expert_rows(), layer.moe()->replica_rows()});
  return rows;
}

void Transformer::set_auxiliary(int stage, int64_t micro_batch, std::span<const double> summed,
                                std::span<const double> mean_load, int64_t tokens, double seed) {
  int64_t number = stage_of(stage).plan.first_layer;
  for (DecoderLayer& layer : slot_of(stage, micro_batch).layers) {
    if (layer.moe() != nullptr) {
      const MoeSpec& moe = plan_.model.layers[static_cast<size_t>(number)].moe;
      layer.aux = auxiliary_.gradient(number, take_statistics(moe, summed).counts, mean_load, tokens, seed);
    }
    ++number;
  }
}

int Transformer::whole_stage() const {
  const StagePlan& only = plan_.stages.front();
  MW_CHECK(only.embeds && only.has_head, "this rank holds a part of the model");
  return only.stage;
}

void Transformer::forward(const Batch& batch, bool training, const std::vector<RoutingTap>& taps) {
  forward(whole_stage(), 0, batch, training, taps);
}

AuxLosses Transformer::set_auxiliary(const std::vector<double>& summed, int64_t tokens, double seed) {
  const std::vector<double> mean_load = auxiliary_.mean_load(moe_index_, summed, tokens);
  set_auxiliary(whole_stage(), 0, summed, mean_load, tokens, seed);
  return auxiliary_.losses(moe_index_, summed, tokens);
}

void Transformer::backward(const Batch& batch, GradientStore gradients, const FeedForwardDone& done) {
  backward(whole_stage(), 0, batch, gradients, done);
}

std::vector<float> Transformer::logits(int64_t begin, int64_t count) {
  MW_CHECK(head_ != nullptr && last_output_.data != nullptr, "no output of the last stage is there");
  return head_->logits(stream_, last_tokens_, last_output_, begin, count);
}

}  // namespace mw
