// A Comm over an MPI communicator, on host memory.
#pragma once

#include <mpi.h>
#include <memory>

#include "comm/mpi_exchange.h"

namespace mw {

// owned: the destructor frees `comm`. All groups of a process share `progress` and `open`, which must outlive them.
// Errors: comm.
std::unique_ptr<Comm> make_mpi_comm(MPI_Comm comm, bool owned, Progress& progress, OpenExchanges& open);

}  // namespace mw
