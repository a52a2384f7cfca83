// moewright: the one place that turns errors into exit codes.
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>

#include "base/text.h"
#include "cli/commands.h"

namespace mw {

void print_error(const Error& error, const std::string& prefix) {
  std::fflush(stdout);
  std::string text = fmt::format("moewright: {}error: {}\n", prefix, error.what());
  if (!error.hint().empty()) text += fmt::format("  hint: {}\n", error.hint());
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

static Exit run(int argc, char** argv) {
  CLI::App app{"Moewright trains Mixture-of-Experts transformers from a laptop to a cluster."};
  app.name("moewright");
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  app.footer("`moewright COMMAND --help` explains a command. Exit codes: docs/troubleshooting.md.");
  const std::vector<Command> commands = register_commands(app, {&argc, &argv});
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.app->get_name());
  if (argc > 1 && argv[1][0] != '-' && std::find(names.begin(), names.end(), argv[1]) == names.end()) {
    fail(Exit::usage, fmt::format("unknown command \"{}\"{}", printable(argv[1]), did_you_mean(argv[1], names)),
         fmt::format("one of: {}", fmt::join(names, ", ")));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? Exit::ok : Exit::usage;
  }
  for (const Command& command : commands)
    if (command.app->parsed()) return command.run();
  return Exit::usage;
}

}  // namespace mw

namespace {

// The OpenMP runtime reads its settings when it is loaded, before main. Its default, to spin for milliseconds at every
// barrier, makes steps tens of times slower as soon as cores are shared: start once more with a short spin, unless the
// user has chosen.
void shorten_openmp_spin(char** argv) {
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"})
    if (std::getenv(name) != nullptr) return;
  setenv("GOMP_SPINCOUNT", "10000", 1);
  execv("/proc/self/exe", argv);
}

}  // namespace

int main(int argc, char** argv) {
  shorten_openmp_spin(argv);
  try {
    return static_cast<int>(mw::run(argc, argv));
  } catch (const mw::Error& error) {
    mw::print_error(error, "");
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    mw::print_error(mw::Error(mw::Exit::memory, "out of memory", "use a smaller model or batch"), "");
    return static_cast<int>(mw::Exit::memory);
  } catch (const std::filesystem::filesystem_error& error) {
    mw::print_error(mw::Error(mw::Exit::data, error.what(), mw::kFilesystemHint), "");
    return static_cast<int>(mw::Exit::data);
  } catch (const std::exception& error) {
    mw::print_error(mw::Error(mw::Exit::internal, error.what(), "this is a bug in Moewright; please report it"), "");
    return static_cast<int>(mw::Exit::internal);
  }
}
