#include "cli/commands.h"

namespace mw {

std::vector<Command> register_commands(CommandLine& line, const Invocation&) {
  return {add_init_command(line), add_schedule_command(line), add_plan_command(line), add_completion_command(line),
          add_manual_command(line)};
}

}  // namespace mw
