#include <cstdio>

#include "cli/run_commands.h"
#include "comm/cores.h"
#include "train/checkpoint/model_path.h"
#include "train/verify/parity.h"

namespace mw {

Command add_parity_command(CommandLine& line, const Invocation&) {
  Subcommand sub = line.add_command(
      "parity",
      "compare logits, loss, every gradient and 20 AdamW steps with stored results of Hugging Face transformers");
  auto dir = std::make_shared<std::string>(), golden = std::make_shared<std::string>();
  auto threads = std::make_shared<int>(0);
  sub.add_option("MODEL", *dir, "Hugging Face model folder, run folder or checkpoint").required();
  sub.add_option("GOLDEN", *golden, "golden.safetensors: inputs, logits, loss, gradients, trajectory").required();
  sub.add_option("--threads", *threads, "threads; 0: all cores").range(0, 4096).show_default();
  auto device = std::make_shared<std::string>("auto");
  sub.add_option("--device", *device, "where to compute: auto, cpu, cuda, hip").one_of(enum_words<DeviceChoice>());
  return {sub, [dir, golden, threads, device] {
            const std::unique_ptr<Comm> comm = make_self_comm();
            ParityModel model;
            if (find_model_path(*dir).kind == ModelPathKind::hf_folder) model.hf_dir = *dir;
            else model.checkpoint = choose_checkpoint(*comm, *dir, stdout);
            const ParityReport report = run_parity(model, *golden, *comm, threads_per_rank(*threads, 1),
                                                   enum_of<DeviceChoice>(*device).value());
            std::fputs(format_report(report).c_str(), stdout);
            return report.ok() ? Exit::ok : Exit::check_failed;
          }};
}

}  // namespace mw
