// Memory of a rank in closed form: the sums of make_plan's table of bytes without making the table, for searches over
// many layouts. What one layer costs is taken from that very table, once for each kind of layer and shape of a rank; a
// test holds the two together, byte by byte.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "config/model_spec.h"
#include "layout/byte_table.h"
#include "layout/muon_plan.h"
#include "layout/stages.h"
#include "planner/layout.h"

namespace mw {

// The layers of a model, each as the index of its kind: layers that are equal are of one kind.
struct LayerKinds {
  ModelSpec model;                      // with one layer of each kind
  std::vector<std::string> transports;  // by kind: their names, as transport_names gives them
  std::vector<int> of_layer;            // by layer of the whole model
  // By kind, one more than layers: how many of the layers before are of that kind.
  std::vector<std::vector<int64_t>> before;
  // Layers of one kind have equal specs and transports. At most 16 kinds. Errors: unsupported beyond; of
  // transport_names.
  LayerKinds(const ModelSpec& whole, const std::string& transport);
  int count() const { return static_cast<int>(model.layers.size()); }
  int64_t layers_in(const StagePlan& stage, int kind) const {
    const std::vector<int64_t>& of_kind = before[static_cast<size_t>(kind)];
    return of_kind[static_cast<size_t>(stage.end_layer)] - of_kind[static_cast<size_t>(stage.first_layer)];
  }
  const LayerSpec& spec(int kind) const { return model.layers[static_cast<size_t>(kind)]; }
};

void add(ByteSummary& into, const ByteSummary& from, int64_t times = 1);

// Products of Newton-Schulz steps.
struct MuonWork {
  double flops = 0, products = 0;
};

class MemoryModel {
 public:
  MemoryModel(const ModelSpec& model, const RunSpec& run, const Platform& platform);

  // The next two are summarise(all_rows(make_plan(...))) of the rank at `coords`, which holds `stages`. No function of
  // this class is for several threads at once.
  // Parameters, gradients and what the optimizer keeps: the same for all micro-batches and ways to recompute.
  ByteSummary parameters(const Layout& layout, const Mesh& mesh, const MeshCoords& coords,
                         const std::vector<StagePlan>& stages);
  // The rest, by pipeline rank, of the ranks whose other coordinates are those of `coords`.
  std::vector<ByteSummary> activations(const Layout& layout, const Mesh& mesh, const MeshCoords& coords,
                                       const std::vector<std::vector<StagePlan>>& pipeline);
  // What this rank has to do to make the matrices that it updates orthogonal; of split ones, its share.
  MuonWork muon_work(const Layout& layout, const Mesh& mesh, const MeshCoords& coords,
                     const std::vector<StagePlan>& stages);
  // Bytes of gradients that this rank sums over each set of replicas.
  std::array<int64_t, kReplicas> gradient_bytes(const Mesh& mesh, const MeshCoords& coords,
                                                const std::vector<StagePlan>& stages);
  const LayerKinds& kinds() const { return kinds_; }
  // Of a rank's EP group: the ranks on its node, those that it is the gateway of, and by kind of layer the experts on
  // its node and on each other one.
  struct GatewayLoad {
    int64_t near = 1, sources = 0;
    std::vector<int64_t> experts;
    auto operator<=>(const GatewayLoad&) const = default;
  };
  // Of all ranks of the world; empty where they are alike, or no layer's rows go by way of nodes.
  const std::vector<GatewayLoad>& gateway_loads_of(const Mesh& mesh);
  const std::vector<ExpertPlacement>& placements_of(int ep);  // by kind
  // What the rank at `coords` gathers of a layer of this kind.
  LayerPieces pieces_of_kind(int kind, const Layout& layout, const Mesh& mesh, const MeshCoords& coords);

