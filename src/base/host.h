// What a process asks of its machine.
#pragma once

#include <string>

namespace mw {

// The machine's name in its network, or "localhost" where it has none.
std::string host_name();

// Seconds on a clock that never goes back. Only differences of two values mean anything.
double now_seconds();

}  // namespace mw
