#include "layout/weight_cache.h"

#include <algorithm>
#include <set>
#include <utility>

namespace mw {
namespace {

const StagePlan& stage_of(const std::vector<StagePlan>& stages, int stage) {
  return *std::find_if(stages.begin(), stages.end(), [&](const StagePlan& s) { return s.stage == stage; });
}

void add_forward(std::vector<LayerPass>& passes, const StagePlan& stage) {
  for (int64_t layer = stage.first_layer; layer < stage.end_layer; ++layer) passes.push_back({layer, false});
}

// The pieces of all layers, numbered.
class PieceNumbers {
 public:
  explicit PieceNumbers(const std::vector<LayerPieces>& layers) : layers_(layers) {
    for (const LayerPieces& layer : layers) {
      first_.push_back(count_);
      count_ += static_cast<size_t>(layer.different());
    }
  }
  size_t count() const { return count_; }
  size_t of(const WeightUse& use) const {
    const auto layer = static_cast<size_t>(use.layer);
    const bool second_form = use.backward && !layers_[layer].one_form;
    return first_[layer] + static_cast<size_t>(use.piece + (second_form ? layers_[layer].pieces : 0));
  }

 private:
  const std::vector<LayerPieces>& layers_;
  std::vector<size_t> first_;
  size_t count_ = 0;
};

}  // namespace

LayerPieces pieces_of(const WeightGather& gather) {
  return {gather.pieces(), gather.forms.one_form, gather.slot_bytes()};
}

void WeightSlots::add(const LayerPieces& layer, int64_t count) {
  different += count * layer.different();
  bytes = std::max(bytes, layer.bytes);
}

int64_t WeightSlots::count() const { return wanted == 0 ? different : std::min(wanted, different); }

std::vector<LayerPass> passes_of_step(const std::vector<Action>& schedule, const std::vector<StagePlan>& stages) {
  std::vector<LayerPass> passes;
  for (const Action& action : schedule) {
    if (action.kind == ActionKind::forward) add_forward(passes, stage_of(stages, action.stage));
    if (action.kind != ActionKind::backward && action.kind != ActionKind::backward_input) continue;
    const StagePlan& stage = stage_of(stages, action.stage);
    for (int64_t layer = stage.end_layer; layer-- > stage.first_layer;) passes.push_back({layer, true});
  }
  return passes;
}

std::vector<LayerPass> passes_of_forward(const std::vector<StagePlan>& stages) {
  std::vector<LayerPass> passes;
  for (const StagePlan& stage : stages) add_forward(passes, stage);
  return passes;
}

std::vector<WeightUse> plan_weight_uses(const std::vector<LayerPass>& passes, const std::vector<LayerPieces>& layers,
                                        int64_t slots) {
  std::vector<WeightUse> uses;
  for (const LayerPass& pass : passes)
    for (int64_t piece = 0; piece < layers[static_cast<size_t>(pass.layer)].pieces; ++piece)
      uses.push_back({.layer = pass.layer, .piece = piece, .backward = pass.backward});
  const PieceNumbers numbers(layers);
  // Of each use, the next one of the same piece; at the end: none.
  std::vector<size_t> next(uses.size()), latest(numbers.count(), uses.size());
  for (size_t i = uses.size(); i-- > 0;) next[i] = std::exchange(latest[numbers.of(uses[i])], i);

  constexpr int64_t kNowhere = -1;
  std::vector<int64_t> slot_of(numbers.count(), kNowhere);
  std::vector<size_t> piece_in(static_cast<size_t>(slots));
  std::set<std::pair<size_t, int64_t>> held;  // next use, slot
  for (size_t i = 0; i < uses.size(); ++i) {
    const size_t number = numbers.of(uses[i]);
    int64_t& slot = slot_of[number];
    uses[i].gathers = slot == kNowhere;
    if (!uses[i].gathers) {
      held.erase({i, slot});
    } else if (std::ssize(held) < slots) {
      slot = std::ssize(held);
    } else {
      auto evicted = std::prev(held.end());
      // Where the piece before is of the same pass, products read it during this gather.
      if (uses[i].piece > 0 && slots > 1 && evicted->second == uses[i - 1].slot) --evicted;
      slot = evicted->second;
      slot_of[piece_in[static_cast<size_t>(slot)]] = kNowhere;
      held.erase(evicted);
    }
    piece_in[static_cast<size_t>(slot)] = number;
    held.insert({next[i], slot});
    uses[i].slot = slot;
  }
  return uses;
}

void add_gathers(std::vector<PieceGathers>& counts, const std::vector<WeightUse>& uses) {
  for (const WeightUse& use : uses) {
    PieceGathers& layer = counts[static_cast<size_t>(use.layer)];
    if (use.gathers) ++(use.backward ? layer.backward : layer.forward)[static_cast<size_t>(use.piece)];
  }
}

WeightCachePlan plan_weight_cache(const Schedule& schedule, int rank, const std::vector<int64_t>& first_layers,
                                  const std::vector<LayerPieces>& layers, int64_t wanted_slots) {
  WeightCachePlan plan;
  for (const LayerPieces& layer : layers) {
    const std::vector<int64_t> none(static_cast<size_t>(layer.pieces));
    plan.gathers.push_back({none, none});
  }
  const bool any = std::any_of(layers.begin(), layers.end(), [](const LayerPieces& l) { return l.pieces > 0; });
  for (int other = 0; any && other < schedule.shape.ranks; ++other) {
    const std::vector<StagePlan> stages = plan_stages(schedule, other, first_layers);
    WeightSlots slots{wanted_slots};
    for (const StagePlan& stage : stages)
      for (int64_t layer = stage.first_layer; layer < stage.end_layer; ++layer)
        slots.add(layers[static_cast<size_t>(layer)]);
    std::vector<WeightUse> uses =
        plan_weight_uses(passes_of_step(schedule.ranks[static_cast<size_t>(other)], stages), layers, slots.count());
    add_gathers(plan.gathers, uses);
    if (other != rank) continue;
    plan.slots = slots;
    plan.step = std::move(uses);
    plan.forward = plan_weight_uses(passes_of_forward(stages), layers, slots.count());
  }
  return plan;
}

}  // namespace mw
