// Sub-commands: one file each. A command registers its options and returns the exit code of its run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cli/command_line.h"

namespace mw {

struct Command {
  Subcommand sub;
  std::function<Exit()> run;
};

// What a command may need of the process.
struct Invocation {
  int* argc = nullptr;
  char*** argv = nullptr;
};

// Commands of this build, in the order that the help prints them.
std::vector<Command> register_commands(CommandLine& line, const Invocation& invocation);

Command add_init_command(CommandLine& line);
Command add_schedule_command(CommandLine& line);
Command add_plan_command(CommandLine& line);
// These two print what they find in `line` when they run.
Command add_completion_command(CommandLine& line);
Command add_manual_command(CommandLine& line);

// For what the file system refused where no better message is at hand.
constexpr const char* kFilesystemHint = "check the path, its permissions and the free space of the disk";

// Prints an error as every command does: what, then the hint.
void print_error(const Error& error, const std::string& prefix);

// Refuses to write over a file of another kind, which a mistaken name or a wildcard may stand for: one that is not
// empty and does not begin with `begin`. Returns whether there is one of the right kind, which will be replaced.
// Errors: Exit::usage, with `hint`.
bool refuse_other_file(const std::string& path, std::string_view begin, const char* kind, const char* hint);

// Checks before long work that a picture can be written to `path`, which `option` names. Errors: as refuse_other_file
// and check_output.
void check_picture(const std::string& path, const char* option);

// Version and commit, for --version and for files that record where they come from.
std::string version_text();

}  // namespace mw
