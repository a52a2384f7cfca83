// A packed sequence of several documents is to a model what its documents are alone, without the mask.
#include <algorithm>
#include <cmath>

#include "model/helpers.h"

namespace mw::test {
namespace {

// What a model makes of ids that are one sequence.
struct Made {
  std::vector<float> logits;
  std::vector<std::vector<float>> gradients;
};

constexpr int64_t kVocab = 29;
constexpr float kSeed = 0.1f;

Made run(SmallModel& m, const std::vector<int32_t>& ids, const std::vector<int32_t>& labels,
         const std::vector<int32_t>& starts) {
  const auto tokens = static_cast<int64_t>(ids.size());
  const Batch batch{ids.data(), labels.data(), 1, tokens, starts.empty() ? nullptr : starts.data()};
  m.params.zero_gradients(m.stream);
  m.model.forward(batch, true);
  Made made{m.model.logits(0, tokens), {}};
  summed_loss(m.model, batch, kSeed);
  m.model.set_auxiliary(m.model.statistics(), tokens, 1.0);
  m.model.backward(batch, Store::overwrite);
  for (const Parameter& p : m.params.all())
    if (p.row.trained) made.gradients.emplace_back(p.grad.as<float>(), p.grad.as<float>() + p.grad.numel());
  return made;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-12);
}

void check_documents(RunSpec spec) {
  spec.data.document_mask = true;
  spec.moe.aux_loss_coef = spec.moe.z_loss_coef = 0;  // these are means over a micro-batch
  SmallModel m(spec);
  const std::vector<int32_t> ids(m.ids.begin(), m.ids.begin() + 9), labels(m.labels.begin(), m.labels.begin() + 9),
      starts = {0, 0, 0, 0, 4, 5, 5, 5, 5};
  const Made packed = run(m, ids, labels, starts);
  Made sum;
  for (const auto& [begin, end] : {std::pair(0, 4), std::pair(4, 5), std::pair(5, 9)}) {
    const auto part = [&](const std::vector<int32_t>& of) { return std::vector(of.begin() + begin, of.begin() + end); };
    const Made alone = run(m, part(ids), part(labels), {});
    sum.logits.insert(sum.logits.end(), alone.logits.begin(), alone.logits.end());
    sum.gradients.resize(alone.gradients.size());
    for (size_t i = 0; i < alone.gradients.size(); ++i) {
      sum.gradients[i].resize(alone.gradients[i].size());
      for (size_t k = 0; k < alone.gradients[i].size(); ++k) sum.gradients[i][k] += alone.gradients[i][k];
    }
  }
  ASSERT_EQ(packed.logits.size(), static_cast<size_t>(9 * kVocab));
  for (size_t i = 0; i < packed.logits.size(); ++i) EXPECT_NEAR(packed.logits[i], sum.logits[i], 1e-5f) << i;
  for (size_t i = 0; i < packed.gradients.size(); ++i)
    EXPECT_LT(distance(packed.gradients[i], sum.gradients[i]), 1e-5) << "gradient " << i;
  const Made without = run(m, ids, labels, {});  // the mask matters
  EXPECT_GT(distance(without.logits, packed.logits), 1e-3);
}

TEST(Documents, OfGroupedAttentionAreIndependent) {
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    RunSpec spec = small_run();
    spec.recompute = recompute;
    check_documents(spec);
  }
  RunSpec spec = small_run();
  spec.native.qk_norm = QkNorm::full_width;
  spec.native.clip_qkv = 0.5;
  check_documents(spec);
}

TEST(Documents, OfLatentAttentionAreIndependent) {
  for (const int64_t q_rank : {0, 11}) {
    RunSpec spec = latent_run();
    spec.native.q_rank = q_rank;
    check_documents(spec);
  }
}

}  // namespace
}  // namespace mw::test
