// Runs a training step of several ranks and compares what its trace and its model tell with the plan: every action once
// and in order, one after the other, with the layers of its own stage; live micro-batches as the plan has slots and the
// validator has proven.
//
//   mpirun -np N step_record RUN.toml [key=value ...]
#include <algorithm>
#include <cstdio>
#include <map>
#include <string_view>

#include "engine/step.h"
#include "layout/schedule/schedule_check.h"

namespace mw {
namespace {

// The most micro-batches that each stage of this rank holds, seen at every begin and end of a scope of the trace. The
// marker of a trace carries no data: hence one per process.
struct LiveMeter {
  const Transformer* model = nullptr;
  std::map<int, int64_t> peak;  // by stage
  void look() {
    for (const StagePlan& s : model->plan().stages) peak[s.stage] = std::max(peak[s.stage], model->live(s.stage));
  }
};
LiveMeter live_meter;

std::vector<Batch> fill_batches(Engine& engine) {
  std::vector<MicroBatch> batches;
  const LocalBatch& local = engine.plan.batch;
  for (int64_t j = 0; j < engine.plan.run.train.micro_batches; ++j) {
    MicroBatch batch{{}, {}, local.sequences, local.seq_len};
    for (int64_t t = 0; t < local.tokens(); ++t) {
      batch.ids.push_back(static_cast<int32_t>((t * t + 7 * j) % engine.plan.model.vocab));
      batch.labels.push_back(static_cast<int32_t>((t * 3 + j) % engine.plan.model.vocab));
    }
    batches.push_back(std::move(batch));
  }
  return stage(engine, batches);
}

template <class... Args>
void expect(bool condition, fmt::format_string<Args...> text, Args&&... args) {
  if (!condition) fail(Exit::check_failed, fmt::format(text, std::forward<Args>(args)...));
}

std::vector<TraceEvent> events_with(const std::vector<TraceEvent>& all, std::string_view argument) {
  std::vector<TraceEvent> found;
  for (const TraceEvent& e : all)
    if (e.argument.name != nullptr && e.argument.name == argument) found.push_back(e);
  std::sort(found.begin(), found.end(),
            [](const TraceEvent& a, const TraceEvent& b) { return a.begin_ns < b.begin_ns; });
  return found;
}

void check_order(const Plan& plan, const std::vector<TraceEvent>& all) {
  const std::vector<TraceEvent> actions = events_with(all, "micro_batch"), layers = events_with(all, "layer");
  expect(actions.size() == plan.schedule.size(), "rank {}: {} actions, planned {}", plan.rank, actions.size(),
         plan.schedule.size());
  int64_t now = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    const TraceEvent& ran = actions[i];
    const Action& planned = plan.schedule[i];
    expect(std::string_view(ran.label) == name_of(planned.kind) && ran.argument.value == planned.micro_batch,
           "rank {}, action {}: planned {}, ran {} of micro-batch {}", plan.rank, i, describe(planned), ran.label,
           ran.argument.value);
    expect(ran.begin_ns >= now && ran.end_ns >= ran.begin_ns, "rank {}, action {}: it overlaps", plan.rank, i);
    now = ran.end_ns;
    std::vector<int64_t> touched, expected;
    for (const TraceEvent& l : layers)
      if (l.begin_ns >= ran.begin_ns && l.end_ns <= ran.end_ns) touched.push_back(l.argument.value);
    const bool forwards = planned.kind == ActionKind::forward, backwards = planned.kind == ActionKind::backward ||
                                                                           planned.kind == ActionKind::backward_input ||
                                                                           planned.kind == ActionKind::backward_weight;
    if (forwards || backwards)
      for (const StagePlan& s : plan.stages)
        for (int64_t l = s.first_layer; s.stage == planned.stage && l < s.end_layer; ++l) expected.push_back(l);
    if (backwards) std::reverse(expected.begin(), expected.end());
    expect(touched == expected, "rank {}, action {}: {} went through other layers than its stage's", plan.rank, i,
           describe(planned));
  }
}

void check_live(const Plan& plan) {
  const ScheduleReport proof = validate_schedule(make_schedule(plan.pipeline));
  for (const StagePlan& s : plan.stages) {
    const int64_t measured = live_meter.peak[s.stage], proven = proof.stage_peak[static_cast<size_t>(s.stage)];
    expect(measured == s.slots && measured == proven, "stage {}: {} micro-batches live, {} planned, {} proven", s.stage,
           measured, s.slots, proven);
  }
}

void run(World& world, const RunSpec& spec) {
  Engine engine(load_model_spec(spec), spec, world.comm(), 1, world.place());
  engine.params.initialise(1, engine.stream);
  refresh_weights(engine);
  const std::vector<Batch> batches = fill_batches(engine);
  Trace& trace = engine.stream.trace();
  live_meter.model = &*engine.model;
  trace.show_ranges({[](const char*) { live_meter.look(); }, [] { live_meter.look(); }});
  trace.keep_events(true);
  accumulate_gradients(engine, batches);
  trace.show_ranges({});
  check_order(engine.plan, trace.events());
  check_live(engine.plan);
  for (const StagePlan& s : engine.plan.stages)
    expect(engine.model->live(s.stage) == 0, "stage {}: micro-batches live on after the step", s.stage);
  world.comm().barrier();
  if (world.comm().rank() == 0) std::printf("%s: as planned\n", describe(engine.plan.pipeline).c_str());
}

}  // namespace
}  // namespace mw

int main(int argc, char** argv) {
  using namespace mw;
  const auto world = start_world(&argc, &argv);
  try {
    MW_CHECK(argc >= 2, "no run file");
    run(*world, read_run_file(argv[1], {argv + 2, argv + argc}));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    world->abort(Exit::check_failed);
  }
}
