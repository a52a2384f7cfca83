// PlatformProfile: what a plan may know of a machine - sizes, rates and latencies, measured or from public figures.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layout/byte_table.h"

namespace mw {

// A rate that depends on the size of the work.
struct RatePoint {
  double size = 0, per_second = 0;
  bool operator==(const RatePoint&) const = default;
};
using RateTable = std::vector<RatePoint>;  // sizes ascend

// Linear between two points in the logarithm of the size; beyond the ends the nearest point holds.
double rate_at(const RateTable& table, double size);

// One kind of transfer: seconds = latency + bytes / rate, of one rank while all ranks do the same.
struct LinkCost {
  double latency_s = 0, bytes_per_s = 0;
  RateTable rates = {};  // by the bytes; empty: bytes_per_s at all sizes, else that is the last one
  double rate(double bytes) const { return rates.empty() ? bytes_per_s : rate_at(rates, bytes); }
  double seconds(double bytes) const { return latency_s + bytes / rate(bytes); }
  bool operator==(const LinkCost&) const = default;
};

// Exchanges of groups of so many ranks at equal distances, all groups of that shape at the same time.
struct GroupCosts {
  int64_t ranks = 0, stride = 1;
  LinkCost all_to_all, ring;
  std::optional<LinkCost> owner = {};
  bool operator==(const GroupCosts&) const = default;
};

// Consecutive ranks that reach each other over one kind of link: a node, a rack, the whole machine. Bytes of
// all_to_all are those a rank sends, of a sum or gather (ring) 2 or 1 times (n - 1) / n of the whole.
struct LinkLevel {
  std::string name;
  int64_t ranks = 0;
  LinkCost all_to_all, ring, message;
  // Where groups of other shapes than all of these ranks were measured.
  std::optional<std::vector<GroupCosts>> groups = {};
  // Sums that only one member gets, as ZeRO's gradients, and what it then tells the others: of the whole, each way.
  // Absent: by the ring.
  std::optional<LinkCost> owner = {};
  // Ranks that share one link between the groups that nearer links join, such as a node's network card; absent: 1.
  std::optional<int64_t> ranks_per_link = {};
  bool operator==(const LinkLevel&) const = default;
};
// All costs of a level, which must outlive them.
std::vector<LinkCost*> link_costs(LinkLevel& level);

// Memory that libraries take beside the table of bytes.
struct LibraryBytes {
  std::string name;
  int64_t bytes = 0;
  bool per_group = false;  // for each group of ranks that a rank communicates in, else once
  bool operator==(const LibraryBytes&) const = default;
};

// The time of an MoE layer with this transport, as measured in steps of a run, over what the rest of the profile
// predicts.
struct TransportTime {
  std::string transport;
  double over_predicted = 1;
  bool operator==(const TransportTime&) const = default;
};

// FLOP/s of per-expert products with so many experts.
struct ExpertRates {
  int64_t experts = 0;
  RateTable products, weight_products;  // as expert_products and expert_weight_products
  bool operator==(const ExpertRates&) const = default;
};

constexpr int kProbedDocuments = 4;  // of a sequence, where attention among documents is measured

// FLOP/s of operators that compute.
struct OperatorRates {
  RateTable dense_products;          // by the FLOP of a product
  RateTable expert_products;         // rows x matrix, by the mean FLOP of an expert's product
  RateTable expert_weight_products;  // gradients of expert weights, by the same
  // The same by the number of experts, which ascends; absent: these two for any number.
  std::optional<std::vector<ExpertRates>> expert_counts;
  // Shares of these rates where a side of the matrices is narrow, by the narrower side; absent: the same for all.
  std::optional<RateTable> expert_widths, expert_weight_widths;
  int64_t row_tile = 1;          // rows of an expert's product are computed in whole tiles
  RateTable attention_forward;   // of causal attention by sequence length
  RateTable attention_backward;  // with 2.5 times the FLOP of forward
  // Shares of these two at other head widths, by the mean width of keys and values; absent: the same at all.
  std::optional<RateTable> attention_forward_widths, attention_backward_widths;
  // How many times faster its backward pass is where sums may come in any order (train.deterministic); absent: once.
  std::optional<double> attention_any_order;
  // What its rates are multiplied by where documents are kept apart (data.document_mask), kProbedDocuments of each
  // sequence; absent: 1. Kernels that take those take windows, too.
  std::optional<double> attention_forward_documents, attention_backward_documents;
  bool operator==(const OperatorRates&) const = default;
};

// Neighbouring ranks that compute equally fast.
struct RankKind {
  int64_t ranks = 0;
  double speed = 1;  // of computing, relative to the slowest ranks; the profile's rates are theirs
  bool operator==(const RankKind&) const = default;
};

struct PlatformProfile {
  std::string name;
  std::vector<std::string> sources;  // where the numbers come from: measured, calibrated, public or assumed
  int64_t ranks_per_node = 1;
  int64_t memory_bytes = 0;     // of one rank
  double peak_flops_per_s = 0;  // dense bf16, the denominator of MFU
  double fp32_share = 1;        // peak of fp32 products, and where `fp32` is absent all rates, as a share of bf16
  bool native_bf16 = true;      // as in Platform
  bool one_packed_form = true;
  std::optional<bool> split_masters;  // as in Platform; absent: true
  // Products of expert gradients can add the squares of what they store (ops/square_sums.h); absent: false.
  std::optional<bool> squares_when_stored;
  int64_t scratch_bytes = 0;  // of operators; of no meaning for a CPU, see platform_of
  // A GPU's library computes attention, and what it takes as scratch is not in scratch_bytes; absent: it is.
  std::optional<bool> attention_library;
  std::optional<int64_t> threads;  // of a CPU's rank where the run file says nothing; absent: 1
  int64_t logit_elements = int64_t{4} << 20;
  std::optional<int64_t> logit_gradient_rows;  // absent: those of one chunk of logits

