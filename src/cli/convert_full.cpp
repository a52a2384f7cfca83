// import and export: Hugging Face folder to checkpoint and back, in one process.
#include <cstdio>

#include "cli/run_commands.h"
#include "comm/cores.h"
#include "spec/hf_config.h"
#include "train/checkpoint.h"
#include "train/hf_weights.h"

namespace mw {
namespace {

// The smallest run that holds the whole model in this process.
RunSpec whole_model_run(const std::string& hf_dir) {
  RunSpec run;
  run.hf_dir = hf_dir;
  run.train.dtype = "fp32";
  run.train.seq_len = 1;
  run.train.global_batch = 1;
  return run;
}

}  // namespace

Command add_import_command(CLI::App& app, const Invocation&) {
  auto* sub = app.add_subcommand("import", "turn a Hugging Face model folder into a checkpoint");
  auto dir = std::make_shared<std::string>(), out = std::make_shared<std::string>();
  sub->add_option("HF_DIR", *dir, "model folder: config.json and safetensors")->required();
  sub->add_option("CHECKPOINT_DIR", *out, "folder of checkpoints to write step-00000000 into")->required();
  return {sub, [=] {
            const std::unique_ptr<Comm> comm = make_self_comm();
            const RunSpec run = whole_model_run(*dir);
            const ModelSpec model = read_hf_config(*dir + "/config.json");
            if (const std::string note = check_hf_folder(model, *dir); !note.empty()) std::printf("%s\n", note.c_str());
            Engine engine(model, run, *comm, threads_per_rank(0, 1));
            import_hf_weights(engine, *dir);
            save_checkpoint(engine, *out, {}, 1 << 20);
            std::printf("wrote %s/step-00000000\n", out->c_str());
            return Exit::ok;
          }};
}

Command add_export_command(CLI::App& app, const Invocation&) {
  auto* sub = app.add_subcommand("export", "turn a checkpoint into a Hugging Face model folder");
  auto checkpoint = std::make_shared<std::string>(), out = std::make_shared<std::string>(),
       dtype = std::make_shared<std::string>("bf16");
  sub->add_option("CHECKPOINT", *checkpoint, "one checkpoint, for example run/step-00000100")->required();
  sub->add_option("HF_DIR", *out, "new folder to write")->required();
  sub->add_option("--dtype", *dtype, "bf16 or fp32")->check(CLI::IsMember({"bf16", "fp32"}));
  return {sub, [=] {
            const std::unique_ptr<Comm> comm = make_self_comm();
            const CheckpointIndex index = read_checkpoint_index(*checkpoint);
            const RunSpec saved = parse_run_text(index.run_toml, *checkpoint + "/index.json: run", {});
            if (saved.hf_dir.empty())
              fail(Exit::unsupported, "this checkpoint's model has no Hugging Face family to export to",
                   "models that began as model = \"hf:DIR\" can be exported");
            Engine engine(load_model_spec(saved), whole_model_run(saved.hf_dir), *comm, threads_per_rank(0, 1));
            load_checkpoint(engine, *checkpoint, true);
            export_hf_weights(engine, *out, *dtype == "bf16" ? DType::bf16 : DType::f32, saved.hf_dir);
            std::printf("wrote %s\n", out->c_str());
            return Exit::ok;
          }};
}

}  // namespace mw
