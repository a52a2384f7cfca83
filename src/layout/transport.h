// The transports of MoE layers: one record of traits per kind, which the byte table, the planner and the reports read,
// and the choice of a transport for each layer (moe.transport).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "config/model_spec.h"
#include "layout/routed_rows.h"

namespace mw {

enum class TransportKind : uint8_t { in_place, flat, padded, halo, bypass };

// The sets of rows that tensors of a transport have. choice: [tokens, top_k], exact; expert: rows of this rank's
// experts; send: rows that leave a token's rank; by way of the node also those that arrive for the experts (unit),
// those that arrive at a gateway (pilot) and those that it passes on (spread).
enum class RowSet : uint8_t { choice, expert, send, unit, pilot, spread };

// A tensor of a transport.
struct TransportTensor {
  enum class Type : uint8_t { run, f32, i32 };          // run: train.dtype
  enum class Width : uint8_t { one, choices, hidden };  // choices: those that travel with a unit
  const char* name;
  RowSet rows = RowSet::expert;
  Type type = Type::run;
  Width width = Width::one;
};

struct TransportTraits {
  TransportKind kind = TransportKind::in_place;
  std::string_view name;
  bool needs_all_experts = false;  // on every rank: EP = 1
  bool equal_rows = false;         // every expert gets as many rows as the fullest one
  bool by_node = false;            // rows to other nodes go to a gateway there
  bool merges = false;             // a token's row goes once to each rank or node, whatever its experts there
  RoutedRows (*expert_rows)(const RoutedShape&) = nullptr;
  RoutedRows (*send_rows)(const RoutedShape&) = nullptr;  // null: rows stay on their rank
  // What a layer keeps per micro-batch; memory.recompute = "moe" and "full" drop it.
  std::vector<TransportTensor> kept;
  // What all layers share: rows "exchange.NAME" of the byte table.
  std::vector<TransportTensor> scratch;
  bool exchanges() const { return send_rows != nullptr; }  // rows move between the ranks of an EP group
};

// The rows of a set on this rank.
RoutedRows rows_of(RowSet rows, const TransportTraits& traits, const RoutedShape& shape);

std::span<const TransportTraits> transport_table();
const TransportTraits& traits_of(TransportKind kind);

// The setting of each layer, from moe.transport: one name for all MoE layers, or a list such as "flat*4,padded*2" that
// has an item for each of them; "" for dense layers. Errors: config, for a list of another length or a bad count;
// unsupported, for a name that is not in the table.
std::vector<std::string> transport_names(const std::string& setting, const ModelSpec& model);
// "auto": in_place for EP = 1, flat otherwise; "" of a dense layer: in_place. Errors: config, for a transport that
// cannot serve this EP; unsupported.
TransportKind choose_transport(const std::string& name, int64_t ep);
std::vector<TransportKind> choose_transports(const std::vector<std::string>& names, int64_t ep);

// Whether a layer keeps a tensor of this name for its transport.
bool is_kept_by_transport(std::string_view name);
// Whether some transport may be chosen where experts are sharded.
bool allows_sharded_experts(const std::string& setting);

}  // namespace mw
