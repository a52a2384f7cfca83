// moewright: the one place that turns errors into exit codes.
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <vector>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/examples.h"
#include "cli/process_settings.h"

namespace mw {

void print_error(const Error& error, const std::string& prefix) {
  std::fflush(stdout);
  std::string text = fmt::format("moewright: {}error: {}\n", prefix, error.what());
  if (!error.hint().empty()) text += fmt::format("  hint: {}\n", error.hint());
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

// The arguments, with "help COMMAND" and "help" as what CLI11 calls them.
static std::vector<std::string> command_line(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "help") {
    arguments.erase(arguments.begin());
    arguments.resize(std::min<size_t>(arguments.size(), 1));
    arguments.emplace_back("--help");
  }
  return arguments;
}

static std::string known_commands(const std::vector<std::string>& names) {
  return fmt::format("use one of: {}; `moewright help COMMAND` explains one", fmt::join(names, ", "));
}

static Exit run(int argc, char** argv) {
  CommandLine line("moewright", "Moewright trains Mixture-of-Experts transformers from a laptop to a cluster.",
                   version_text(),
                   "`moewright COMMAND --help` explains a command. Exit codes: docs/troubleshooting.md.");
  std::vector<Command> commands = register_commands(line, {&argc, &argv});
  std::vector<std::string> names;
  for (Command& command : commands) {
    names.push_back(command.sub.name());
    command.sub.add_footer(examples_of(names.back()));
  }
  const std::vector<std::string> arguments = command_line(argc, argv);
  if (arguments.empty()) fail(Exit::usage, "no command given", known_commands(names));
  const std::vector<std::string> of_program = {"-h", "--help", "--version"};
  if (arguments[0][0] == '-' && std::find(of_program.begin(), of_program.end(), arguments[0]) == of_program.end())
    fail(Exit::usage,
         fmt::format("unknown option \"{}\"{}", printable(arguments[0]), did_you_mean(arguments[0], of_program)),
         known_commands(names));
  if (arguments[0][0] != '-' && std::find(names.begin(), names.end(), arguments[0]) == names.end())
    fail(Exit::usage,
         fmt::format("unknown command \"{}\"{}", printable(arguments[0]), did_you_mean(arguments[0], names)),
         known_commands(names));
  if (!line.parse(arguments)) return Exit::ok;  // it has printed the help or the version
  for (const Command& command : commands)
    if (command.sub.called()) return command.run();
  return Exit::usage;
}

// A full disk shows at last when buffers are flushed.
static void check_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  fail(Exit::data,
       fmt::format("standard output cannot be written: {}", errno != 0 ? std::strerror(errno) : "a write failed"),
       "free disk space or write to another place, and run the command again");
}

}  // namespace mw

int main(int argc, char** argv) {
  mw::restart_with_settings(argv);
  mw::keep_large_buffers_off_heap();
  mw::explain_bus_errors();
  try {
    const mw::Exit code = mw::run(argc, argv);
    if (code == mw::Exit::ok) mw::check_output();
    return static_cast<int>(code);
  } catch (const mw::Error& error) {
    mw::print_error(error, "");
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    mw::print_error(mw::Error(mw::Exit::memory, "out of memory",
                              "lower the sizes of the model or train.seq_len, or raise train.micro_batches"),
                    "");
    return static_cast<int>(mw::Exit::memory);
  } catch (const std::filesystem::filesystem_error& error) {
    mw::print_error(mw::Error(mw::Exit::data, error.what(), mw::kFilesystemHint), "");
    return static_cast<int>(mw::Exit::data);
  } catch (const std::exception& error) {
    mw::print_error(mw::Error(mw::Exit::internal, error.what(), "this is a bug in Moewright; please report it"), "");
    return static_cast<int>(mw::Exit::internal);
  }
}
