#include "train/data/comm_ranks.h"

#include "comm/agreement.h"
#include "comm/watchdog/watchdog.h"

namespace mw {

void CommRanks::agree(const std::function<void()>& work) const { mw::agree(comm_, work); }

void CommRanks::note_progress() const { note_work(comm_, "open_data"); }

}  // namespace mw