  OperatorRates bf16;
  std::optional<OperatorRates> fp32;
  double elementwise_bytes_per_s = 0;      // operators that only move memory, in all they read and write
  double stream_bytes_per_s = 0;           // the optimizer's update, and operands of products
  std::optional<double> host_bytes_per_s;  // a GPU's update, of what it reads and writes in the host's memory
  // Plain copies between a GPU and the host, while all ranks do the same.
  std::optional<double> to_host_bytes_per_s, from_host_bytes_per_s;
  std::optional<double> pack_bytes_per_s;  // the packing of weights on CPUs; absent: elementwise_bytes_per_s
  double operator_latency_s = 0;           // of each operator
  double routing_latency_s = 0;            // of an MoE layer's routing, once per pass, beside its operators
  double micro_batch_latency_s = 0;        // of each micro-batch of a stage
  int64_t row_chunks = 1;                  // pieces of an exchange that overlap with expert compute by default
  // Collectives run between GPUs beside compute: gradient sums beside the last backward pass. Exchanges that start
  // together then cost one latency.
  bool overlaps_gradient_sums = true;
  double overlap_slowdown = 1;    // of compute while something is exchanged beside it
  std::vector<LinkLevel> levels;  // ranks ascend; the last joins all ranks that a plan may ask for
  std::vector<LibraryBytes> libraries;
  // Of transports that `moewright probe RUN` timed; the others, and all where it is absent, take what is predicted.
  std::optional<std::vector<TransportTime>> transport_times;
  std::optional<std::vector<RankKind>> rank_kinds;  // in the order of ranks; absent: all are alike
  bool operator==(const PlatformProfile&) const = default;
};

// How fast a rank computes, relative to the slowest ones, as which ranks beyond the profile's kinds count.
double speed_of(const PlatformProfile& profile, int64_t rank);
// "4 ranks at 2.87 times the speed of the slowest, 4 of those", or "all ranks are alike".
std::string describe_rank_kinds(const PlatformProfile& profile);
// The kinds of ranks that take so long for the same work. Ranks within a tenth of the fastest one of their kind are
// alike. One entry where all are.
std::vector<RankKind> rank_kinds_of(std::span<const double> seconds);

// FLOP/s of products of `experts` experts, `flops` each on average; of the gradients of their weights. Linear between
// two counts in their logarithm; beyond the ends the nearest count holds.
double expert_rate(const OperatorRates& rates, double experts, double flops);
double expert_weight_rate(const OperatorRates& rates, double experts, double flops);

// 1 where the transport was not timed.
double time_over_predicted(const PlatformProfile& profile, const std::string& transport);

// With operands of `dtype`, bf16 or f32.
OperatorRates rates_of(const PlatformProfile& profile, DType dtype);
// All tables of FLOP/s of the profile, which must outlive them.
std::vector<RateTable*> rate_tables(PlatformProfile& profile);

// The part that the table of bytes reads. What a CPU's operators (two packed forms) take as scratch follows from the
// layout, in the table (layout/product_scratch.h); other machines' take what the profile says, but for attention
// (layout/attention_scratch.h).
Platform platform_of(const PlatformProfile& profile, const RunSpec& run);

// JSON of docs/formats.md. Errors: config, naming `where` and the field; an unknown one names the nearest.
PlatformProfile parse_platform_profile(const std::string& text, const std::string& where);
PlatformProfile read_platform_profile(const std::string& path);
// The same, of a machine with links for so many ranks. Errors: config.
PlatformProfile read_platform_profile(const std::string& path, int ranks);
// parse_platform_profile takes it back unchanged.
std::string to_json(const PlatformProfile& profile);

}  // namespace mw
