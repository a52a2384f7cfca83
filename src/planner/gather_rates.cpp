#include "planner/gather_rates.h"

#include <algorithm>
#include <numeric>

#include "layout/weight_cache.h"

namespace mw {

GatherRates::GatherRates(MemoryModel& memory, Pipelines& pipelines, int64_t slots)
    : memory_(memory), pipelines_(pipelines), slots_(slots) {}

std::vector<GatherRates::Rate> GatherRates::of(const Layout& layout, const Mesh& mesh) {
  const std::vector<int64_t>& pieces = pieces_of(layout, mesh);
  if (std::all_of(pieces.begin(), pieces.end(), [](int64_t n) { return n == 0; })) return {};
  const int64_t planned = enough_micro_batches(layout);
  std::vector<Rate> rates = passes_of(layout, mesh, planned);
  const auto all = static_cast<double>(layout.micro_batches);
  if (planned < layout.micro_batches) {
    const std::vector<Rate>& before = passes_of(layout, mesh, planned - layout.pp);
    const double more = static_cast<double>(layout.micro_batches - planned) / layout.pp;
    for (size_t i = 0; i < rates.size(); ++i) {
      rates[i].forward += more * (rates[i].forward - before[i].forward);
      rates[i].backward += more * (rates[i].backward - before[i].backward);
    }
  }
  for (Rate& rate : rates) rate.forward /= all, rate.backward /= all;
  return rates;
}

const std::vector<int64_t>& GatherRates::pieces_of(const Layout& layout, const Mesh& mesh) {
  const auto [entry, is_new] = pieces_.try_emplace(mesh.ep);
  for (int kind = 0; is_new && kind < memory_.kinds().count(); ++kind) {
    const LayerPieces of_kind = memory_.pieces_of_kind(kind, layout, mesh, {});
    entry->second.push_back(of_kind.pieces);
    one_form_ &= of_kind.one_form;  // a matter of machine and dtype, of all layers that have pieces
  }
  return entry->second;
}

const std::vector<GatherRates::Rate>& GatherRates::passes_of(const Layout& layout, const Mesh& mesh,
                                                             int64_t micro_batches) {
  const std::vector<int64_t>& pieces = pieces_of(layout, mesh);
  const auto [entry, is_new] = known_.try_emplace({layout.schedule, layout.pp, layout.chunks, micro_batches, pieces});
  if (!is_new) return entry->second;
  PipelineShape shape = layout.pipeline();
  shape.micro_batches = micro_batches;
  std::vector<LayerPieces> layers;
  for (const int kind : memory_.kinds().of_layer) layers.push_back({pieces[static_cast<size_t>(kind)], one_form_});
  const auto passes = [](const std::vector<int64_t>& by_piece) {
    const auto sum = static_cast<double>(std::accumulate(by_piece.begin(), by_piece.end(), int64_t{0}));
    return by_piece.empty() ? 0 : sum / static_cast<double>(by_piece.size());
  };
  for (const PieceGathers& layer :
       plan_weight_cache(make_schedule(shape), 0, pipelines_.first_layers(shape), layers, slots_).gathers)
    entry->second.push_back({passes(layer.forward), passes(layer.backward)});
  return entry->second;
}

}  // namespace mw
