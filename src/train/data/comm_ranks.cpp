#include "train/data/comm_ranks.h"

#include <optional>

#include "base/error.h"
#include "comm/watchdog/watchdog.h"

namespace mw {

void CommRanks::agree(const std::function<void()>& work) const {
  std::optional<Error> own;
  try {
    work();
  } catch (const Error& error) {
    own = error;
  }
  int64_t lowest = own ? -rank() : -size();  // of the ranks with an error, negated
  comm_.all_reduce_max(std::span(&lowest, 1));
  if (lowest == -size()) return;
  const auto root = static_cast<int>(-lowest);
  auto code = static_cast<int64_t>(own ? own->code() : Exit::ok);
  comm_.broadcast(std::as_writable_bytes(std::span(&code, 1)), root);
  const std::string message = broadcast_text(comm_, own ? own->what() : "", root),
                    hint = broadcast_text(comm_, own ? own->hint() : "", root);
  fail(static_cast<Exit>(code), message, hint);
}

void CommRanks::note_progress() const { note_work(comm_, "open_data"); }

}  // namespace mw
