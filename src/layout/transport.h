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

enum class TransportKind : uint8_t { in_place, flat, padded, halo, bypass, gather_weights, gather_tokens };

// What the rows of a transport's tensor are. The last three exist with halo and bypass only, where a gateway rank
// passes on the rows that other nodes send to its node (layout/exchange_plan.h).
enum class RowSet : uint8_t {
  choice,  // (token, choice) pairs of this rank's tokens: tokens * top_k, known before routing
  expert,  // rows of this rank's experts
  send,    // rows that this rank sends as the rank of their tokens
  token,   // tokens of all ranks of the EP group
  part,    // parts of the sums of this rank's tokens: one from each rank of the EP group for each token
  unit,    // rows that this rank receives for its experts, each for one or several of them
  pilot,   // rows that this rank receives as a gateway
  spread,  // rows that this rank sends as a gateway
};

// A tensor of a transport.
struct TransportTensor {
  enum class Type : uint8_t { run, f32, i32 };  // run: train.dtype
  // Elements of a row. choices: one for each expert choice that a row may serve: 1 with halo, top_k with bypass and
  // gather_tokens.
  enum class Width : uint8_t { one, choices, hidden };
  const char* name;
  RowSet rows = RowSet::expert;
  Type type = Type::run;
  Width width = Width::one;
  bool for_replicas = false;  // only where a rank has replica slots
};

struct TransportTraits {
  TransportKind kind = TransportKind::in_place;
  std::string_view name;
  bool needs_all_experts = false;  // on every rank: EP = 1
  bool equal_rows = false;         // each rank sends every expert equally many rows
  bool by_node = false;            // rows to other nodes go to a gateway there
  bool merges = false;             // a token's row goes once to each rank or node, whatever its experts there
  bool slices_experts = false;     // a rank computes a slice of every expert, for the tokens of all ranks
  RoutedRows (*expert_rows)(const RoutedShape&) = nullptr;
  RoutedRows (*output_rows)(const RoutedShape&) = nullptr;  // room for experts' outputs; null: as many as expert_rows
  RoutedRows (*send_rows)(const RoutedShape&) = nullptr;    // null: rows stay on their rank
  // What a layer keeps per micro-batch; memory.recompute = "moe" and "full" drop it.
  std::vector<TransportTensor> kept;
  // What all layers share: listed as "exchange.NAME" in the byte table (layout/byte_table.h).
  std::vector<TransportTensor> scratch;
  // A rank gathers the weights of its group, in memory that all layers share: "cache.weights" and "cache.gradients" in
  // the byte table (layout/weight_gather.h). Else it computes with its own experts alone.
  bool gathers_weights = false;
  bool exchanges() const { return send_rows != nullptr; }  // rows move between the ranks of an EP group
  bool splits_rows = false;                                // experts may have replicas, over which their rows are split
  // Whether a rank's rows depend on the load of experts.
  bool follows_load() const { return !gathers_weights && !slices_experts; }
};

// The rows of a set on this rank.
RoutedRows rows_of(RowSet rows, const TransportTraits& traits, const RoutedShape& shape);

std::span<const TransportTraits> transport_table();
const TransportTraits& traits_of(TransportKind kind);

// The setting of each layer, from moe.transport: one name for all MoE layers, or a list such as "flat*4,padded*2" that
// has an item for each of them; "" for dense layers. Errors: config, for a list of another length, a bad count or an
// unknown name.
std::vector<std::string> transport_names(const std::string& setting, const ModelSpec& model);
// The shortest setting that transport_names turns into these names.
std::string transport_setting(const std::vector<std::string>& names);
// name: as transport_names gives it. "auto", where no profile chose: in_place for EP = 1, else flat. "", a dense layer:
// in_place. Errors:
// config, for a transport that cannot serve this EP; unsupported.
TransportKind choose_transport(const std::string& name, int64_t ep);
std::vector<TransportKind> choose_transports(const std::vector<std::string>& names, int64_t ep);

// The chunks of an exchange between `ranks` ranks where moe.row_chunks = 0: `usual`, so that exchanges overlap with
// expert compute. Among at most four ranks of a node, halo and bypass have one: their chunks hold tokens, and each
// chunk adds to the gradients of all experts, which takes longer there than the overlap saves (measured with
// bypass, docs/benchmarks.md).
int64_t automatic_chunks(const TransportTraits& traits, int64_t ranks, bool on_one_node, int64_t usual);

// Whether a layer keeps a tensor of this name for its transport.
bool is_kept_by_transport(std::string_view name);
// Whether moe.transport = `setting` can be used with EP > 1: no MoE layer in it demands in_place.
bool allows_sharded_experts(const std::string& setting);

}  // namespace mw
