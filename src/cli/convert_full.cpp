// import and export: Hugging Face folder to checkpoint and back; under a launcher the ranks share the work.
#include <cstdio>
#include <cstdlib>

#include "cli/run_commands.h"
#include "comm/bootstrap/tcp_join.h"
#include "train/convert/hf_convert.h"

namespace mw {
namespace {

// "out/" and "out" are one folder.
std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Prints what `convert` gives, once.
Exit run_conversion(const Invocation& invocation, int64_t watchdog_seconds,
                    const std::function<std::string(Comm&)>& convert) {
  const auto on_rank = [&](Comm& comm) {
    const std::string lines = convert(comm);
    if (comm.rank() == 0) std::printf("%s\n", lines.c_str());
    return Exit::ok;
  };
  // A lone process need not wait for the message library.
  const bool launched =
      launched_by_mpi() || read_join_environment().has_value() || std::getenv("SLURM_STEP_NUM_TASKS") != nullptr;
  if (!launched) return on_rank(*make_self_comm());
  return run_in_world(invocation, [&](World& world) {
    return run_watched(world, watchdog_seconds, [&] { return on_rank(world.comm()); });
  });
}

}  // namespace

Command add_import_command(CommandLine& line, const Invocation& invocation) {
  Subcommand sub = line.add_command(
      "import", "turn a Hugging Face model folder into a checkpoint (`train` can also start from the folder)");
  auto dir = std::make_shared<std::string>(), out = std::make_shared<std::string>();
  sub.add_option("HF_DIR", *dir, "model folder: config.json and safetensors").required();
  sub.add_option("CHECKPOINT_DIR", *out, "folder of checkpoints to write step-00000000 into").required();
  auto seconds = add_watchdog_option(sub);
  return {sub, [=] {
            return run_conversion(invocation, *seconds, [&](Comm& comm) {
              return import_hf_folder(comm, without_slash(*dir), without_slash(*out));
            });
          }};
}

Command add_export_command(CommandLine& line, const Invocation& invocation) {
  Subcommand sub = line.add_command("export", "turn a checkpoint into a Hugging Face model folder");
  auto request = std::make_shared<HfExport>();
  auto dtype = std::make_shared<std::string>("model");
  sub.add_option("CHECKPOINT", request->checkpoint, "run folder, for its newest checkpoint, or one checkpoint")
      .required();
  sub.add_option("HF_DIR", request->out, "new folder to write").required();
  sub.add_option("--dtype", *dtype,
                 "bf16, fp32, or model: as in the config.json that the run started from (fp32 for float16), else "
                 "train.dtype, and fp32 for an imported model")
      .one_of({"model", "bf16", "fp32"})
      .show_default();
  auto shard_size = std::make_shared<uint64_t>(5'000'000'000);
  sub.add_option("--shard-size", *shard_size, "most bytes of weights in a file, for example 500MB or 2GiB")
      .byte_count(1000, uint64_t{1} << 60)
      .show_default("5GB");
  sub.add_option("--source", request->source,
                 "folder with the tokenizer and, for a run that began as hf:DIR, the config.json; default: that DIR");
  auto seconds = add_watchdog_option(sub);
  return {sub, [=] {
            request->out = without_slash(request->out);
            request->dtype = enum_of<DType>(*dtype);  // none for "model"
            request->shard_bytes = static_cast<int64_t>(*shard_size);
            return run_conversion(invocation, *seconds, [&](Comm& comm) {
              request->checkpoint = choose_checkpoint(comm, request->checkpoint, stdout);
              return export_checkpoint(comm, *request);
            });
          }};
}

}  // namespace mw
