// What a preflight finds wrong with made-up jobs.
#include "train/doctor/doctor.h"

#include "train/helpers.h"

namespace mw::test {
namespace {

// Ranks of equal speed, two on a node, each linked to the next.
JobHealth healthy(int ranks) {
  JobHealth health;
  for (int r = 0; r < ranks; ++r) {
    health.ranks.push_back({fmt::format("node{}", r / 2), "1.0", "a GPU", 100e9 + r, 1e9, "", true});
    health.links.push_back({r, (r + 1) % ranks, r / 2 == (r + 1) % ranks / 2 ? 10e9 : 1e9});
  }
  return health;
}

std::string only_problem(const JobHealth& health) {
  const std::vector<std::string> problems = find_problems(health, "/data");
  EXPECT_EQ(problems.size(), 1u) << fmt::format("{}", fmt::join(problems, "\n"));
  return problems.empty() ? "" : problems[0];
}

TEST(Doctor, FindsNothingWrongWithAHealthyJob) {
  for (const int ranks : {1, 2, 7, 8}) EXPECT_TRUE(find_problems(healthy(ranks), "/data").empty()) << ranks;
}

TEST(Doctor, NamesTheSlowNodeOrTheSlowRank) {
  JobHealth health = healthy(8);
  health.ranks[4].flops_per_s = health.ranks[5].flops_per_s = 60e9;
  EXPECT_TRUE(contains(only_problem(health), "node node2: its ranks compute at 60.0 GFLOP/s"));
  health = healthy(8);
  health.ranks[3].flops_per_s = 40e9;
  EXPECT_TRUE(contains(only_problem(health), "rank 3 (node1): computes at 40.0 GFLOP/s"));
}

TEST(Doctor, ComparesLinksWithThoseOfTheirKind) {
  JobHealth health = healthy(8);
  health.links[3].bytes_per_s = 0.3e9;  // between nodes, where 1e9 is usual
  EXPECT_TRUE(contains(only_problem(health), "rank 3 (node1) to rank 4 (node2)"));
  health = healthy(8);
  health.links[2].bytes_per_s = 2e9;  // within a node, where 10e9 is usual
  EXPECT_TRUE(contains(only_problem(health), "within a node"));
}

TEST(Doctor, NamesRanksThatDifferAndFoldersThatFail) {
  JobHealth health = healthy(8);
  health.ranks[6].program = "0.9";
  EXPECT_TRUE(contains(only_problem(health), "rank 6 (node3): the program is 0.9, but most ranks have 1.0"));
  health = healthy(8);
  health.ranks[1].device = "a CPU";
  EXPECT_TRUE(contains(only_problem(health), "the device is a CPU"));
  health = healthy(8);
  health.ranks[2].folder_error = "disk full";
  health.ranks[2].write_bytes_per_s = 0;
  health.ranks[1].sees_next = false;  // of course not
  EXPECT_TRUE(contains(only_problem(health), "rank 2 (node1): disk full"));
  health = healthy(8);
  health.ranks[1].sees_next = false;
  EXPECT_TRUE(contains(only_problem(health), "cannot read in /data the file that rank 2 (node1) wrote"));
  EXPECT_TRUE(find_problems(health, "").empty());
  health = healthy(8);
  health.ranks[7].write_bytes_per_s = 0.1e9;
  EXPECT_TRUE(contains(only_problem(health), "rank 7 (node3): writes to /data"));
  health = healthy(8);
  health.sums_are_right = false;
  EXPECT_TRUE(contains(only_problem(health), "an all-reduce over all ranks gave a wrong sum"));
}

}  // namespace
}  // namespace mw::test
