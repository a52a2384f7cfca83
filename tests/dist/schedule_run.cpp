// Runs a schedule over MPI with stages whose work is a fixed sleep, so that the ranks need no cores of their own, and
// compares with what theory says: the order of actions with the plan, live micro-batches with the validator, the bubble
// with its closed form.
//
//   mpirun -np P schedule_run UNIT_MS MICRO_BATCHES KIND CHUNKS [permuted | failing | large]
//
// With "large", messages of 1 to 16 MiB go between the stages, which libraries send only once they are received. Copies
// take time then, and the bubble is not judged.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "comm/stage_links.h"
#include "engine/executor.h"
#include "layout/schedule/schedule_check.h"
#include "layout/schedule/schedule_simulation.h"

namespace mw {
namespace {

constexpr double kTolerance = 0.03;  // of the bubble of any rank, relative, on a machine that does nothing else
constexpr size_t kMostRuns = 24;     // until one is within the tolerance: other work on the machine lengthens some
constexpr size_t kStrictRuns = 8;    // after which the lateness of the machine counts, too

double seconds_of(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// The stages of one rank. Every message repeats the pair (stage, micro-batch), which its receiver checks.
class SyntheticStages {
 public:
  SyntheticStages(const PipelineShape& shape, PipelineComms& comms, const StageCost& cost, bool large)
      : shape_(shape), comms_(comms), cost_(cost), large_(large) {}

  ActionHandlers handlers() {
    using enum ActionKind;
    return {
        {receive_activation, [this](const Action& a) { receive(activations(a.stage - 1), 0, a.stage - 1, a); }},
        {forward,
         [this](const Action& a) {
           outputs_[a.stage].free();
           begin(a.stage, a.micro_batch);
           const int next = a.stage + 1;
           if (next < shape_.stages() && !sends_activation(shape_, a.stage)) begin(next, a.micro_batch);
           sleep(cost_.forward);
         }},
        {reduce_statistics, [](const Action&) {}},
        {send_activation, [this](const Action& a) { send(outputs_[a.stage], activations(a.stage), 1, a); }},
        {receive_gradient, [this](const Action& a) { receive(gradients(a.stage), 1, a.stage + 1, a); }},
        {backward,
         [this](const Action& a) {
           input_gradients_[a.stage].free();
           sleep(cost_.backward_input + cost_.backward_weight);
           live_[a.stage].erase(a.micro_batch);
         }},
        {backward_input,
         [this](const Action& a) {
           input_gradients_[a.stage].free();
           sleep(cost_.backward_input);
         }},
        {send_gradient, [this](const Action& a) { send(input_gradients_[a.stage], gradients(a.stage - 1), 0, a); }},
        {backward_weight,
         [this](const Action& a) {
           sleep(cost_.backward_weight);
           live_[a.stage].erase(a.micro_batch);
         }},
        {reduce_gradients, [](const Action&) {}},
    };
  }

  void finish() {
    for (auto* buffers : {&outputs_, &input_gradients_})
      for (auto& [stage, buffer] : *buffers) buffer.free();
  }
  int64_t peak(int stage) const { return peak_.at(stage); }
  double busy() const { return busy_; }  // seconds of work: an action may wait for its buffer before

 private:
  using Mark = std::array<int64_t, 2>;
  using Payload = std::vector<Mark>;
  // A stage has one per direction.
  struct Buffer {
    Payload payload;
    std::unique_ptr<Pending> sent;
    void free() {
      if (sent != nullptr) sent->wait();
      sent.reset();
    }
  };

  size_t marks_of(int64_t micro_batch) const {
    return large_ ? ((size_t{1} << 20) << (micro_batch % 5)) / sizeof(Mark) : 1;
  }
  Comm& activations(int stage) { return *comms_.after[static_cast<size_t>(stage)].activations; }
  Comm& gradients(int stage) { return *comms_.after[static_cast<size_t>(stage)].gradients; }

  void sleep(double seconds) {
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    busy_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  void begin(int stage, int64_t micro_batch) {
    live_[stage].insert(micro_batch);
    peak_[stage] = std::max(peak_[stage], std::ssize(live_[stage]));
  }
  void send(Buffer& buffer, Comm& comm, int to, const Action& a) {
    buffer.payload.assign(marks_of(a.micro_batch), {a.stage, a.micro_batch});
    buffer.sent = comm.send(std::as_bytes(std::span(buffer.payload)), to);
  }
  void receive(Comm& comm, int from, int stage, const Action& a) {
    Payload got(marks_of(a.micro_batch));
    comm.receive(std::as_writable_bytes(std::span(got)), from)->wait();
    for (const Mark& mark : got)
      MW_CHECK(mark == (Mark{stage, a.micro_batch}), "{} got micro-batch {} of stage {}", describe(a), mark[1],
               mark[0]);
    if (a.kind == ActionKind::receive_activation) begin(a.stage, a.micro_batch);
  }

  const PipelineShape& shape_;
  PipelineComms& comms_;
  StageCost cost_;
  bool large_;
  std::map<int, Buffer> outputs_, input_gradients_;  // by stage
  std::map<int, std::set<int64_t>> live_;
  std::map<int, int64_t> peak_;
  double busy_ = 0;
};

// (P-1)(F+B) over the stages of a rank; of which the zero-bubble kinds fill a part with weight gradients. Of equal
// parts; the simulation's tests have these forms for others too.
double idle_in_theory(const PipelineShape& shape, const StageCost& cost) {
  double lost = cost.forward + cost.backward_input + cost.backward_weight;
  if (shape.kind == ScheduleKind::zb_h1) lost -= 2 * cost.backward_weight;
  if (shape.kind == ScheduleKind::zb_v) lost = cost.forward;
  return (shape.ranks - 1) * lost;
}

double bubble_in_theory(const PipelineShape& shape, const StageCost& cost) {
  const double work = static_cast<double>(shape.chunks * shape.micro_batches) *
                      (cost.forward + cost.backward_input + cost.backward_weight);
  const double idle = idle_in_theory(shape, cost);
  return idle / (work + idle);
}

// Share of the whole run, first begin to last end of all ranks, in which this rank computes nothing. The ranks share
// one machine and its clock.
double measured_bubble(Comm& world, const std::vector<ActionRecord>& records, double busy) {
  std::array<double, 2> ends = {-seconds_of(records.front().begin_ns), seconds_of(records.back().end_ns)};
  world.all_reduce_max(std::span(ends));
  return 1 - busy / (ends[1] + ends[0]);
}

void expect_order(const std::vector<ActionRecord>& records, const std::vector<Action>& plan, int rank) {
  for (size_t i = 0; i < plan.size(); ++i)
    if (i >= records.size() || records[i].action != plan[i])
      fail(Exit::check_failed, fmt::format("rank {}, action {}: planned {}, ran {}", rank, i, describe(plan[i]),
                                           i < records.size() ? describe(records[i].action) : "nothing"));
  MW_CHECK(records.size() == plan.size(), "{} actions for {}", records.size(), plan.size());
}

// The first send changes places with the statistics before it: still free of deadlock.
void permute(std::vector<Action>& actions) {
  for (size_t i = 1; i < actions.size(); ++i)
    if (actions[i].kind == ActionKind::send_activation) return std::swap(actions[i - 1], actions[i]);
}

// The last stage ends with an error in the middle of the step, while its neighbours wait for it.
void fail_in_last_stage(const PipelineShape& shape, ActionHandlers& handlers) {
  for (const ActionKind kind : {ActionKind::backward, ActionKind::backward_input})
    handlers[kind] = [&shape, inner = handlers[kind]](const Action& a) {
      if (a.stage + 1 == shape.stages() && a.micro_batch == 1) fail(Exit::numeric, "a stage that fails on purpose");
      inner(a);
    };
}

// What the ranks of one pipeline share over its runs.
struct Pipeline {
  PipelineShape shape;
  StageCost cost;
  std::string fault;
  Schedule plan;
  ScheduleReport proof;
  PipelineComms comms;
};

// Runs the schedule once. By how much the bubble is off, relative, at the rank where it is most.
double run_once(Comm& all, Pipeline& p) {
  const std::vector<Action>& plan = p.plan.ranks[static_cast<size_t>(all.rank())];
  std::vector<Action> actions = plan;
  if (p.fault == "permuted" && all.rank() == 0) permute(actions);
  SyntheticStages stages(p.shape, p.comms, p.cost, p.fault == "large");
  Trace trace;
  all.barrier();
  ActionHandlers handlers = stages.handlers();
  if (p.fault == "failing") fail_in_last_stage(p.shape, handlers);
  const std::vector<ActionRecord> records = run_schedule(actions, handlers, trace);
  stages.finish();
  expect_order(records, plan, all.rank());
  for (const int stage : stages_of_rank(p.shape, all.rank()))
    if (const int64_t peak = p.proof.stage_peak[static_cast<size_t>(stage)]; stages.peak(stage) != peak)
      fail(Exit::check_failed,
           fmt::format("stage {}: {} micro-batches live, {} in the proof", stage, stages.peak(stage), peak));
  double worst = std::abs(measured_bubble(all, records, stages.busy()) / bubble_in_theory(p.shape, p.cost) - 1);
  all.all_reduce_max(std::span(&worst, 1));
  return worst;
}

// How late sleeps and messages are on this machine now, relative to a sleep of one unit: the ranks sleep in turns.
double lateness(Comm& all, double unit) {
  const int size = all.size(), hops = 2 * size;
  std::array<std::byte, 1> turn{};
  all.barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (int hop = all.rank(); hop < hops; hop += size) {
    if (hop > 0) all.receive(turn, (hop - 1) % size)->wait();
    std::this_thread::sleep_for(std::chrono::duration<double>(unit));
    if (hop + 1 < hops) all.send(turn, (hop + 1) % size)->wait();
  }
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  all.all_reduce_max(std::span(&seconds, 1));
  return seconds / (hops * unit) - 1;
}

struct Judgement {
  double off, tolerance;  // relative to the bubble in theory
  bool good() const { return off <= tolerance; }
};

// Runs until one is within the tolerance. If none of the first is, what follows may be off by the lateness of the
// machine, too: where each action ends late by a share of its time, the whole run does, and all of that counts as
// bubble.
Judgement run_until_good(Comm& all, Pipeline& p) {
  const double theory = bubble_in_theory(p.shape, p.cost);
  Judgement result{};
  for (size_t run = 0; run == 0 || (run < kMostRuns && !result.good()); ++run) {
    const double late = run < kStrictRuns ? 0 : std::max(0., lateness(all, p.cost.forward));
    result = {run_once(all, p), kTolerance + (1 - theory) * late / (1 + late) / theory};
  }
  return result;
}

void run(World& world, const PipelineShape& shape, double unit, const std::string& fault) {
  Comm& all = world.comm();
  Pipeline p{shape, {unit, unit, unit}, fault, make_schedule(shape), {}, {}};
  p.proof = validate_schedule(p.plan);
  MeshComms comms;
  comms.pp = all.split(0, all.rank());
  p.comms = make_pipeline_comms(comms, shape, false);
  std::string result = describe(shape);
  if (fault == "large") {
    run_once(all, p);
    result += ": large messages, as planned";
  } else {
    const Judgement judgement = run_until_good(all, p);
    result += fmt::format(": bubble {:.4f} in theory, measured within {:.2f} % (tolerance {:.2f} %)",
                          bubble_in_theory(shape, p.cost), 100 * judgement.off, 100 * judgement.tolerance);
    if (!judgement.good()) fail(Exit::check_failed, result);
  }
  if (all.rank() == 0) std::puts(result.c_str());
}

}  // namespace
}  // namespace mw

int main(int argc, char** argv) {
  using namespace mw;
  const auto world = start_world(&argc, &argv);
  try {
    MW_CHECK(argc >= 5, "{} arguments", argc - 1);
    const PipelineShape shape{schedule_kind_of(argv[3]), world->comm().size(), std::atoi(argv[4]), std::atoi(argv[2])};
    run(*world, shape, std::atof(argv[1]) * 1e-3, argc > 5 ? argv[5] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    world->abort(Exit::check_failed);
  }
}
