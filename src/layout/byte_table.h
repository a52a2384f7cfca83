// The table of bytes: every tensor of a rank that lives across an operator boundary. The planner sums the rows, the
// arenas reserve them, every run prints them beside what was measured.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "config/param_table.h"
#include "config/run_spec.h"
#include "layout/islands.h"
#include "layout/mesh.h"
#include "layout/placement.h"
#include "layout/shards.h"
#include "layout/shares.h"
#include "layout/stages.h"
#include "layout/transport.h"
#include "layout/weight_cache.h"
#include "layout/weight_gather.h"

namespace mw {

// What a tensor is for. Lifetimes follow: master .. packed live as long as the run; activation and routed from a
// layer's forward to its backward; workspace inside one layer's call; exchange there, or between pipeline stages.
enum class ByteKind : uint8_t { master, gradient, moment, packed, activation, routed, workspace, exchange };
constexpr int kByteKinds = 8;
const char* name_of(ByteKind kind);

struct ByteRow {
  std::string name;
  ByteKind kind = ByteKind::activation;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;  // local; of a growing row, axis 0 is what is committed at start
  int64_t max_rows = 0;        // above 0: grows by rows up to this (routed rows depend on the data)
  int64_t mean_rows = 0;       // of a growing row: rows under balanced load
  bool on_host = false;        // memory.offload: in the host's memory, whatever the device
  int64_t bytes() const;       // of `shape`, rounded up to 64 as the arena does
};

// Makes a row as large as the larger of two that serve in turn. Errors: internal, for rows of other dtypes.
void widen(ByteRow& into, const ByteRow& row);

// Whose rule says what operators take as scratch; in a run they are asked. by_library: attention's of cuDNN.
enum class ScratchRule : uint8_t { asked, on_cpu, on_gpu, by_library };

// What the table must know of the machine; filled by `model` in a run, from a profile in a plan.
struct Platform {
  bool native_bf16 = false;                   // packed weights are bf16, else fp32
  bool one_packed_form = false;               // products of both directions read the same one
  int64_t ops_workspace_bytes = 0;            // scratch that operators need at most, but for what a rule says
  int64_t relay_workspace_bytes = 0;          // of a gateway's operators, on the stream of the exchanges
  int64_t logit_elements = int64_t{4} << 20;  // of the logits computed at a time: fits caches, or fills a GPU
  int64_t logit_gradient_rows = 0;            // of their bf16 gradients multiplied at a time, about; 0: one chunk's
  bool split_masters = true;                  // where packed forms allow it
  ScratchRule scratch = ScratchRule::asked;
  int64_t threads = 1;     // of a rank, which share attention's scratch on_cpu
  NodeMap nodes = {};      // as the launcher reports them
  int64_t row_chunks = 1;  // what moe.row_chunks = 0 means
};

// The nodes of a run's ranks: as mesh.ranks_per_node says, otherwise the platform's.
NodeMap node_map(const MeshSpec& mesh, const Platform& platform);
// The tokens of a micro-batch that the EP group of the rank at `coords` routes. samples: by DP rank.
int64_t tokens_of_ep_group(std::span<const int64_t> samples, int64_t seq_len, const Mesh& mesh,
                           const MeshCoords& coords);
// The nodes of the EP group of the rank at `coords`, as that rank sees them.
NodesSeen nodes_of_ep_group(const Mesh& mesh, const MeshCoords& coords, const NodeMap& nodes);

// Whether the packed form of these matrices is their bf16 values and nothing more.
bool is_plain_copy(const LocalParam& matrices, const Platform& platform);

// What the table keeps of a parameter's fp32 master weights: all of them (f32), or beside a packed form that is their
// nearest bf16 values the rest alone (u16, SplitFloat in base/dtype.h).
DType master_dtype(const ParamRow& row, const LocalParam& local, const RunSpec& run, const Platform& platform);

// Names of rows: what a layer keeps for one live micro-batch of its stage, "act.3." or, of further ones, "act.3#1."
// (layout/recompute.h says what it does not keep);
// the output of the last layer; what a stage exchanges with its neighbours.
std::string saved_prefix(int64_t layer, int64_t slot);
std::string final_row(int64_t slot);
std::string stage_row(int stage, const std::string& name, int64_t slot = 0);
// Keys "k" or values "v" that a layer keeps while text is generated, where sample.tokens > 0.
constexpr const char* kCacheRows = "generation.";
std::string cache_row(int64_t layer, const std::string& name);
constexpr const char* kLargestLogits = "largest_logits";  // of each head in a layer (engine/qk_clip.h)
constexpr const char* kWeightSlots = "cache.weights";     // the slots of gathered weights
constexpr const char* kReplicaSlots = "replica.";  // before the name of a parameter: replica slots of its experts
constexpr const char* kReplicaGradient = "replica.received";  // a replica's gradient that has come home

// What the EP group of a layer gathers, where its transport gathers weights; else without pieces. local: the layer as a
// rank computes it; width: of the hidden state.
WeightGather weight_gather_of(TransportKind transport, const LayerSpec& local, int64_t width, const RunSpec& run,
                              const ExpertPlacement& placement, const Platform& platform);

// The parts of the table: weights, gradients and optimizer states of the parameters `rows` that a rank holds, and what
// it needs to compute its batch: data, activations, rows of the transports, workspaces.
std::vector<ByteRow> parameter_bytes(const std::vector<ParamRow>& rows, const ModelSpec& model, const RunSpec& run,
                                     const Mesh& mesh, const MeshCoords& coords,
                                     const std::vector<ExpertPlacement>& placements, const Platform& platform);
std::vector<ByteRow> activation_bytes(const ModelSpec& model, const RunSpec& run, const Mesh& mesh,
                                      const MeshCoords& coords, const std::vector<StagePlan>& stages,
                                      const std::vector<ExpertPlacement>& placements,
                                      const std::vector<TransportKind>& transports, const Platform& platform);

struct ByteSummary {
  int64_t by_kind[kByteKinds] = {};  // as committed at start
  int64_t fixed = 0;                 // rows that do not grow
  int64_t on_host = 0;               // of offloaded rows, which no other sum counts
  int64_t routed_mean = 0, routed_committed = 0, routed_max = 0;
  int64_t total() const { return fixed + routed_committed; }
};
ByteSummary summarise(const std::vector<ByteRow>& rows);

}  // namespace mw
