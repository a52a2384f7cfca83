// All ranks of a mesh run a schedule with every meeting that its actions hold: the proof of
// layout/schedule/schedule_check.h, which looks at one replica of each pipeline rank, against the whole. Each stage has
// a dense layer and an MoE layer.
#include <algorithm>
#include <array>

#include "layout/helpers.h"
#include "layout/recompute.h"
#include "layout/schedule/schedule_check.h"

namespace mw::test {
namespace {

// Groups that meet: those of the mesh, and the first and last stage for tied embeddings.
enum class Group : uint8_t { dp, tp, ep, edp, stage, pp, ends };
constexpr MeshAxis kAxes[] = {MeshAxis::dp,    MeshAxis::tp, MeshAxis::ep, MeshAxis::edp,
                              MeshAxis::stage, MeshAxis::pp, MeshAxis::pp};
constexpr int kGroups = 7;

struct Job {
  Mesh mesh;
  PipelineShape shape;
  bool tied = false;
  bool early_sums = false;  // sums of gradients begin inside the last backward, as between GPUs
  Recompute recompute = Recompute::none;
};

// arrive: at a group, and wait for the others. A send begins a transfer, which ends with its receive; free waits until
// the one before has ended. Members of a group must come with the same label, and a receive with that of its send.
struct Step {
  enum Kind : uint8_t { arrive, send, receive, free } kind = arrive;
  int place = 0;  // of the group or channel
  int members = 0;
  int64_t label = 0;
};

// The steps of one rank.
class Expansion {
 public:
  Expansion(const Job& job, int rank) : job_(job), mesh_(job.mesh), coords_(coords_of(job.mesh, rank)) {
    splits_ = splits_backward(job.shape.kind);
    for (int g = 0; g < kGroups; ++g) groups_[static_cast<size_t>(g)] = group_of(mesh_, kAxes[g], rank);
    const int last = rank_of_stage(job.shape, job.shape.stages() - 1);
    std::vector<int>& ends = groups_[static_cast<size_t>(Group::ends)];
    ends = {ends.front(), ends[static_cast<size_t>(last)]};
    if (!job.tied || last == 0 || (ends[0] != rank && ends[1] != rank)) ends = {rank};
  }

  std::vector<Step> steps_of(const std::vector<Action>& actions) {
    meet(Group::dp);  // counts labels
    for (const Action& action : actions) begin(action), expand(action.kind);
    begin({ActionKind::reduce_gradients, 0, 1});  // the loss, the norm and the update
    for (const Group group : {Group::stage, Group::pp, Group::dp, Group::edp, Group::ep, Group::tp, Group::stage,
                              Group::pp, Group::dp, Group::stage, Group::edp, Group::ends})
      meet(group);
    return std::move(steps_);
  }

 private:
  void begin(const Action& action) { now_ = action, met_ = 0; }

  // Its label: the action, and how many meetings of it came before.
  void meet(Group group, int times = 1) {
    const std::vector<int>& members = groups_[static_cast<size_t>(group)];
    for (; times > 0; --times, ++met_)
      if (const auto size = static_cast<int>(members.size()); size > 1)
        steps_.push_back({Step::arrive, static_cast<int>(group) * mesh_.world + members.front(), size,
                          ((static_cast<int64_t>(now_.kind) * 64 + now_.stage) * 64 + now_.micro_batch) * 64 + met_});
  }
  void message(Step::Kind kind, int sender, bool activation) {
    const int channel = 2 * sender + (activation ? 1 : 0), replicas = mesh_.dp * mesh_.tp;
    steps_.push_back({kind, channel * replicas + coords_.dp * mesh_.tp + coords_.tp, 2, now_.micro_batch});
  }
  void wait_for_output() {
    if (sends_activation(job_.shape, now_.stage)) message(Step::free, now_.stage, true);
  }
  void wait_for_input_gradient() {
    if (receives_activation(job_.shape, now_.stage)) message(Step::free, now_.stage, false);
  }

  void expand(ActionKind kind) {
    switch (kind) {
      case ActionKind::receive_activation: return message(Step::receive, now_.stage - 1, true);
      case ActionKind::send_activation: return message(Step::send, now_.stage, true);
      case ActionKind::receive_gradient: return message(Step::receive, now_.stage + 1, false);
      case ActionKind::send_gradient: return message(Step::send, now_.stage, false);
      case ActionKind::forward: return forward();
      case ActionKind::reduce_statistics: return meet(mesh_.ted ? Group::dp : Group::stage);
      case ActionKind::backward:
      case ActionKind::backward_input: return backward();
      case ActionKind::backward_weight: return backward_weight();
      case ActionKind::reduce_gradients: return reduce_gradients();
    }
  }

