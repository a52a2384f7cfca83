#include "cli/commands.h"
#include "cli/run_commands.h"

namespace mw {

std::vector<Command> register_commands(CLI::App& app, const Invocation& invocation) {
  return {add_train_command(app, invocation),
          add_finished_command(app),
          add_verify_command(app, invocation),
          add_parity_command(app, invocation),
          add_sample_command(app, invocation),
          add_import_command(app, invocation),
          add_export_command(app, invocation),
          add_tokenize_command(app),
          add_inspect_command(app),
          add_report_command(app),
          add_init_command(app),
          add_schedule_command(app),
          add_plan_command(app),
          add_doctor_command(app, invocation),
          add_probe_command(app, invocation)};
}

}  // namespace mw
