// Balances the load of expert-parallel ranks between steps (moe.balance): keeps decaying means of the rows of experts,
// plans placements from them (layout/balance.h), and moves experts where that pays (engine/migration.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/step.h"
#include "train/loop/work_clock.h"

namespace mw {

// What a step says about the balance of ranks.
struct BalanceReport {
  // Time of the slowest EP rank over that of perfect balance, as by rows and mesh.expert_shares: mean over MoE layers;
  // 0: no such layer.
  double rank_imbalance = 0;
  double worst_rank_imbalance = 0;  // of the worst layer
  // [MoE layer][EP rank]: the rows that ranks computed; empty for a layer in which they do not depend on its experts.
  std::vector<std::vector<int64_t>> rank_rows;
  int64_t replica_rows = 0;   // that replicas computed in the step, on all ranks and in all layers
  int64_t moved_experts = 0;  // after this step, in all layers
  int64_t moved_bytes = 0;    // that ranks sent
  double move_seconds = 0;    // of the slowest rank
  // Seconds that a step should save, which can be less than 0; none where nothing moved, or moves were random.
  std::optional<double> expected_gain;
};
// A line for the log, or "" where nothing moved.
std::string describe(const BalanceReport& report, int64_t step);

class Balancer {
 public:
  // `engine` must outlive this object; its gradients are overwritten. Collective over the world.
  explicit Balancer(Engine& engine);

  // To be called after the update of a step, before its checkpoint. Every moe.balance_every steps it moves the experts
  // of layers where that saves more time than it takes within moe.balance_horizon steps, or within the steps since this
  // layer's last move if these are fewer, so that loads which change soon are not followed at any cost. With
  // debug.migrate it moves all experts to random places after every step. Collective over the world.
  BalanceReport after_step(const StepStats& stats, int64_t step);

  // To be called after a validation: its work is not a step's.
  void forget_work() { take_work(); }

  // Moves experts back to where a checkpoint recorded them, if this run balances and the placement fits its layout.
  // Collective over the world.
  void resume(const SharedPlacements& recorded);

 private:
  struct Layer {
    int64_t index = 0;                            // in the model
    std::vector<double> mean;                     // rows of a step, by expert; empty before the first step
    double expert_flops = 0;                      // of all ranks, per token
    double state_bytes = 0;                       // that an expert's new home receives
    double weight_bytes = 0, gradient_bytes = 0;  // of an expert: what a replica receives and sends in every step
    std::optional<int64_t> moved_at = {};         // the step after which experts moved last
  };
  void observe(const StepStats& stats);
  void report_imbalance(const StepStats& stats, BalanceReport& report) const;
  std::vector<double> take_work();  // seconds by kind since the last call
  Placements plan_moves(const StepStats& stats, double matmul_seconds, int64_t step, double& gain);
  void move(Placements next, BalanceReport& report);
  void count_message();

  Engine& engine_;
  std::vector<int64_t> speeds_;  // of EP ranks
  std::vector<Layer> layers_;    // MoE layers
  WorkClock clock_;
  double all_flops_ = 0;          // of matrix products, per token
  double matmul_seconds_ = 0;     // of this rank in a step, when it was last measured
  double link_bytes_per_second_;  // that a rank receives, measured at the start
  double move_bytes_per_second_;  // that the last migration brought to a rank; before the first one as the link
  int64_t messages_ = 0;          // of all moves
};

}  // namespace mw