  void forward() {
    wait_for_output();
    if (now_.stage == 0) meet(Group::tp);  // rows of the embedding are summed
    for (const bool moe : {false, true}) {
      const bool cut = !moe || mesh_.ted;
      meet(Group::tp, 2);           // attention gathers and sums tokens
      if (cut) meet(Group::tp);     // gather
      if (moe) meet(Group::ep, 3);  // counts, dispatch, combine
      if (cut) meet(Group::tp);     // sum
    }
  }

  void backward() {
    if (now_.stage + 1 == job_.shape.stages()) meet(Group::tp, 3);  // the loss: gather, softmax, sum
    wait_for_input_gradient();
    const bool leaves_dense = splits_ && !is_recomputed(job_.recompute, "ffn.h"),
               leaves_attention = splits_ && !is_recomputed(job_.recompute, "q");
    for (const bool moe : {true, false}) {
      const bool cut = !moe || mesh_.ted;
      if (is_recomputed(job_.recompute, "x_mid")) meet(Group::tp, 2);         // attention again
      if (cut) meet(Group::tp, moe || !leaves_dense ? 2 : 1);                 // gradient and input
      if (moe && is_recomputed(job_.recompute, "received")) meet(Group::ep);  // dispatch again
      if (moe) meet(Group::ep, 2);                                            // gradients there and back
      if (cut) meet(Group::tp);                                               // sum
      if (!splits_) sum_early();
      meet(Group::tp, leaves_attention ? 2 : 3);  // of attention: gather the gradient and the input, sum
    }
    if (now_.stage == 0) meet(Group::tp);  // the embedding gathers
  }

  void backward_weight() {
    for (const bool moe : {true, false}) {
      if (moe ? mesh_.ted && !is_recomputed(job_.recompute, "h") : !is_recomputed(job_.recompute, "ffn.h"))
        meet(Group::tp);
      sum_early();
      if (!is_recomputed(job_.recompute, "q")) meet(Group::tp);
    }
  }

  void sum_early() {
    if (job_.early_sums && now_.micro_batch + 1 == job_.shape.micro_batches) sum_gradients();
  }
  void sum_gradients() { meet(Group::dp), meet(Group::stage), meet(Group::edp); }

  // The last one of a rank waits until all that it sent has arrived.
  void reduce_gradients() {
    const std::vector<int> own = stages_of_rank(job_.shape, coords_.pp);
    if (++reduced_ < std::ssize(own)) return;
    for (const int stage : own) now_.stage = stage, wait_for_output(), wait_for_input_gradient();
    now_.stage = 0;
    meet(Group::ends);  // tied embeddings
    sum_gradients();
  }

  const Job& job_;
  const Mesh& mesh_;
  MeshCoords coords_;
  bool splits_ = false;
  Action now_;
  int64_t met_ = 0, reduced_ = 0;
  std::array<std::vector<int>, kGroups> groups_;
  std::vector<Step> steps_;
};

size_t random_below(uint64_t& state, size_t bound) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<size_t>(state >> 33) % bound;
}

enum class Outcome : uint8_t { ends, waits, mixes };

class Machine {
 public:
  Machine(const Job& job, const std::vector<std::vector<Step>>& steps)
      : steps_(steps),
        ranks_(steps.size()),
        meetings_(steps.size() * kGroups),
        transfers_(static_cast<size_t>(2 * job.shape.stages() * job.mesh.dp * job.mesh.tp), kNone) {}

  // seed 0: every rank does one step in turn; else some rank does some steps.
  Outcome run(uint64_t seed) {
    const bool in_turn = seed == 0;
    for (bool moved = true; moved && !mixed_;) {
      moved = false;
      for (size_t i = 0; !in_turn && i < ranks_.size(); ++i)
        moved = advance(random_below(seed, ranks_.size()), 1 + i % 8) || moved;
      for (size_t i = 0; (in_turn || !moved) && i < ranks_.size(); ++i) moved = advance(i, 1) || moved;
    }
    if (mixed_) return Outcome::mixes;
    for (size_t i = 0; i < ranks_.size(); ++i)
      if (ranks_[i].at < steps_[i].size()) return Outcome::waits;
    const bool all_received = std::count(transfers_.begin(), transfers_.end(), kNone) == std::ssize(transfers_);
    return all_received ? Outcome::ends : Outcome::waits;
  }

