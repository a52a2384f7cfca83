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

enum class TransportKind : uint8_t { in_place, flat, padded };

// A tensor that a layer keeps per micro-batch for its transport; memory.recompute = "moe" and "full" drop it.
struct TransportTensor {
  enum class Rows : uint8_t { expert, send, choice };  // rows at the experts, rows to send, [tokens, top_k]
  enum class Type : uint8_t { run, f32, i32 };         // run: train.dtype
  const char* name;
  Rows rows = Rows::expert;
  Type type = Type::run;
  bool wide = false;  // rows of the hidden size, else single numbers
};

struct TransportTraits {
  TransportKind kind = TransportKind::in_place;
  std::string_view name;
  bool needs_all_experts = false;  // on every rank: EP = 1
  bool equal_rows = false;         // every expert gets as many rows as the fullest one
  RoutedRows (*expert_rows)(const RoutedShape&) = nullptr;
  RoutedRows (*send_rows)(const RoutedShape&) = nullptr;  // null: rows stay on their rank
  std::vector<TransportTensor> kept;
  bool exchanges() const { return send_rows != nullptr; }  // rows move between the ranks of an EP group
};

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
