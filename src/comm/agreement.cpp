#include "comm/agreement.h"

#include <optional>

#include "base/error.h"

namespace mw {

void agree(Comm& comm, const std::function<void()>& work) {
  std::optional<Error> own;
  try {
    work();
  } catch (const Error& error) {
    own = error;
  }
  int64_t lowest = own ? -comm.rank() : -comm.size();  // of the ranks with an error, negated
  comm.all_reduce_max(std::span(&lowest, 1));
  if (lowest == -comm.size()) return;
  const auto root = static_cast<int>(-lowest);
  auto code = static_cast<int64_t>(own ? own->code() : Exit::ok);
  comm.broadcast(std::as_writable_bytes(std::span(&code, 1)), root);
  const std::string message = broadcast_text(comm, own ? own->what() : "", root),
                    hint = broadcast_text(comm, own ? own->hint() : "", root);
  fail(static_cast<Exit>(code), message, hint);
}

bool on_any_rank(Comm& comm, bool own) {
  int64_t any = own ? 1 : 0;
  comm.all_reduce_max(std::span(&any, 1));
  return any != 0;
}

}  // namespace mw
