// Measures how fast ranks exchange data, within a node and between nodes.
#pragma once

#include "comm/world.h"
#include "layout/platform_profile.h"
#include "probe/meter.h"

namespace mw {

// Fills `levels`: one for the ranks of a node, where a node has several, and one for all ranks, where there are several
// nodes; a world of one rank gets one level. All groups of a level are measured at the same time. GPUs exchange as runs
// do; profile.libraries then has a row for their library. On GPUs also fills overlap_slowdown. Ranks of a node must be
// consecutive. Collective over the world. Errors: comm; usage, when nodes have different numbers of ranks.
void measure_links(World& world, Meter& meter, Stream& stream, PlatformProfile& profile);

// The number of group shapes that measure_groups would measure: for example 0 for a world of three.
int count_group_shapes(World& world);

// Fills `groups` of the levels that measure_links left: on a node of 8 ranks the groups of 2 and 4 ranks, adjacent or
// strided, and one rank of every node. Collective over the world. Errors: comm.
void measure_groups(World& world, Meter& meter, Stream& stream, PlatformProfile& profile);

}  // namespace mw
