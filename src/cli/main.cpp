// moewright: the one place that turns errors into exit codes.
#include <cstdio>
#include <exception>
#include <new>

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

int main(int argc, char** argv) {
  try {
    return static_cast<int>(mw::run(argc, argv));
  } catch (const mw::Error& error) {
    mw::print_error(error, "");
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    mw::print_error(mw::Error(mw::Exit::memory, "out of memory", "use a smaller model or batch"), "");
    return static_cast<int>(mw::Exit::memory);
  } catch (const std::exception& error) {
    mw::print_error(mw::Error(mw::Exit::internal, error.what(), "this is a bug in Moewright; please report it"), "");
    return static_cast<int>(mw::Exit::internal);
  }
}
