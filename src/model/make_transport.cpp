#include "model/make_transport.h"

#include "moe/transports/transport_padded.h"

namespace mw {
namespace {

FlatSaved flat_saved(const TransportParts& parts) {
  const auto rows = [&](const char* name) { return parts.store.rows(parts.row(name)); };
  return {rows("received"), rows("received_index"), rows("received_weights")};
}

std::unique_ptr<Transport> make_in_place(const TransportParts& parts) {
  return make_in_place_transport(parts.experts, parts.scratch);
}

std::unique_ptr<Transport> make_flat(const TransportParts& parts) {
  return std::make_unique<FlatTransport>(*parts.comms.ep, parts.placement, parts.experts, parts.scratch,
                                         flat_saved(parts), FlatOptions{parts.row_chunks, parts.dispatches_again});
}

std::unique_ptr<Transport> make_padded(const TransportParts& parts) {
  const PaddedSaved padded{parts.store.rows(parts.row("padded_token_ids")),
                           parts.store.fixed(parts.row("padded_row_of"))};
  return std::make_unique<PaddedTransport>(*parts.comms.ep, parts.placement, parts.experts, parts.scratch,
                                           flat_saved(parts), padded,
                                           FlatOptions{parts.row_chunks, parts.dispatches_again});
}

struct Maker {
  TransportKind kind;
  std::unique_ptr<Transport> (*make)(const TransportParts&);
};
constexpr Maker kMakers[] = {
    {TransportKind::in_place, make_in_place},
    {TransportKind::flat, make_flat},
    {TransportKind::padded, make_padded},
};

}  // namespace

std::unique_ptr<Transport> make_transport(TransportKind kind, const TransportParts& parts) {
  for (const Maker& maker : kMakers)
    if (maker.kind == kind) return maker.make(parts);
  MW_CHECK(false, "no maker of transport {}", traits_of(kind).name);
}

}  // namespace mw
