// Trains a small MoE model through the library, on one process or under mpirun:
//   embed FOLDER [KEY=VALUE...]    learns the text files of FOLDER; keys are those of a run file
#include <moewright/train/loop/train_step.h>

#include <cstdio>

// A run file as text; mw::read_run_file reads one from disk, with the same checks.
constexpr const char* kRun = R"(
[model]
vocab = 256            # bytes
width = 64
layers = 2
heads = 4
experts = 4
top_k = 2
expert_width = 64

[train]
steps = 20
seq_len = 64
global_batch = 8
lr = 1e-2
dtype = "fp32"

[checkpoint]
dir = "embed-run"
)";

void train(mw::World& world, const mw::RunSpec& run) {
  const auto engine = mw::make_engine(world, run);
  mw::set_first_weights(*engine);
  const auto samples = mw::open_samples(run, engine->plan.model.vocab, false);
  const bool prints = world.comm().rank() == 0;
  mw::RunState state;
  while (state.step < run.train.steps) {
    const mw::StepStats stats = mw::train_step(*engine, *samples, state);
    if (prints) std::printf("step %2d  loss %.4f  imbalance %.2f\n", int(state.step), stats.loss, stats.imbalance());
  }
  mw::save_checkpoint(*engine, run.checkpoint.dir, state, run.checkpoint.keep);
}

int report(const mw::Error& error) {
  std::fprintf(stderr, "embed: %s\n  hint: %s\n", error.what(), error.hint().c_str());
  return static_cast<int>(error.code());
}

int main(int argc, char** argv) try {
  const auto world = mw::start_world(&argc, &argv);
  try {
    if (argc < 2) mw::fail(mw::Exit::usage, "no folder of text files is given", "usage: embed FOLDER [KEY=VALUE...]");
    mw::RunSpec run = mw::parse_run_text(kRun, "main.cpp", {argv + 2, argv + argc});
    run.data.path = argv[1];
    train(*world, run);
  } catch (const mw::Error& error) {
    report(error);
    world->abort(error.code());  // ends all ranks: others may wait for this one
  }
} catch (const mw::Error& error) {
  return report(error);
}