 private:
  static constexpr int64_t kNone = -1;
  struct Rank {
    size_t at = 0;
    int64_t round = kNone;  // of the meeting that it waits in
  };
  struct Meeting {
    int arrived = 0;
    int64_t label = 0, round = 0;
  };

  bool advance(size_t rank, size_t most) {
    bool moved = false;
    for (size_t i = 0; i < most && ranks_[rank].at < steps_[rank].size() && do_step(ranks_[rank], steps_[rank]); ++i)
      moved = true;
    return moved;
  }

  bool do_step(Rank& rank, const std::vector<Step>& steps) {
    const Step& step = steps[rank.at];
    if (step.kind == Step::arrive) return meet(rank, step, meetings_[static_cast<size_t>(step.place)]);
    int64_t& transfer = transfers_[static_cast<size_t>(step.place)];
    if ((transfer != kNone) != (step.kind == Step::receive)) return false;
    mixed_ = mixed_ || (step.kind == Step::receive && transfer != step.label);
    transfer = step.kind == Step::send ? step.label : kNone;
    ++rank.at;
    return true;
  }

  bool meet(Rank& rank, const Step& step, Meeting& meeting) {
    if (rank.round == kNone) {
      mixed_ = mixed_ || (meeting.arrived > 0 && meeting.label != step.label);
      meeting.label = step.label;
      rank.round = meeting.round;
      if (++meeting.arrived < step.members) return true;
      meeting.arrived = 0;
      ++meeting.round;
    }
    if (rank.round == meeting.round) return false;
    rank.round = kNone;
    ++rank.at;
    return true;
  }

