// The shared secret of a job, by which its processes recognize each other.
#pragma once

#include <optional>

#include "comm/bootstrap/mac.h"

namespace mw {

// The command that creates a secret, for hints and warnings.
extern const char* const kMakeSecret;

// Reads the secret from MOEWRIGHT_JOIN_SECRET, or from the file that MOEWRIGHT_JOIN_SECRET_FILE names (without trailing
// white space). None where neither is set. Errors: comm, when both are set, the secret has fewer than 16 characters, or
// the file cannot be read, belongs to another user or is accessible to others.
std::optional<JoinKey> read_join_secret();

}  // namespace mw
