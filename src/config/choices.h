// What a run file chooses between, as enumerations, each with its words.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/enum_words.h"
#include "base/kinds.h"

namespace mw {

// The dtypes of computing.
template <>
inline constexpr EnumWord<DType> kEnumWords<DType>[] = {{DType::bf16, "bf16"}, {DType::f32, "fp32"}};

// Format of the training data: files as bytes, Megatron-LM's .bin and .idx, or llm.c's .bin.
enum class DataKind : uint8_t { text, megatron, shards };
template <>
inline constexpr EnumWord<DataKind> kEnumWords<DataKind>[] = {
    {DataKind::text, "text"}, {DataKind::megatron, "megatron"}, {DataKind::shards, "shards"}};

// Learning rate after warm-up (config/learning_rate.h). wsd: warm-up, stable, decay.
enum class LearningRateSchedule : uint8_t { cosine, constant, linear, inverse_sqrt, wsd, piecewise };
template <>
inline constexpr EnumWord<LearningRateSchedule> kEnumWords<LearningRateSchedule>[] = {
    {LearningRateSchedule::cosine, "cosine"}, {LearningRateSchedule::constant, "constant"},
    {LearningRateSchedule::linear, "linear"}, {LearningRateSchedule::inverse_sqrt, "inverse_sqrt"},
    {LearningRateSchedule::wsd, "wsd"},       {LearningRateSchedule::piecewise, "piecewise"}};

// What updates matrices of layers (config/param_groups.h); AdamW updates everything else.
enum class Optimizer : uint8_t { adamw, muon };
template <>
inline constexpr EnumWord<Optimizer> kEnumWords<Optimizer>[] = {{Optimizer::adamw, "adamw"}, {Optimizer::muon, "muon"}};

// What Muon's orthogonal update [n, m] is multiplied by. match_rms: 0.2 sqrt(max(n, m)), for the size of AdamW's
// updates (Moonlight, arXiv 2502.16982). original: sqrt(max(1, n / m)) (Jordan et al. 2024).
enum class MuonScale : uint8_t { match_rms, original };
template <>
inline constexpr EnumWord<MuonScale> kEnumWords<MuonScale>[] = {{MuonScale::match_rms, "match_rms"},
                                                                {MuonScale::original, "original"}};

// automatic: a GPU if there is one.
enum class DeviceChoice : uint8_t { automatic, cpu, cuda, hip };
template <>
inline constexpr EnumWord<DeviceChoice> kEnumWords<DeviceChoice>[] = {{DeviceChoice::automatic, "auto"},
                                                                      {DeviceChoice::cpu, "cpu"},
                                                                      {DeviceChoice::cuda, "cuda"},
                                                                      {DeviceChoice::hip, "hip"}};

// Which ranks are adjacent: those of an expert-parallel group, or the replicas of an expert.
enum class RankPlacement : uint8_t { ep_first, dp_first };
template <>
inline constexpr EnumWord<RankPlacement> kEnumWords<RankPlacement>[] = {{RankPlacement::ep_first, "ep_first"},
                                                                        {RankPlacement::dp_first, "dp_first"}};

// Pipeline schedules. gpipe: all forwards, then all backwards. one_f_one_b: as many forwards as stages follow, then one
// of each in turn. interleaved: the same over several stages per rank, dealt round. zb_h1: 1F1B with weight gradients
// moved into the bubble. zb_v: two stages per rank, down the ranks and up again, with weight gradients in every gap.
enum class ScheduleKind : uint8_t { gpipe, one_f_one_b, interleaved, zb_h1, zb_v };
template <>
inline constexpr EnumWord<ScheduleKind> kEnumWords<ScheduleKind>[] = {{ScheduleKind::gpipe, "gpipe"},
                                                                      {ScheduleKind::one_f_one_b, "1f1b"},
                                                                      {ScheduleKind::interleaved, "interleaved"},
                                                                      {ScheduleKind::zb_h1, "zb_h1"},
                                                                      {ScheduleKind::zb_v, "zb_v"}};

// What the auxiliary loss of routing is taken over. automatic: as the model's family does. model: all layers together,
// as Hugging Face defines it.
enum class AuxScope : uint8_t { automatic, layer, sequence, model };
template <>
inline constexpr EnumWord<AuxScope> kEnumWords<AuxScope>[] = {{AuxScope::automatic, "auto"},
                                                              {AuxScope::layer, "layer"},
                                                              {AuxScope::sequence, "sequence"},
                                                              {AuxScope::model, "model"}};

// Whether experts move to other ranks between steps. swap: by the search of layout/balance.h.
enum class Balance : uint8_t { none, swap };
template <>
inline constexpr EnumWord<Balance> kEnumWords<Balance>[] = {{Balance::none, "none"}, {Balance::swap, "swap"}};

// The tokens among which an expert's capacity is counted: of a sequence, or of a rank.
enum class CapacityDomain : uint8_t { sequence, rank };
template <>
inline constexpr EnumWord<CapacityDomain> kEnumWords<CapacityDomain>[] = {{CapacityDomain::sequence, "sequence"},
                                                                          {CapacityDomain::rank, "rank"}};

// MoE layers under tensor parallelism. ssmb: tokens are sharded by sequence (X-MoE). ted: experts are sharded.
enum class MoeTpMode : uint8_t { ssmb, ted };
template <>
inline constexpr EnumWord<MoeTpMode> kEnumWords<MoeTpMode>[] = {{MoeTpMode::ssmb, "ssmb"}, {MoeTpMode::ted, "ted"}};

// Activations that backward recomputes (layout/recompute.h).
enum class Recompute : uint8_t { none, keep_norms, selective, moe, full };
template <>
inline constexpr EnumWord<Recompute> kEnumWords<Recompute>[] = {{Recompute::keep_norms, "keep_norms"},
                                                                {Recompute::none, "none"},
                                                                {Recompute::moe, "moe"},
                                                                {Recompute::selective, "selective"},
                                                                {Recompute::full, "full"}};

// Tensors that stay in host memory. optimizer: moments, and the low 16 bits of the master weights of bf16 matrices.
enum class Offload : uint8_t { none, optimizer };
template <>
inline constexpr EnumWord<Offload> kEnumWords<Offload>[] = {{Offload::none, "none"}, {Offload::optimizer, "optimizer"}};

// Dtypes of expert gradients, of moments and of logits: those of kEnumWords<DType>, the default first.
inline constexpr EnumWord<DType> kStateDTypes[] = {{DType::f32, "fp32"}, {DType::bf16, "bf16"}};

// brief: lines of at most 120 columns. detailed: lines as long as they get, and more figures of a step.
enum class LogFormat : uint8_t { brief, detailed };
template <>
inline constexpr EnumWord<LogFormat> kEnumWords<LogFormat>[] = {{LogFormat::brief, "short"},
                                                                {LogFormat::detailed, "long"}};

// Loads of experts that replace those of the router's choices (moe/forced_load.h); none: as the router chooses.
enum class ForcedLoad : uint8_t {
  none,
  balanced,
  hot_experts,
  hot_rank,
  hot_spread,
  idle_experts,
  moving,
  burst,
  one_expert,
  skip_expert,
};
template <>
inline constexpr EnumWord<ForcedLoad> kEnumWords<ForcedLoad>[] = {
    {ForcedLoad::none, "none"},
    {ForcedLoad::balanced, "balanced"},
    {ForcedLoad::hot_experts, "hot_experts"},
    {ForcedLoad::hot_rank, "hot_rank"},
    {ForcedLoad::hot_spread, "hot_spread"},
    {ForcedLoad::idle_experts, "idle_experts"},
    {ForcedLoad::moving, "moving"},
    {ForcedLoad::burst, "burst"},
    {ForcedLoad::one_expert, "one_expert"},
    {ForcedLoad::skip_expert, "skip_expert"},
};

}  // namespace mw
