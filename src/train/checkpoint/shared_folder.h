// Whether all ranks write their checkpoints into one folder.
#pragma once

#include <chrono>
#include <string>

#include "comm/comm.h"

namespace mw {

// Network file systems show other nodes what is new with a delay: NFS after up to a minute.
constexpr std::chrono::seconds kFolderPatience{65};

// Rank 0 writes a file into `dir`, which exists, and all others look for it for up to `patience`; it is removed then.
// Without this check, the first save would be the first to fail. Collective over `world`. Errors: checkpoint, the same
// on all ranks, naming one that does not see the file.
void check_shared_folder(Comm& world, const std::string& dir, std::chrono::milliseconds patience = kFolderPatience);

}  // namespace mw
