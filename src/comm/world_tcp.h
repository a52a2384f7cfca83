// A world without MPI: ranks that were started one by one and exchange messages over TCP.
#pragma once

#include "comm/bootstrap/tcp_join.h"
#include "comm/world.h"

namespace mw {

// Collective over the future ranks. Errors: comm.
std::unique_ptr<World> start_tcp_world(const JoinSpec& spec);

}  // namespace mw
