// `verify` over ranks that are threads: gradient sums, ZeRO, the executor of every schedule and the exchanges of all
// axes give what one process gives, gradient by gradient and update by update.
#include "support/comm_world.h"
#include "support/thread_comm.h"
#include "train/helpers.h"
#include "train/verify/verify.h"

namespace mw::test {
namespace {

struct LayoutCase {
  const char* name;
  int ranks;
  MeshSpec mesh;
  const char* transport = "auto";
  const char *shares = "", *width_shares = "";
  int64_t weight_slots = 2, replica_slots = 0;
  const char* expert_shares = "";
};
// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest calls it by this name
void PrintTo(const LayoutCase& layout, std::ostream* out) { *out << layout.name; }

MeshSpec mesh_of(int64_t pp, int64_t tp, int64_t ep, int64_t zero, ScheduleKind schedule = ScheduleKind::one_f_one_b) {
  MeshSpec mesh;
  mesh.pp = pp;
  mesh.tp = tp;
  mesh.ep = ep;
  mesh.zero = zero;
  mesh.schedule = schedule;
  return mesh;
}

MeshSpec on_nodes(int64_t ranks, MeshSpec mesh) {
  mesh.ranks_per_node = ranks;
  return mesh;
}

const LayoutCase kLayouts[] = {
    {"data_parallel", 4, mesh_of(1, 1, 1, 0)},
    {"zero", 4, mesh_of(1, 1, 2, 1)},
    {"experts_padded", 4, mesh_of(1, 1, 4, 0), "padded"},
    {"pipeline_1f1b", 4, mesh_of(2, 1, 2, 0)},
    {"pipeline_gpipe_zero", 6, mesh_of(3, 1, 2, 1, ScheduleKind::gpipe)},
    {"pipeline_zb_h1", 4, mesh_of(2, 1, 1, 0, ScheduleKind::zb_h1)},
    {"pipeline_interleaved", 4, mesh_of(2, 1, 2, 0, ScheduleKind::interleaved)},
    {"pipeline_zb_v", 4, mesh_of(2, 1, 2, 1, ScheduleKind::zb_v)},
    {"tensor_parallel", 4, mesh_of(1, 2, 2, 1)},
    {"all_axes", 16, mesh_of(2, 2, 4, 1)},
    {"transports_by_layer", 4, mesh_of(1, 1, 2, 0), "flat,padded,auto"},
    {"in_place_and_flat", 2, mesh_of(1, 1, 1, 1), "in_place,flat,padded"},
    {"weights", 4, mesh_of(1, 1, 4, 0), "gather_weights"},
    {"weights_zero_tensor_parallel", 4, mesh_of(1, 2, 2, 1), "gather_weights"},
    {"weights_and_flat_interleaved", 4, mesh_of(2, 1, 2, 0, ScheduleKind::interleaved), "flat,gather_weights*2", "", "",
     0},
    {"weights_pipeline_zb_h1", 4, mesh_of(2, 1, 2, 0, ScheduleKind::zb_h1), "gather_weights"},
    {"weights_pipeline_zb_v", 8, on_nodes(3, mesh_of(2, 2, 2, 1, ScheduleKind::zb_v)), "gather_weights", "", "", 3},
    {"weights_shares_5_2_1", 3, mesh_of(1, 1, 3, 0), "gather_weights", "5,2,1"},
    {"tokens", 4, mesh_of(1, 1, 4, 0), "gather_tokens"},
    {"tokens_zero_tensor_parallel", 4, mesh_of(1, 2, 2, 1), "gather_tokens", "", "1,4"},
    {"tokens_and_flat_interleaved", 4, mesh_of(2, 1, 2, 0, ScheduleKind::interleaved), "flat,gather_tokens*2"},
    {"tokens_pipeline_zb_h1", 4, mesh_of(2, 1, 2, 0, ScheduleKind::zb_h1), "gather_tokens"},
    {"tokens_all_axes", 16, mesh_of(2, 2, 4, 1), "gather_tokens", "", "4,3,2,1"},
    {"tokens_shares_5_2_1", 3, mesh_of(1, 1, 3, 0), "gather_tokens", "5,2,1", "1,3,1"},
    {"halo_uneven_nodes", 3, on_nodes(2, mesh_of(1, 1, 3, 0)), "halo"},
    {"bypass_uneven_nodes", 5, on_nodes(3, mesh_of(1, 1, 5, 1)), "bypass"},
    {"bypass_pipeline_zb_v", 8, on_nodes(3, mesh_of(2, 1, 4, 0, ScheduleKind::zb_v)), "bypass"},
    {"bypass_all_axes", 16, on_nodes(3, mesh_of(2, 2, 4, 1)), "bypass"},
    {"halo_and_bypass", 4, on_nodes(1, mesh_of(1, 2, 4, 0)), "halo,bypass,flat"},
    {"bypass_shares_5_2_1", 3, on_nodes(2, mesh_of(1, 1, 3, 0)), "bypass", "5,2,1"},
    {"replicas", 4, mesh_of(1, 1, 4, 0), "flat", "", "", 2, 1},
    {"replicas_zero", 4, mesh_of(1, 1, 2, 1), "flat", "", "", 2, 2},
    {"replicas_tensor_parallel_zb_v", 8, mesh_of(2, 2, 2, 1, ScheduleKind::zb_v), "flat", "", "", 2, 1},
    {"replicas_halo", 3, on_nodes(2, mesh_of(1, 1, 3, 0)), "halo", "", "", 2, 2},
    {"replicas_bypass_zb_h1", 8, on_nodes(3, mesh_of(2, 1, 4, 0, ScheduleKind::zb_h1)), "bypass", "", "", 2, 1},
    {"replicas_of_shares_5_2_1", 3, on_nodes(2, mesh_of(1, 1, 3, 0)), "flat,halo,bypass", "5,2,1", "", 2, 1},
    {"replicas_of_experts_1_3_1", 3, on_nodes(2, mesh_of(1, 1, 3, 0)), "flat,halo,bypass", "", "", 2, 2, "1,3,1"},
    {"experts_2_1", 2, mesh_of(1, 1, 2, 0), "flat", "3,1", "", 2, 0, "2,1"},
    {"experts_1_3_1_halo_zero", 6, on_nodes(2, mesh_of(1, 1, 3, 1)), "halo", "2,1,1,1,2,1", "", 2, 0, "1,3,1"},
    {"experts_1_1_3_1_bypass_zb_h1", 8, on_nodes(3, mesh_of(2, 1, 4, 0, ScheduleKind::zb_h1)), "bypass", "", "", 2, 0,
     "1,1,3,1"},
    {"experts_1_2_2_1_padded", 4, mesh_of(1, 2, 4, 0), "padded", "", "", 2, 0, "1,2,2,1"},
    {"experts_and_slices", 4, mesh_of(1, 1, 2, 1), "flat,gather_tokens,gather_weights", "", "1,4", 2, 0, "1,4"},
    {"shares_3_1", 2, mesh_of(1, 1, 2, 0), "auto", "3,1"},
    {"shares_1_3_zero", 4, mesh_of(1, 2, 2, 1), "padded", "1,3"},
    {"shares_5_2_1", 6, mesh_of(2, 1, 3, 1, ScheduleKind::zb_h1), "auto", "5,2,1"},
};

struct Verdict {
  std::vector<Exit> codes;  // by rank
  std::string told;         // by rank 0, and the error that ended it
};

Verdict verify(const LayoutCase& layout, Fault fault = Fault::none) {
  RunSpec run = small_run();
  run.native.layers = 4;
  run.mesh = layout.mesh;
  run.moe.transport = layout.transport;
  run.moe.weight_slots = layout.weight_slots;
  run.moe.replica_slots = layout.replica_slots;
  run.mesh.expert_shares = layout.expert_shares;
  run.migrate = layout.replica_slots > 0 || !run.mesh.expert_shares.empty();
  if (fault == Fault::stale_replica) run.verify.steps = 3;
  run.mesh.shares = layout.shares;
  run.mesh.width_shares = layout.width_shares;
  if (!run.mesh.shares.empty()) run.train.micro_batches = 2;  // of eight samples
  if (layout.ranks % 2 == 1 && run.mesh.shares.empty())
    run.train.global_batch = run.train.micro_batches * 2 * layout.ranks;
  run.train.threads = 1;
  run.fault = fault;
  Verdict verdict{std::vector<Exit>(static_cast<size_t>(layout.ranks), Exit::internal), ""};
  std::string error;
  testing::internal::CaptureStdout();
  try {
    run_ranks(layout.ranks, [&](Comm& comm, Stream&) {
      CommWorld world(comm);
      verdict.codes[static_cast<size_t>(comm.rank())] = run_verify(world, run);
    });
  } catch (const Error& e) {
    error = e.what();
  }
  verdict.told = testing::internal::GetCapturedStdout() + error;
  return verdict;
}

class VerifyLayout : public testing::TestWithParam<LayoutCase> {};

TEST_P(VerifyLayout, GivesWhatOneProcessGives) {
  const Verdict verdict = verify(GetParam());
  EXPECT_EQ(verdict.codes, std::vector<Exit>(verdict.codes.size(), Exit::ok)) << verdict.told;
}

INSTANTIATE_TEST_SUITE_P(Of, VerifyLayout, testing::ValuesIn(kLayouts),
                         [](const auto& tested) { return tested.param.name; });

// The tests above would also pass if nothing were compared.
TEST(VerifyLayout, TellsOfAFaultOnEveryRank) {
  for (const Fault fault : {Fault::skip_router_sum, Fault::double_expert_gradient, Fault::drop_row}) {
    const Verdict verdict = verify({"faulty", 4, mesh_of(1, 1, 2, 0)}, fault);
    EXPECT_EQ(verdict.codes, std::vector<Exit>(4, Exit::check_failed)) << word_of(fault) << verdict.told;
  }
  for (const auto& [transport, fault] : {std::pair("gather_tokens", Fault::short_slice),
                                         {"gather_weights", Fault::stale_cache_slot},
                                         {"gather_weights", Fault::late_reduce}}) {
    const Verdict verdict = verify({transport, 2, mesh_of(1, 1, 2, 0), transport}, fault);
    EXPECT_EQ(verdict.codes, std::vector<Exit>(2, Exit::check_failed)) << word_of(fault) << verdict.told;
  }
  for (const Fault fault : {Fault::lost_replica_gradient, Fault::double_replica_gradient, Fault::norm_counts_replicas,
                            Fault::stale_replica}) {
    const Verdict verdict = verify({"replicas", 2, mesh_of(1, 1, 2, 0), "flat", "", "", 2, 1}, fault);
    EXPECT_EQ(verdict.codes, std::vector<Exit>(2, Exit::check_failed)) << word_of(fault) << verdict.told;
  }
}

}  // namespace
}  // namespace mw::test
