#include "cli/commands.h"
#include "cli/run_commands.h"

namespace mw {

std::vector<Command> register_commands(CommandLine& line, const Invocation& invocation) {
  return {add_train_command(line, invocation),
          add_finished_command(line),
          add_verify_command(line, invocation),
          add_parity_command(line, invocation),
          add_sample_command(line, invocation),
          add_chat_command(line, invocation),
          add_evaluate_command(line, invocation),
          add_import_command(line, invocation),
          add_export_command(line, invocation),
          add_tokenize_command(line),
          add_inspect_command(line),
          add_report_command(line),
          add_init_command(line),
          add_schedule_command(line),
          add_plan_command(line),
          add_doctor_command(line, invocation),
          add_probe_command(line, invocation),
          add_completion_command(line),
          add_manual_command(line)};
}

}  // namespace mw
