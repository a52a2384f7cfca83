// Seconds that groups of ranks exchange data in, by the levels of links of a platform.
#pragma once

#include <cstdint>

#include "layout/mesh.h"
#include "layout/platform_profile.h"

namespace mw {

// Members at equal distances; blocks of such groups fill the ranks.
struct RankGroup {
  int64_t size = 1, stride = 1;
  bool operator==(const RankGroup&) const = default;
};

RankGroup tp_group(const Mesh& mesh);
RankGroup ep_group(const Mesh& mesh);
// Of the replicas that sum a gradient.
RankGroup replica_group(const Mesh& mesh, Replicas replicas);

// Members of a group that are on the same `together` ranks, which links join, of `ranks` in all: of the group that has
// fewest there. Groups of 6 on nodes of 8 have 2, since some lie across a border.
int64_t members_near(RankGroup group, int64_t together, int64_t ranks);

// Those that share a node: of mesh.ranks_per_node, or the profile's.
int64_t ranks_per_node(const RunSpec& run, const PlatformProfile& profile);

// Of `profile`, which must outlive it, and of `ranks` in all. Every group of the same kind is at work at the same time,
// and the slowest counts.
class Transfers {
 public:
  Transfers(const PlatformProfile& profile, int64_t ranks)
      : levels_(profile.levels), overlaps_sums_(profile.overlaps_gradient_sums), ranks_(ranks) {}

  // `bytes`: what a rank has for all members, itself included. Shares for members behind farther links travel at the
  // same time over those. beyond: what travels over any but the nearest links, as a share of it for even loads.
  double all_to_all(RankGroup group, double bytes, double beyond = 1) const;
  // Whether several of them that start together cost one latency: between GPUs, where sums overlap too (comm/comm.h).
  bool start_together() const { return overlaps_sums_; }
  // A gather or scatter of `bytes` in all, once around; twice for a sum. Members of a node share its links outward, so
  // that the few that one ring uses are faster the more members it has there.
  double ring(RankGroup group, double bytes, double times) const;
  // What members sum and one of them gets, or what one has and all get: as ZeRO does with nearly every parameter.
  double owner(RankGroup group, double bytes) const;
  // At least, for bytes that a rank sends within the nearest links of a group and over the farthest at the same time.
  double at_best(RankGroup group, double within, double between) const;
  double message(int64_t from, int64_t to, double bytes) const;
  // Members of a group that share one of the farthest links it uses.
  int64_t members_per_link(RankGroup group) const;

 private:
  // Members of a group that are near each other at a level; all at the last one.
  int64_t near(RankGroup group, const LinkLevel& level) const;
  const std::vector<LinkLevel>& levels_;
  bool overlaps_sums_;
  int64_t ranks_;
};

}  // namespace mw
