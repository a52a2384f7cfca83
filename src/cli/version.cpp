#include "cli/commands.h"

namespace mw {

std::string version_text() { return "moewright " MOEWRIGHT_VERSION " (" MOEWRIGHT_COMMIT ")"; }

}  // namespace mw
