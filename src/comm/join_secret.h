// The secret that only the processes of one job know.
#pragma once

#include <optional>

#include "comm/mac.h"

namespace mw {

// How a user makes one, for hints and warnings.
extern const char* const kMakeSecret;

// From MOEWRIGHT_JOIN_SECRET, or from the file that MOEWRIGHT_JOIN_SECRET_FILE names, whose white space at the end does
// not count. None where neither is set. Errors: comm, when both are set, the secret has fewer than 16 characters, or
// the file cannot be read, belongs to another user or is open to others.
std::optional<JoinKey> read_join_secret();

}  // namespace mw
