#include "base/error.h"

namespace mw {

void fail(Exit code, const std::string& message, const std::string& hint) { throw Error(code, message, hint); }

void fail_invariant(const char* condition, const char* file, int line, const std::string& message) {
  throw Error(Exit::internal, fmt::format("{}:{}: broken invariant ({}): {}", file, line, condition, message),
              "this is a bug in Moewright; please report it with the command and the run file");
}

}  // namespace mw
