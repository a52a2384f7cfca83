// Which rank makes which of Muon's matrices orthogonal, over every rank of a layout.
#include "layout/muon_plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "layout/gradient_blocks.h"
#include "layout/helpers.h"

namespace mw::test {
namespace {

struct Case {
  const char* name;
  int ranks;
  std::function<void(RunSpec&)> change;
};

const Case kCases[] = {
    {"alone", 1, [](RunSpec&) {}},
    {"replicas", 4, [](RunSpec& r) { r.mesh.ep = 2; }},
    {"zero", 4, [](RunSpec& r) { r.mesh.ep = 2, r.mesh.zero = 1; }},
    {"tp", 4, [](RunSpec& r) { r.mesh.tp = 2; }},
    {"tp_zero", 8, [](RunSpec& r) { r.mesh.tp = 4, r.mesh.ep = 2, r.mesh.zero = 1; }},
    {"ted", 4, [](RunSpec& r) { r.mesh.tp = 2, r.mesh.ep = 2, r.moe.tp_mode = MoeTpMode::ted; }},
    {"ted_zero", 8, [](RunSpec& r) { r.mesh.tp = 2, r.moe.tp_mode = MoeTpMode::ted, r.mesh.zero = 1; }},
    {"slices", 4, [](RunSpec& r) { r.mesh.ep = 4, r.moe.transport = "gather_tokens"; }},
    {"slices_zero", 4, [](RunSpec& r) { r.mesh.ep = 2, r.moe.transport = "gather_tokens", r.mesh.zero = 1; }},
    {"pp_zero", 8, [](RunSpec& r) { r.mesh.pp = 2, r.mesh.tp = 2, r.mesh.zero = 1; }},
};

RunSpec muon_run(const Case& c) {
  RunSpec run = small_run();
  run.train.optimizer = Optimizer::muon;
  run.train.muon.router = true;
  c.change(run);
  return run;
}

// Elements of a local tensor are counted one by one.
using Elements = std::map<std::pair<size_t, int64_t>, int>;
void count(Elements& elements, size_t row, ElementRange range) {
  for (int64_t i = range.begin; i < range.end(); ++i) ++elements[{row, i}];
}

TEST(MuonPlan, UpdatesEveryOwnedElementOnce) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const RunSpec run = muon_run(c);
    std::map<int, std::vector<std::vector<MuonMatrix>>> rounds;  // by pipeline coordinate
    for (int rank = 0; rank < c.ranks; ++rank) {
      const Plan plan = small_plan(run, c.ranks, rank);
      const MuonPlan muon = plan_muon(plan);
      const std::vector<ParamRow> rows = own_params(plan);
      std::vector<LocalParam> locals;
      for (const ParamRow& row : rows)
        locals.push_back(local_param(row, plan.model, plan.placements->layers, plan.mesh, plan.coords));
      const GradientBlocks blocks = make_gradient_blocks(rows, locals, plan.mesh, plan.coords, run);
      Elements expected, found;
      for (size_t i = 0; i < rows.size(); ++i)
        if (rows[i].muon) count(expected, i, blocks.of(locals[i].replicas).own(blocks.begins[i], locals[i].numel()));
      for (const MuonRun& whole : muon.whole) {
        EXPECT_EQ(whole.elements.count % whole.shape.numel(), 0);
        EXPECT_LE(whole.elements.count, whole.shape.batch() * whole.shape.numel());
        count(found, whole.row, whole.elements);
      }
      const int own = plan.coords.dp * plan.mesh.tp + plan.coords.tp;
      for (const auto& round : muon.rounds)
        for (const MuonMatrix& matrix : round) {
          std::set<int> holders;
          int64_t elements = 0;
          for (const MuonPart& part : matrix.parts) {
            holders.insert(part.rank);
            elements += part.elements.count;
            if (part.rank == own) count(found, matrix.row, part.elements);
          }
          EXPECT_EQ(elements, matrix.shape.numel());
          EXPECT_GT(holders.size(), 1u);
          EXPECT_TRUE(holders.count(matrix.owner));
        }
      EXPECT_EQ(expected, found) << "rank " << rank;
      // All ranks of a stage go through the same rounds.
      const auto [stage, is_first] = rounds.try_emplace(plan.coords.pp, muon.rounds);
      ASSERT_EQ(stage->second.size(), muon.rounds.size());
      for (size_t i = 0; i < muon.rounds.size(); ++i) {
        ASSERT_EQ(stage->second[i].size(), muon.rounds[i].size());
        for (size_t j = 0; j < muon.rounds[i].size(); ++j) {
          EXPECT_EQ(stage->second[i][j].owner, muon.rounds[i][j].owner);
          EXPECT_EQ(stage->second[i][j].index, muon.rounds[i][j].index);
        }
      }
    }
  }
}