  const std::vector<std::vector<Step>>& steps_;
  std::vector<Rank> ranks_;
  std::vector<Meeting> meetings_;
  std::vector<int64_t> transfers_;  // by channel: the micro-batch under way
  bool mixed_ = false;
};

std::vector<std::vector<Step>> expand(const Job& job, const Schedule& schedule) {
  std::vector<std::vector<Step>> steps;
  for (int rank = 0; rank < job.mesh.world; ++rank)
    steps.push_back(Expansion(job, rank).steps_of(schedule.ranks[static_cast<size_t>(coords_of(job.mesh, rank).pp)]));
  return steps;
}

// However the ranks interleave, they end as one.
Outcome run(const Job& job, const std::vector<std::vector<Step>>& steps) {
  const Outcome first = Machine(job, steps).run(0);
  for (const uint64_t seed : {1, 2}) EXPECT_EQ(Machine(job, steps).run(seed), first) << seed;
  return first;
}

Mesh mesh_of(int pp, int tp, int dp, bool all_experts_apart, RankPlacement placement = RankPlacement::ep_first,
             bool ted = false) {
  MeshSpec spec;
  spec.pp = pp;
  spec.tp = tp;
  spec.placement = placement;
  spec.ep = all_experts_apart ? dp * (ted ? 1 : tp) : 1;
  return make_mesh(spec, pp * tp * dp, ted ? MoeTpMode::ted : MoeTpMode::ssmb);
}

PipelineShape shape_of(ScheduleKind kind, int ranks, int64_t micro_batches) {
  const int chunks = kind == ScheduleKind::zb_v || kind == ScheduleKind::interleaved ? 2 : 1;
  return {kind, ranks, chunks, kind == ScheduleKind::interleaved ? micro_batches * ranks : micro_batches};
}

constexpr ScheduleKind kKinds[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                   ScheduleKind::zb_h1, ScheduleKind::zb_v};

TEST(ScheduleMeetings, EveryScheduleEndsOnEveryMesh) {
  struct Way {
    RankPlacement placement;
    bool ted, tied, early_sums;
    Recompute recompute;
  };
  const Way ways[] = {{RankPlacement::ep_first, false, false, false, Recompute::none},
                      {RankPlacement::ep_first, false, true, true, Recompute::moe},
                      {RankPlacement::dp_first, false, true, false, Recompute::full},
                      {RankPlacement::dp_first, false, false, true, Recompute::none},
                      {RankPlacement::ep_first, true, true, true, Recompute::none},
                      {RankPlacement::dp_first, true, true, false, Recompute::moe}};
  for (const ScheduleKind kind : kKinds)
    for (const int pp : {1, 2, 4})
      for (const int64_t micro_batches : {1, 2, 5}) {
        const PipelineShape shape = shape_of(kind, pp, micro_batches);
        const Schedule schedule = make_schedule(shape);
        validate_schedule(schedule);
        for (const int replicas : {0, 1, 2, 3})  // TP in the lower bit, DP in the upper one
          for (const bool apart : {false, true})
            for (const Way& way : ways) {
              const int tp = 1 + replicas % 2, dp = 1 + replicas / 2;
              const Job job{mesh_of(pp, tp, dp, apart, way.placement, way.ted), shape, way.tied, way.early_sums,
                            way.recompute};
              EXPECT_EQ(run(job, expand(job, schedule)), Outcome::ends)
                  << describe(shape) << " on " << describe(job.mesh) << (way.tied ? ", tied" : "");
            }
      }
}

// Walks from a schedule to others that keep the rules of each stage, one action moved at a time.
TEST(ScheduleMeetings, AllRanksEndWhereTheProofSaysSo) {
  uint64_t state = 1;
  for (const ScheduleKind kind : kKinds) {
    const PipelineShape shape = shape_of(kind, 3, kind == ScheduleKind::interleaved ? 1 : 4);
    const Job jobs[] = {{mesh_of(3, 1, 1, true), shape, true},
                        {mesh_of(3, 2, 2, true), shape, true, true, Recompute::moe},
                        {mesh_of(3, 2, 2, true, RankPlacement::dp_first, true), shape, false, false, Recompute::none}};
    Schedule schedule = make_schedule(shape);
    int accepted = 0, waiting = 0;
    for (int round = 0; round < 1000; ++round) {
      Schedule moved = schedule;
      std::vector<Action>& actions = moved.ranks[random_below(state, moved.ranks.size())];
      const size_t from = random_below(state, actions.size()),
                   to = std::min(actions.size() - 1, from + random_below(state, 6));
      const auto begin = actions.begin() + static_cast<long>(from), end = actions.begin() + static_cast<long>(to) + 1;
      std::rotate(begin, random_below(state, 2) == 0 ? begin + 1 : end - 1, end);
      const auto error = refusal_of([&] { validate_schedule(moved); });
      if (error && !contains(error->what(), "deadlocks")) continue;
      ++(error ? waiting : accepted);
      for (const Job& job : jobs)
        EXPECT_EQ(run(job, expand(job, moved)), error ? Outcome::waits : Outcome::ends)
            << describe(actions) << " on " << describe(job.mesh);
      if (!error) schedule = std::move(moved);
    }
    EXPECT_GT(accepted, 200) << describe(shape);
    EXPECT_GT(waiting, 10) << describe(shape);
  }
}

// With a buffer for every message this schedule would run.
TEST(ScheduleMeetings, EagerSendsAreRefused) {
  Schedule schedule = make_schedule({ScheduleKind::gpipe, 2, 1, 4});
  schedule.ranks[1] = make_schedule({ScheduleKind::one_f_one_b, 2, 1, 4}).ranks[1];
  for (const bool apart : {false, true}) {
    const Job job{mesh_of(2, 2, 2, apart), schedule.shape, true};
    EXPECT_EQ(run(job, expand(job, schedule)), Outcome::waits);
  }
  EXPECT_TRUE(contains(error_of([&] { validate_schedule(schedule); }, Exit::internal), "deadlocks"));
}

// Replicas of a pipeline rank with lists of their own: each is good, together they never end.
TEST(ScheduleMeetings, ReplicasNeedOneList) {
  const Schedule schedule = make_schedule({ScheduleKind::gpipe, 2, 1, 4}),
                 other = make_schedule({ScheduleKind::one_f_one_b, 2, 1, 4});
  const Job job{mesh_of(2, 1, 2, true), schedule.shape};
  std::vector<std::vector<Step>> steps = expand(job, schedule);
  const std::vector<std::vector<Step>> others = expand(job, other);
  for (size_t rank = 0; rank < steps.size(); ++rank)
    if (coords_of(job.mesh, static_cast<int>(rank)).dp == 1) steps[rank] = others[rank];
  EXPECT_NE(Machine(job, steps).run(0), Outcome::ends);
}

}  // namespace
}  // namespace mw::test
