#include "model/make_transport.h"

#include "moe/transports/transport_by_node.h"
#include "moe/transports/transport_gather_tokens.h"
#include "moe/transports/transport_gather_weights.h"
#include "moe/transports/transport_in_place.h"
#include "moe/transports/transport_padded.h"

namespace mw {
namespace {

FlatSaved flat_saved(const TransportParts& parts) {
  const auto rows = [&](const char* name) { return parts.store.rows(parts.row(name)); };
  return {rows("received"), rows("received_index"), rows("received_weights")};
}

PlacedSaved placed_saved(const TransportParts& parts) {
  return {parts.store.rows(parts.row("sent_token_ids")), parts.store.fixed(parts.row("sent_row_of"))};
}

std::unique_ptr<Transport> make_in_place(const TransportParts& parts) {
  return std::make_unique<InPlaceTransport>(parts.placement, parts.experts, parts.scratch);
}

std::unique_ptr<Transport> make_flat(const TransportParts& parts) {
  return std::make_unique<FlatTransport>(
      *parts.comms.ep, parts.placement, parts.experts, parts.scratch, flat_saved(parts),
      FlatOptions{parts.row_chunks, parts.dispatches_again, parts.islands, parts.speeds}, parts.replicas,
      parts.replicas.up.empty() ? PlacedSaved{} : placed_saved(parts));
}

std::unique_ptr<Transport> make_padded(const TransportParts& parts) {
  return std::make_unique<PaddedTransport>(*parts.comms.ep, parts.placement, parts.experts, parts.scratch,
                                           flat_saved(parts), placed_saved(parts),
                                           FlatOptions{parts.row_chunks, parts.dispatches_again, parts.islands});
}

// Its tensors by name: those that the layer keeps, and those that all layers share.
auto kept_of(const TransportParts& parts) {
  return [&parts](const char* name) { return parts.store.rows(parts.row(name)); };
}
auto scratch_of(const TransportParts& parts) {
  return [&parts](const char* name) { return parts.store.rows(fmt::format("exchange.{}", name)); };
}

std::unique_ptr<Transport> make_by_node(const TransportParts& parts, bool merge) {
  return std::make_unique<ByNodeTransport>(
      *parts.comms.ep, parts.islands, parts.placement, parts.experts, parts.scratch,
      by_node_tensors(kept_of(parts), scratch_of(parts)),
      ByNodeOptions{merge, parts.row_chunks, parts.dispatches_again, parts.fault, parts.speeds}, parts.replicas);
}

std::unique_ptr<Transport> make_halo(const TransportParts& parts) { return make_by_node(parts, false); }
std::unique_ptr<Transport> make_bypass(const TransportParts& parts) { return make_by_node(parts, true); }

std::unique_ptr<Transport> make_gather_weights(const TransportParts& parts) {
  return std::make_unique<GatherWeightsTransport>(
      *parts.comms.ep, parts.placement, parts.gather, parts.islands, parts.experts, parts.scratch,
      GatherShared{parts.weight_cache, parts.layer, parts.store.fixed("cache.gradients"), parts.fault});
}

std::unique_ptr<Transport> make_gather_tokens(const TransportParts& parts) {
  return std::make_unique<GatherTokensTransport>(*parts.comms.ep, parts.islands, parts.experts, parts.scratch,
                                                 gather_tokens_tensors(kept_of(parts), scratch_of(parts)),
                                                 parts.row_chunks);
}

struct Maker {
  TransportKind kind;
  std::unique_ptr<Transport> (*make)(const TransportParts&);
};
constexpr Maker kMakers[] = {
    {TransportKind::in_place, make_in_place},
    {TransportKind::flat, make_flat},
    {TransportKind::padded, make_padded},
    {TransportKind::halo, make_halo},
    {TransportKind::bypass, make_bypass},
    {TransportKind::gather_weights, make_gather_weights},
    {TransportKind::gather_tokens, make_gather_tokens},
};

}  // namespace

std::unique_ptr<Transport> make_transport(TransportKind kind, const TransportParts& parts) {
  for (const Maker& maker : kMakers)
    if (maker.kind == kind) return maker.make(parts);
  MW_CHECK(false, "no maker of transport {}", traits_of(kind).name);
}

}  // namespace mw
