#include "planner/transfers.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mw {

RankGroup tp_group(const Mesh& mesh) { return {mesh.tp, 1}; }

namespace {

// Ranks that hold the same experts, or slices of them, next to each other.
int64_t slices(const Mesh& mesh) { return mesh.ted ? mesh.tp : 1; }

}  // namespace

RankGroup ep_group(const Mesh& mesh) { return {mesh.ep, slices(mesh) * (mesh.ep_first ? 1 : mesh.edp)}; }

RankGroup replica_group(const Mesh& mesh, Replicas replicas) {
  switch (replicas) {
    case Replicas::dp: return {mesh.dp, mesh.tp};
    case Replicas::stage: return {int64_t{mesh.dp} * mesh.tp, 1};
    case Replicas::edp: return {mesh.edp, slices(mesh) * (mesh.ep_first ? mesh.ep : 1)};
  }
  return {};
}

int64_t members_near(RankGroup group, int64_t together, int64_t ranks) {
  if (together >= ranks) return group.size;
  // Groups fill blocks of ranks; where those are no parts of a node, nor nodes of theirs, the common divisor is the
  // smallest piece that a border cuts off.
  return std::clamp<int64_t>(std::gcd(together, group.stride * group.size) / group.stride, 1, group.size);
}

int64_t ranks_per_node(const RunSpec& run, const PlatformProfile& profile) {
  return run.mesh.ranks_per_node > 0 ? run.mesh.ranks_per_node : profile.ranks_per_node;
}

int64_t Transfers::near(RankGroup group, const LinkLevel& level) const {
  return &level == &levels_.back() ? group.size : members_near(group, level.ranks, ranks_);
}

namespace {

struct Costs {
  const LinkCost &all_to_all, &ring;
  const std::optional<LinkCost>& owner;
};

// Those of the measured group that is most like this one: in members first, then in how far apart they are.
Costs costs_of(const LinkLevel& level, int64_t members, int64_t stride) {
  const auto apart = [](int64_t a, int64_t b) {
    return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
  };
  const auto unlike = [&](int64_t ranks, int64_t distance) {
    return 2 * apart(members, ranks) + apart(stride, distance);
  };
  const GroupCosts* found = nullptr;
  if (level.groups) {
    double least = unlike(level.ranks, 1);
    for (const GroupCosts& group : *level.groups) {
      const double by = unlike(group.ranks, group.stride);
      if (by < least) found = &group;
      least = std::min(least, by);
    }
  }
  if (found == nullptr) return {level.all_to_all, level.ring, level.owner};
  return {found->all_to_all, found->ring, found->owner};
}

}  // namespace

double Transfers::all_to_all(RankGroup group, double bytes, double beyond) const {
  double seconds = 0, latency = 0;
  int64_t inside = 1;
  for (const LinkLevel& level : levels_) {
    const int64_t members = near(group, level);
    if (members > inside) {
      const double sent = (&level == levels_.data() ? 1 : beyond) * bytes * static_cast<double>(members - inside) /
                          static_cast<double>(group.size);
      const LinkCost& cost = costs_of(level, members, group.stride).all_to_all;
      seconds = std::max(seconds, sent / cost.rate(sent));
      latency = cost.latency_s;
    }
    inside = members;
  }
  return latency + seconds;
}

double Transfers::ring(RankGroup group, double bytes, double times) const {
  if (group.size == 1) return 0;
  const double around = times * bytes * static_cast<double>(group.size - 1) / static_cast<double>(group.size);
  double seconds = 0, latency = 0;
  int64_t inside = 1;
  for (const LinkLevel& level : levels_) {
    const int64_t members = near(group, level);
    if (members > inside) {
      const double own = around / static_cast<double>(inside);
      const LinkCost& cost = costs_of(level, members, group.stride).ring;
      seconds = std::max(seconds, own / cost.rate(own));
      latency = cost.latency_s * times;
    }
    inside = members;
  }
  return latency + seconds;
}

double Transfers::owner(RankGroup group, double bytes) const {
  if (group.size == 1) return 0;
  const LinkCost* measured = nullptr;
  int64_t inside = 1;
  for (const LinkLevel& level : levels_) {
    const int64_t members = near(group, level);
    if (members > inside) {
      const std::optional<LinkCost>& owner = costs_of(level, members, group.stride).owner;
      measured = owner ? &*owner : nullptr;
    }
    inside = members;
  }
  if (measured != nullptr) return measured->seconds(bytes);
  // Around a ring the links reach the owner from one side; the host does one owner after the other.
  const auto members = static_cast<double>(group.size);
  return ring(group, bytes, overlaps_sums_ ? members / (members - 1) : 2);
}

double Transfers::at_best(RankGroup group, double within, double between) const {
  double seconds = 0, latency = 0;
  int64_t inside = 1;
  for (const LinkLevel& level : levels_) {
    const int64_t members = near(group, level);
    if (members > inside) {
      const LinkCost& cost = costs_of(level, members, group.stride).all_to_all;
      const double bytes = inside > 1 ? between : members < group.size ? within : within + between;
      seconds = std::max(seconds, bytes / cost.rate(bytes));
      latency = cost.latency_s;
    }
    inside = members;
  }
  return latency + seconds;
}

int64_t Transfers::members_per_link(RankGroup group) const {
  int64_t sharing = 1, inside = 1;
  for (const LinkLevel& level : levels_) {
    const int64_t members = near(group, level);
    if (members > inside) sharing = std::clamp<int64_t>(level.ranks_per_link.value_or(1) / group.stride, 1, inside);
    inside = members;
  }
  return sharing;
}

double Transfers::message(int64_t from, int64_t to, double bytes) const {
  for (const LinkLevel& level : levels_)
    if (from / level.ranks == to / level.ranks) return level.message.seconds(bytes);
  return levels_.back().message.seconds(bytes);
}

}  // namespace mw
