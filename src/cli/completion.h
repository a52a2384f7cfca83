// Completion scripts for shells, from the table of commands.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"

namespace mw {

// A key of a run file and the values that it takes; no choices: any.
struct CompletedKey {
  std::string key;
  std::vector<std::string> choices;
};

// Each script completes commands, options, their choices, keys of run files with their choices after `=` (bash), and
// otherwise file names. A command takes keys if it has the argument OVERRIDES.
std::string bash_completion(const std::vector<CommandInfo>& commands, const std::vector<CompletedKey>& keys);
std::string zsh_completion(const std::vector<CommandInfo>& commands, const std::vector<CompletedKey>& keys);
std::string fish_completion(const std::vector<CommandInfo>& commands, const std::vector<CompletedKey>& keys);

}  // namespace mw
