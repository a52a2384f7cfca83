// The process mesh: world = PP x R, rank = (pp * DP + dp) * TP + tp; a stage's R ranks are DP x TP
// to dense blocks and EDP x EP to MoE blocks. With tensor-sharded experts (moe.tp_mode = "ted") MoE blocks see
// EDP x EP x TP.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_spec.h"
#include "layout/schedule/schedule.h"

namespace mw {

struct MeshCoords {
  int pp = 0, dp = 0, tp = 0, ep = 0, edp = 0;
};

struct Mesh {
  int world = 1, pp = 1, dp = 1, tp = 1, ep = 1, edp = 1;
  bool ep_first = true;
  bool ted = false;  // experts are cut over TP, tokens are not; false where TP is 1
  bool operator==(const Mesh&) const = default;
};

// The groups that communicate: who shares every other coordinate.
// Stage: all ranks of one pipeline coordinate.
enum class MeshAxis : uint8_t { world, pp, dp, tp, ep, edp, stage };

// The ranks that sum a gradient: a slice of a weight is the same over DP, a weight that every rank of a stage holds
// whole and of which each saw a share of the tokens over the stage, routed experts over EDP.
enum class Replicas : uint8_t { dp, stage, edp };
constexpr int kReplicas = 3;

// Errors: config with the divisor that fails and the nearest sizes that work.
Mesh make_mesh(const MeshSpec& spec, int world, MoeTpMode tp_mode = MoeTpMode::ssmb);
// The pipeline that a run asks for.
PipelineShape pipeline_shape(const MeshSpec& spec, int64_t micro_batches);
MeshCoords coords_of(const Mesh& mesh, int rank);
int rank_of(const Mesh& mesh, const MeshCoords& coords);  // by pp, dp and tp
// World ranks of the group of `rank` along `axis`, ascending in that coordinate.
std::vector<int> group_of(const Mesh& mesh, MeshAxis axis, int rank);
std::string describe(const Mesh& mesh);  // "8 ranks: dp 8, ep 4 x edp 2 (ep-first)"

}  // namespace mw