 private:
  // What one rank of a given shape keeps and shares.
  struct Activations {
    std::vector<ByteSummary> saved;                    // by kind, for one live micro-batch
    std::vector<ByteSummary> cached;                   // by kind: for generation
    std::vector<LayerPieces> pieces;                   // by kind
    std::unordered_map<uint32_t, ByteSummary> shared;  // by the set of kinds on the rank
    ByteSummary head;                                  // scratch of the loss head
    int64_t boundary_bytes = 0;                        // of the residual stream between layers
    int64_t tokens = 0;                                // of the data-parallel rank
  };
  // Neighbouring gradients of one sort.
  struct Stretch {
    int64_t elements = 0, gap = 0;  // gap: of these, behind the end, without room in fp32 tensors
    int64_t cut_master = 0;         // bytes of each one's master weight where ZeRO cuts it too; else 0
    int moments = 2;
  };
  struct BlockPart {
    int64_t elements = 0, gap = 0, cut_master_bytes = 0;
    int64_t gathered = 0;  // elements of the largest matrix that must be whole to be packed
    std::vector<Stretch> stretches;
    MuonWork muon;
  };
  // Neighbouring parameters: of a layer, or one outside the layers.
  struct Params {
    ByteSummary whole;  // nothing cut
    std::array<BlockPart, kReplicas> blocks;
    int64_t expert_matrix = 0;  // elements of the largest
    MuonBuffers muon;
  };
  struct RankParams {
    std::vector<Params> layers;  // by kind
    Params embedding, tied_embedding, final_norm, head;
  };

  using Shape = std::array<int, 4>;  // sizes of TP and EP, and the rank's place in them
  // What activations of ranks of one shape, among the same nodes, depend on.
  struct Tokens {
    int64_t own = 0, of_group = 0, most = 0;  // of the data-parallel rank, the EP group and any rank, in a micro-batch
    Recompute recompute = Recompute::none;
    auto operator<=>(const Tokens&) const = default;
  };

  Activations& activations_of(const Layout& layout, const Mesh& mesh, const MeshCoords& coords);
  std::vector<GatewayLoad> loads_of_members(const Islands& islands);
  RunSpec run_of_one_micro_batch(const Layout& layout) const;
  std::vector<ByteRow> probe(const Layout& layout, const Mesh& mesh, const MeshCoords& coords, uint32_t kinds,
                             bool head);
  const ByteSummary& shared_of(Activations& parts, const Layout& layout, const Mesh& mesh, const MeshCoords& coords,
                               uint32_t kinds);
  const RankParams& params_of(const Mesh& mesh, const MeshCoords& coords);
  Params params_of_row(const ParamRow& row, const Mesh& mesh, const MeshCoords& coords, bool has_head);
  // In the order of their gradients.
  std::vector<const Params*> parts_of(const Mesh& mesh, const MeshCoords& coords, const std::vector<StagePlan>& stages);
  int64_t moments_in(const std::vector<const Params*>& parts, size_t block, int64_t begin, int64_t end) const;
  void cut(ByteSummary& sum, const std::vector<const Params*>& parts, const Mesh& mesh, const MeshCoords& coords) const;
  void add_sum_pieces(ByteSummary& sum, const std::vector<const Params*>& parts, const Mesh& mesh) const;
  void add_square_sums(ByteSummary& sum, const std::vector<const Params*>& parts, const Mesh& mesh) const;
  void add_replica_gradient(ByteSummary& sum, const std::vector<const Params*>& parts, const Mesh& mesh) const;

  LayerKinds kinds_;
  RunSpec run_;
  Platform platform_;
  std::map<int, std::vector<ExpertPlacement>> placements_;
  std::map<std::array<int, 5>, std::vector<GatewayLoad>> gateway_loads_;  // by sizes and order of the mesh
  std::vector<ParamRow> param_rows_;                                      // of the model with one layer of each kind
  std::map<std::pair<Shape, NodesSeen>, std::map<Tokens, Activations>> activations_;
  std::map<std::pair<std::array<int, 5>, int>, std::map<Tokens, Activations>*> of_rank_;  // of these, by mesh and rank
  std::map<Shape, RankParams> params_;
};

}  // namespace mw
