// Mistakes on the command line, in the form of all other errors.
#pragma once

#include <CLI/CLI.hpp>

#include "base/error.h"

namespace mw {

// What is wrong, the usage of the command that was called, and what a mistyped option may have meant. `error` came from
// app.parse() and is neither a call for help nor for the version.
Error usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace mw
