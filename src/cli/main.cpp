// moewright: the one place that turns errors into exit codes.
#include <fmt/ranges.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <new>
#include <thread>
#include <vector>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/examples.h"

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
    arguments.push_back("--help");
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
  if (arguments[0][0] != '-' && std::find(names.begin(), names.end(), arguments[0]) == names.end())
    fail(Exit::usage,
         fmt::format("unknown command \"{}\"{}", printable(arguments[0]), did_you_mean(arguments[0], names)),
         known_commands(names));
  if (!line.parse(arguments)) return Exit::ok;  // it has printed the help or the version
  for (const Command& command : commands)
    if (command.sub.called()) return command.run();
  return Exit::usage;
}

}  // namespace mw

namespace {

// Tasks of this machine that run or wait for a core, this one among them; 0 where /proc does not tell. The median of a
// few moments.
int runnable_tasks() {
  std::vector<int> seen;
  for (int i = 0; i < 5; ++i) {
    std::ifstream file("/proc/loadavg");  // "0.20 0.18 0.12 RUNNABLE/ALL LAST_PID"
    double average = 0;
    int runnable = 0;
    file >> average >> average >> average >> runnable;
    seen.push_back(file ? runnable : 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::sort(seen.begin(), seen.end());
  return seen[seen.size() / 2];
}

// The OpenMP runtime reads its settings when it is loaded, before main. Its default, to spin for milliseconds at every
// barrier, makes steps tens of times slower as soon as cores are shared: start once more with a short spin, and a
// shorter one where tasks already wait for cores, unless the user has chosen.
void shorten_openmp_spin(char** argv) {
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"})
    if (std::getenv(name) != nullptr) return;
  const bool crowded = runnable_tasks() > static_cast<int>(std::thread::hardware_concurrency());
  setenv("GOMP_SPINCOUNT", crowded ? "1000" : "10000", 1);
  execv("/proc/self/exe", argv);
}

// Where the matrix library takes buffers for each product, glibc's heap would keep them, and grow for as long as sizes
// alternate: it gives back only what was too large for the heap, and raises that limit with each such buffer, unless it
// is set.
void keep_large_buffers_off_heap() {
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr) return;
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 2 << 20);
}

}  // namespace

int main(int argc, char** argv) {
  shorten_openmp_spin(argv);
  keep_large_buffers_off_heap();
  try {
    return static_cast<int>(mw::run(argc, argv));
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
