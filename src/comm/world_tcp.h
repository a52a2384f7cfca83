// A world without MPI: ranks that were started one by one and send one another messages over TCP.
#pragma once

#include "comm/tcp_join.h"
#include "comm/world.h"

namespace mw {

// Collective over the ranks to be. Errors: comm.
std::unique_ptr<World> start_tcp_world(const JoinSpec& spec);

}  // namespace mw
