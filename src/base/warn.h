// What a user should know although all goes on.
#pragma once

#include <string>

namespace mw {

// Writes "warning: ..." to the error output, the same text once per process.
void warn_once(const std::string& text);

}  // namespace mw
