// Examples that `moewright COMMAND --help` ends with.
#pragma once

#include <string>

namespace mw {

// "Examples:" and a few lines, or "" for a command without any.
std::string examples_of(const std::string& command);

}  // namespace mw
