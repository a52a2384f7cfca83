// Errors: one exception type that carries an exit code and a hint. Library code throws; only `cli` exits.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace mw {

// Process exit codes, listed for users in docs/troubleshooting.md. Errors never end the process by a signal.
enum class Exit : int {
  ok = 0,
  check_failed = 1,  // verify, parity: numbers differ beyond tolerance; doctor: a problem; finished: steps remain
  usage = 2,         // command line
  config = 3,        // run file, model config, impossible mesh
  data = 4,          // token files, safetensors, text
  checkpoint = 5,    // checkpoint refused
  memory = 6,        // does not fit
  numeric = 7,       // NaN or Inf in training
  comm = 8,          // a collective or another rank failed
  unsupported = 9,   // recognized, but not implemented or not compiled into this build
  stalled = 10,      // the watchdog: a rank stopped answering, or no rank made progress
  internal = 70,     // a broken invariant: our bug
};

class Error : public std::runtime_error {
 public:
  Error(Exit code, const std::string& message, std::string hint)
      : std::runtime_error(message), code_(code), hint_(std::move(hint)) {}
  Exit code() const { return code_; }
  const std::string& hint() const { return hint_; }

 private:
  Exit code_;
  std::string hint_;
};

// Throws Error. `message` names what failed, where, the expected value and the actual one; `hint` says what to do about
// it (may be empty).
[[noreturn]] void fail(Exit code, const std::string& message, const std::string& hint = {});

// For broken invariants only. Errors that a user can cause use `fail` with a hint.
[[noreturn]] void fail_invariant(const char* condition, const char* file, int line, const std::string& message);

}  // namespace mw

// MW_CHECK(cond, "format {}", value): an invariant of the program itself.
#define MW_CHECK(cond, ...)                                                      \
  do {                                                                           \
    if (!(cond)) [[unlikely]]                                                    \
      ::mw::fail_invariant(#cond, __FILE__, __LINE__, fmt::format(__VA_ARGS__)); \
  } while (0)
