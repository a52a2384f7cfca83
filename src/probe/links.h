// How fast ranks exchange, within a node and between nodes.
#pragma once

#include "comm/world.h"
#include "probe/meter.h"
#include "spec/platform_profile.h"

namespace mw {

// Fills `levels`: the ranks of a node, where several share one, and all ranks, where there are several nodes; one level
// of one rank for a world of one. All groups of a level are measured at the same time. GPUs exchange as runs do, which
// profile.libraries then has a row for. Also overlap_slowdown, on GPUs. Ranks of a node must be consecutive. Collective
// over the world. Errors: comm; usage, when nodes hold different numbers of ranks.
void measure_links(World& world, Meter& meter, Stream& stream, PlatformProfile& profile);

// How many groups of other shapes measure_groups would measure: 0 for a world of three, say.
int count_group_shapes(World& world);

// Fills `groups` of the levels that measure_links left: of a node of 8 ranks those of 2 and 4 next to each other and at
// distances, and one rank of every node. Collective over the world. Errors: comm.
void measure_groups(World& world, Meter& meter, Stream& stream, PlatformProfile& profile);

}  // namespace mw
