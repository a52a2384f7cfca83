#include "cli/commands.h"

namespace mw {

std::vector<Command> register_commands(CLI::App& app, const Invocation&) {
  return {add_init_command(app), add_schedule_command(app), add_plan_command(app)};
}

}  // namespace mw
