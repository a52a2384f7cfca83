#include "layout/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

std::string a_divisor_of(int n) {
  std::vector<int> divisors;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) divisors.push_back(d);
  return n == 1 ? "1" : fmt::format("one of {}", fmt::join(divisors, ", "));
}

// A hint for a run that was started as one process although its layout needs several.
std::string more_ranks(int world, int64_t ranks) {
  if (world > 1 || ranks < 2 || ranks > 1 << 20) return "";
  return fmt::format(", or start more ranks: mpirun -np {} moewright ...", ranks);
}

}  // namespace

Mesh make_mesh(const MeshSpec& spec, int world, MoeTpMode tp_mode) {
  MW_CHECK(world >= 1, "a world of {} ranks", world);
  Mesh mesh;
  mesh.world = world;
  mesh.ep_first = spec.placement == RankPlacement::ep_first;
  if (world % (spec.pp * spec.tp) != 0)  // in 64 bits: each of them may be a million
    fail(Exit::config,
         fmt::format("the run has {}, which is not a multiple of mesh.pp = {} x mesh.tp = {}", counted(world, "rank"),
                     spec.pp, spec.tp),
         fmt::format("choose mesh.pp and mesh.tp so that their product is {}{}", a_divisor_of(world),
                     more_ranks(world, spec.pp * spec.tp)));
  mesh.pp = static_cast<int>(spec.pp);
  mesh.tp = static_cast<int>(spec.tp);
  const int stage = world / mesh.pp;
  mesh.dp = stage / mesh.tp;
  mesh.ted = mesh.tp > 1 && tp_mode == MoeTpMode::ted;
  const int shared = mesh.ted ? mesh.dp : stage;  // ranks that share the experts out
  if (spec.ep > shared || shared % spec.ep != 0)
    fail(Exit::config,
         fmt::format("mesh.ep = {} does not divide the {} of {}", spec.ep,
                     counted(shared, mesh.ted ? "data-parallel rank" : "rank"),
                     mesh.pp == 1 ? "the run" : "a pipeline stage"),
         fmt::format("set mesh.ep to {}{}", a_divisor_of(shared), more_ranks(world, spec.ep)));
  mesh.ep = static_cast<int>(spec.ep);
  mesh.edp = shared / mesh.ep;
  return mesh;
}

PipelineShape pipeline_shape(const MeshSpec& spec, int64_t micro_batches) {
  PipelineShape shape;
  shape.kind = spec.schedule;
  shape.ranks = static_cast<int>(spec.pp);
  if (shape.kind == ScheduleKind::interleaved) shape.chunks = static_cast<int>(spec.chunks);
  if (shape.kind == ScheduleKind::zb_v) shape.chunks = 2;
  shape.micro_batches = micro_batches;
  return shape;
}

MeshCoords coords_of(const Mesh& mesh, int rank) {
  MW_CHECK(rank >= 0 && rank < mesh.world, "rank {} of {}", rank, mesh.world);
  MeshCoords c;
  const int stage = mesh.dp * mesh.tp;
  const int r = rank % stage;
  c.pp = rank / stage;
  c.dp = r / mesh.tp;
  c.tp = r % mesh.tp;
  const int shared = mesh.ted ? c.dp : r;
  c.ep = mesh.ep_first ? shared % mesh.ep : shared / mesh.edp;
  c.edp = mesh.ep_first ? shared / mesh.ep : shared % mesh.edp;
  return c;
}

int rank_of(const Mesh& mesh, const MeshCoords& coords) {
  return (coords.pp * mesh.dp + coords.dp) * mesh.tp + coords.tp;
}

std::vector<int> group_of(const Mesh& mesh, MeshAxis axis, int rank) {
  const MeshCoords own = coords_of(mesh, rank);
  const int stage = mesh.dp * mesh.tp;
  const int unit = mesh.ted ? mesh.tp : 1;  // the distance of neighbours among the ranks that share experts out
  int count = 0, stride = 1, place = 0;
  switch (axis) {
    case MeshAxis::world: count = mesh.world, place = rank; break;
    case MeshAxis::pp: count = mesh.pp, stride = stage, place = own.pp; break;
    case MeshAxis::dp: count = mesh.dp, stride = mesh.tp, place = own.dp; break;
    case MeshAxis::tp: count = mesh.tp, place = own.tp; break;
    case MeshAxis::ep: count = mesh.ep, stride = mesh.ep_first ? unit : mesh.edp * unit, place = own.ep; break;
    case MeshAxis::edp: count = mesh.edp, stride = mesh.ep_first ? mesh.ep * unit : unit, place = own.edp; break;
    case MeshAxis::stage: count = stage, place = rank % stage; break;
  }
  std::vector<int> group;
  for (int i = 0; i < count; ++i) group.push_back(rank + (i - place) * stride);
  return group;
}

std::string describe(const Mesh& mesh) {
  return fmt::format("{}: {}dp {}, {}ep {} x edp {} ({}{})", counted(mesh.world, "rank"),
                     mesh.pp > 1 ? fmt::format("pp {}, ", mesh.pp) : "", mesh.dp,
                     mesh.tp > 1 ? fmt::format("tp {}, ", mesh.tp) : "", mesh.ep, mesh.edp,
                     mesh.ep_first ? "ep-first" : "dp-first", mesh.ted ? ", experts cut over tp" : "");
}

}  // namespace mw