TEST(MuonPlan, FitsItsBuffers) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const Plan plan = small_plan(muon_run(c), c.ranks, 0);
    MuonBuffers buffers;
    for (const ParamRow& row : own_params(plan)) buffers.widen(row);
    for (const auto& round : plan_muon(plan).rounds) {
      std::map<int, int64_t> sent, owned;
      for (const MuonMatrix& matrix : round) {
        owned[matrix.owner] += matrix.shape.numel();
        for (const MuonPart& part : matrix.parts) sent[part.rank] += part.elements.count;
      }
      for (const auto* sums : {&sent, &owned})
        for (const auto& [rank, elements] : *sums) EXPECT_LE(elements, buffers.matrices) << rank;
    }
  }
}

// Without ZeRO only what tensor parallelism or slices cut is exchanged; owners share the work.
TEST(MuonPlan, ExchangesWhatIsSplit) {
  const auto split_rows = [](const char* name) {
    std::set<std::string> names;
    for (const Case& c : kCases)
      if (std::string(c.name) == name) {
        const Plan plan = small_plan(muon_run(c), c.ranks, 0);
        for (const auto& round : plan_muon(plan).rounds)
          for (const MuonMatrix& matrix : round) names.insert(own_params(plan)[matrix.row].name);
      }
    return names;
  };
  EXPECT_TRUE(split_rows("alone").empty());
  EXPECT_TRUE(split_rows("replicas").empty());
  EXPECT_TRUE(split_rows("tp").count("layers.0.attn.wo"));
  EXPECT_FALSE(split_rows("tp").count("layers.1.moe.w_up"));
  EXPECT_TRUE(split_rows("ted").count("layers.1.moe.w_up"));
  EXPECT_EQ(split_rows("slices"), (std::set<std::string>{"layers.1.moe.w_down", "layers.1.moe.w_up"}));
}

// One moment less: 4 bytes for each element that Muon updates.
TEST(MuonPlan, SavesAMoment) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    int64_t saved = 0, elements = 0;
    for (int rank = 0; rank < c.ranks; ++rank) {
      RunSpec run = muon_run(c);
      const Plan muon = small_plan(run, c.ranks, rank);
      run.train.optimizer = Optimizer::adamw;
      run.train.muon = {};
      const Plan adamw = small_plan(run, c.ranks, rank);
      const auto moments = [](const Plan& plan) {
        int64_t bytes = 0;
        for (const ByteRow& row : plan.parameter_rows)
          if (row.kind == ByteKind::moment)
            bytes += 4 * std::accumulate(row.shape.begin(), row.shape.end(), int64_t{1}, std::multiplies<>());
        return bytes;
      };
      saved += moments(adamw) - moments(muon);
      const MuonPlan plan = plan_muon(muon);
      for (const MuonRun& whole : plan.whole) elements += whole.elements.count;
      for (const auto& round : plan.rounds)
        for (const MuonMatrix& matrix : round)
          for (const MuonPart& part : matrix.parts)
            if (part.rank == muon.coords.dp * muon.mesh.tp + muon.coords.tp) elements += part.elements.count;
    }
    EXPECT_EQ(saved, 4 * elements);
    EXPECT_GT(saved, 0);
  }
}

}  // namespace
}  // namespace mw::test
