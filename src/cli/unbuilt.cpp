#include "cli/commands.h"

namespace mw {

Command add_unbuilt_command(CLI::App& app, const std::string& name, const std::string& does) {
  auto* sub = app.add_subcommand(name, does + " (not built yet)");
  sub->allow_extras();
  return {sub, [name]() -> Exit {
            fail(Exit::unsupported, fmt::format("`moewright {}` is not built yet", name),
                 "docs/limits.md lists what is missing");
          }};
}

}  // namespace mw
