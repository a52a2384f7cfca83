// One MoE layer over every transport and on up to 16 ranks, beside one process that has all tokens and all experts.
#include <map>
#include <mutex>

#include "moe/matrix_cases.h"
#include "support/thread_comm.h"

namespace mw::test {
namespace {

using References = std::map<std::string, TestLayer::Outcome>;

References references_of(const std::vector<MatrixCase>& cases) {
  References references;
  for (const MatrixCase& c : cases)
    if (references.count(reference_name(c)) == 0) references[reference_name(c)] = reference_of(c);
  return references;
}

// Where ranks differ from the reference, by case.
std::vector<std::string> differences_of(const std::vector<MatrixCase>& cases) {
  const References references = references_of(cases);
  std::vector<std::string> found(cases.size());
  std::mutex mutex;
  run_ranks(cases.front().ranks, [&](Comm& world, Stream& stream) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::string own = differences(cases[i], references.at(reference_name(cases[i])), world, stream);
      const std::lock_guard<std::mutex> lock(mutex);
      if (!own.empty()) found[i] += fmt::format("rank {}: {}", world.rank(), own);
    }
  });
  return found;
}

// On more ranks fewer cases, which take longer.
struct Size {
  int ranks, stride;
};
constexpr Size kSizes[] = {{1, 7}, {2, 7}, {3, 7}, {4, 7}, {8, 17}, {16, 43}};
constexpr Size kSizesByNode[] = {{1, 139}, {2, 139}, {3, 139}, {4, 139}, {6, 199}, {9, 419}, {16, 839}};

constexpr Size kSizesWithReplicas[] = {{2, 17}, {3, 17}, {4, 17}, {8, 37}};
constexpr Size kSizesByNodeWithReplicas[] = {{2, 31}, {3, 31}, {4, 31}, {8, 73}};

class TransportMatrix : public testing::TestWithParam<std::tuple<Size, const char*, int>> {
 protected:
  std::vector<MatrixCase> cases() const {
    const auto& [size, transport, replicas] = GetParam();
    return matrix_cases(size.ranks, transport, size.stride, replicas);
  }
};

TEST_P(TransportMatrix, GivesWhatOneProcessGives) {
  const std::vector<std::string> found = differences_of(cases());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], "") << describe(cases()[i]);
}

// Of no tokens, none can be lost, and a choice that a capacity has dropped not once more.
TEST_P(TransportMatrix, FailsInEveryCaseWhereOneRowIsLost) {
  std::vector<MatrixCase> faulty;
  for (MatrixCase c : cases()) {
    c.drop_one_row = true;
    const bool has_tokens = c.ranks > 1 || c.tokens != Tokens::none_on_one_rank;
    if (has_tokens && !c.capacity) faulty.push_back(c);
  }
  const std::vector<std::string> found = differences_of(faulty);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NE(found[i], "") << describe(faulty[i]);
}

INSTANTIATE_TEST_SUITE_P(Of, TransportMatrix,
                         testing::Combine(testing::ValuesIn(kSizes),
                                          testing::Values("flat", "padded", "gather_weights", "gather_tokens"),
                                          testing::Values(0)),
                         [](const auto& tested) {
                           return fmt::format("{}Ranks_{}", std::get<0>(tested.param).ranks, std::get<1>(tested.param));
                         });

INSTANTIATE_TEST_SUITE_P(ByNode, TransportMatrix,
                         testing::Combine(testing::ValuesIn(kSizesByNode), testing::Values("halo", "bypass"),
                                          testing::Values(0)),
                         [](const auto& tested) {
                           return fmt::format("{}Ranks_{}", std::get<0>(tested.param).ranks, std::get<1>(tested.param));
                         });

std::string name_with_replicas(const testing::TestParamInfo<std::tuple<Size, const char*, int>>& tested) {
  const auto& [size, transport, replicas] = tested.param;
  return fmt::format("{}Ranks_{}_{}", size.ranks, transport, replicas);
}
INSTANTIATE_TEST_SUITE_P(WithReplicas, TransportMatrix,
                         testing::Combine(testing::ValuesIn(kSizesWithReplicas), testing::Values("flat"),
                                          testing::Values(1, 2)),
                         name_with_replicas);
INSTANTIATE_TEST_SUITE_P(ByNodeWithReplicas, TransportMatrix,
                         testing::Combine(testing::ValuesIn(kSizesByNodeWithReplicas),
                                          testing::Values("halo", "bypass"), testing::Values(1, 2)),
                         name_with_replicas);

TEST(TransportMatrix, CapacityDropsRowsWhereItIsSet) {
  const std::vector<MatrixCase> cases = matrix_cases(4, "flat", 7);
  const References references = references_of(cases);
  for (const MatrixCase& c : cases) {
    const double dropped = references.at(reference_name(c)).statistics.dropped;
    EXPECT_TRUE(c.capacity ? dropped > 0 : dropped == 0) << describe(c) << ": " << dropped;
  }
}

}  // namespace
}  // namespace mw::test
