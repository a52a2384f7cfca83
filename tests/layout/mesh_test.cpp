#include "layout/mesh.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <tuple>

#include "layout/helpers.h"

namespace mw::test {
namespace {

// Every mesh of `world` ranks, pipeline and tensor parallel ones too.
std::vector<Mesh> meshes_of(int world) {
  std::vector<Mesh> meshes;
  for (int pp = 1; pp <= world; ++pp)
    for (int tp = 1; tp <= world; ++tp)
      for (int ep = 1; ep <= world; ++ep) {
        if (world % (pp * tp) != 0 || (world / pp) % ep != 0) continue;
        const int stage = world / pp;
        for (const bool ep_first : {true, false})
          meshes.push_back({world, pp, stage / tp, tp, ep, stage / ep, ep_first});
      }
  return meshes;
}

constexpr MeshAxis kAxes[] = {MeshAxis::world, MeshAxis::pp,  MeshAxis::dp,   MeshAxis::tp,
                              MeshAxis::ep,    MeshAxis::edp, MeshAxis::stage};

int size_of_axis(const Mesh& mesh, MeshAxis axis) {
  switch (axis) {
    case MeshAxis::world: return mesh.world;
    case MeshAxis::pp: return mesh.pp;
    case MeshAxis::dp: return mesh.dp;
    case MeshAxis::tp: return mesh.tp;
    case MeshAxis::ep: return mesh.ep;
    case MeshAxis::edp: return mesh.edp;
    case MeshAxis::stage: return mesh.dp * mesh.tp;
  }
  return 0;
}

int coordinate(const Mesh& mesh, const MeshCoords& c, MeshAxis axis, int rank) {
  switch (axis) {
    case MeshAxis::world: return rank;
    case MeshAxis::pp: return c.pp;
    case MeshAxis::dp: return c.dp;
    case MeshAxis::tp: return c.tp;
    case MeshAxis::ep: return c.ep;
    case MeshAxis::edp: return c.edp;
    case MeshAxis::stage: return c.dp * mesh.tp + c.tp;
  }
  return 0;
}

TEST(Mesh, RanksAndCoordinatesAreOneToOne) {
  for (int world = 1; world <= 16; ++world)
    for (const Mesh& mesh : meshes_of(world)) {
      std::set<std::tuple<int, int, int>> dense, sparse;
      for (int rank = 0; rank < world; ++rank) {
        const MeshCoords c = coords_of(mesh, rank);
        ASSERT_TRUE(c.pp >= 0 && c.pp < mesh.pp && c.dp >= 0 && c.dp < mesh.dp && c.tp >= 0 && c.tp < mesh.tp);
        ASSERT_TRUE(c.ep >= 0 && c.ep < mesh.ep && c.edp >= 0 && c.edp < mesh.edp);
        dense.emplace(c.pp, c.dp, c.tp);
        sparse.emplace(c.pp, c.ep, c.edp);
        // The formulas of the design, the way back.
        ASSERT_EQ((c.pp * mesh.dp + c.dp) * mesh.tp + c.tp, rank);
        const int r = c.dp * mesh.tp + c.tp;
        ASSERT_EQ(mesh.ep_first ? c.edp * mesh.ep + c.ep : c.ep * mesh.edp + c.edp, r);
      }
      ASSERT_EQ(dense.size(), static_cast<size_t>(world));
      ASSERT_EQ(sparse.size(), static_cast<size_t>(world));
    }
}

TEST(Mesh, GroupsPartitionTheWorld) {
  for (int world = 1; world <= 16; ++world)
    for (const Mesh& mesh : meshes_of(world))
      for (const MeshAxis axis : kAxes) {
        std::set<std::vector<int>> groups;
        for (int rank = 0; rank < world; ++rank) {
          const std::vector<int> group = group_of(mesh, axis, rank);
          ASSERT_EQ(group.size(), static_cast<size_t>(size_of_axis(mesh, axis)));
          ASSERT_NE(std::find(group.begin(), group.end(), rank), group.end());
          for (size_t i = 0; i < group.size(); ++i)  // ascending in the coordinate
            ASSERT_EQ(coordinate(mesh, coords_of(mesh, group[i]), axis, group[i]), static_cast<int>(i));
          groups.insert(group);
        }
        size_t members = 0;
        for (const std::vector<int>& group : groups) members += group.size();
        ASSERT_EQ(members, static_cast<size_t>(world));  // with the sizes above: no two groups share a rank
      }
}

TEST(Mesh, PlacementsByExample) {
  Mesh mesh{8, 1, 8, 1, 4, 2, true};
  EXPECT_EQ(group_of(mesh, MeshAxis::ep, 5), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(group_of(mesh, MeshAxis::edp, 5), (std::vector<int>{1, 5}));
  EXPECT_EQ(describe(mesh), "8 ranks: dp 8, ep 4 x edp 2 (ep-first)");
  mesh.ep_first = false;
  EXPECT_EQ(group_of(mesh, MeshAxis::ep, 5), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(group_of(mesh, MeshAxis::edp, 5), (std::vector<int>{4, 5}));
  EXPECT_EQ(describe(mesh), "8 ranks: dp 8, ep 4 x edp 2 (dp-first)");
  EXPECT_EQ(describe(Mesh{}).rfind("1 rank:", 0), 0u);
}

TEST(Mesh, IsMadeFromTheRunFile) {
  for (int world = 1; world <= 16; ++world)
    for (int ep = 1; ep <= 20; ++ep)
      for (const RankPlacement placement : {RankPlacement::ep_first, RankPlacement::dp_first}) {
        MeshSpec spec;
        spec.ep = ep;
        spec.placement = placement;
        if (world % ep == 0) {
          EXPECT_EQ(make_mesh(spec, world),
                    (Mesh{world, 1, world, 1, ep, world / ep, spec.placement == RankPlacement::ep_first}));
          continue;
        }
        // The error names sizes that work, and these do.
        const auto error = refusal_of([&] { make_mesh(spec, world); });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code(), Exit::config);
        EXPECT_TRUE(contains(error->what(), fmt::format("mesh.ep = {}", ep))) << error->what();
        constexpr std::string_view kBefore = "set mesh.ep to ";
        ASSERT_TRUE(error->hint().starts_with(kBefore)) << error->hint();
        std::string list = error->hint().substr(kBefore.size());
        if (list.starts_with("one of ")) list = list.substr(7);
        std::replace(list.begin(), list.end(), ',', ' ');
        std::istringstream sizes(list);
        int named = 0;
        for (MeshSpec other = spec; sizes >> other.ep; ++named) EXPECT_NO_THROW(make_mesh(other, world)) << other.ep;
        EXPECT_GE(named, 1);
      }
}

TEST(Mesh, ProductsBeyondAnIntAreRefused) {
  for (const int64_t size : {65536, 1 << 20}) {
    MeshSpec spec;
    spec.pp = spec.tp = size;
    const auto error = refusal_of([&] { make_mesh(spec, 8); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), Exit::config);
    EXPECT_TRUE(contains(error->what(), fmt::format("mesh.pp = {} x mesh.tp = {}", size, size))) << error->what();
  }
}

TEST(Mesh, RanksOutsideAreRefused) {
  error_of([] { make_mesh(MeshSpec{}, 0); }, Exit::internal);
  error_of([] { coords_of(Mesh{}, 1); }, Exit::internal);
  error_of([] { coords_of(Mesh{}, -1); }, Exit::internal);
}

}  // namespace
}  // namespace mw::test
