// Every gradient of whole models against central differences of their own loss.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/helpers.h"

namespace mw::test {
namespace {

// Central differences at h and h/2, extrapolated: the error left is O(h^4).
template <class Loss>
double derivative(const Loss& loss_at, double h) {
  const auto difference = [&](double step) { return (loss_at(step) - loss_at(-step)) / (2 * step); };
  return (4 * difference(h / 2) - difference(h)) / 3;
}

// The loss carries rounding of about 1e-7 (fp32 terms of a few units each, summed in double), so a derivative over
// steps of h is known to about 1e-7 / h, whatever the size of the gradient.
constexpr double kStep = 1e-2, kNoise = 1e-7 / kStep * 10;

void check_gradients(const RunSpec& run) {
  SmallModel m(run);
  for (Parameter& p : m.params.all())  // a pass must overwrite or zero every element
    if (p.row.trained) std::fill_n(p.grad.as<float>(), p.grad.numel(), NAN);
  m.params.zero_gradients(m.stream);
  m.loss(false);  // records the routing: the choice of experts is no part of the derivative
  const double loss = m.loss(true, true);
  ASSERT_TRUE(std::isfinite(loss));
  EXPECT_EQ(loss, m.loss(true));
  for (Parameter& p : m.params.all()) {
    if (!p.row.trained) continue;
    float* w = p.master.as<float>();
    const auto size = static_cast<size_t>(p.master.numel());
    const std::vector<float> w0(w, w + size), g(p.grad.as<float>(), p.grad.as<float>() + size);
    const double norm = std::sqrt(std::inner_product(g.begin(), g.end(), g.begin(), 0.0));
    EXPECT_GT(norm, 1e-4) << p.row.name << " has no gradient to check";
    // Along the gradient itself the derivative is its norm.
    const double along = derivative(
        [&](double step) {
          for (size_t i = 0; i < size; ++i) w[i] = static_cast<float>(w0[i] + step * g[i] / norm);
          return m.loss(true);
        },
        kStep);
    std::copy(w0.begin(), w0.end(), w);
    EXPECT_NEAR(along, norm, 2e-3 * norm + kNoise) << p.row.name << " along its gradient";
    // The largest element, and some others: zeros must be zeros too.
    std::vector<size_t> elements = {static_cast<size_t>(std::max_element(g.begin(), g.end()) - g.begin()),
                                    static_cast<size_t>(std::min_element(g.begin(), g.end()) - g.begin()), 0, size / 3,
                                    size - 1};
    for (const size_t i : elements) {
      const double d = derivative(
          [&](double step) {
            w[i] = static_cast<float>(w0[i] + step);
            return m.loss(true);
          },
          kStep);
      w[i] = w0[i];
      EXPECT_NEAR(d, g[i], 2e-3 * std::abs(g[i]) + kNoise) << p.row.name << "[" << i << "]";
    }
  }
}

TEST(ModelGradient, SoftmaxSwigluSharedDense) { check_gradients(small_run()); }

TEST(ModelGradient, SigmoidBiasFullWidthNormTiedModelScope) {
  RunSpec run = small_run();
  run.native.score = ScoreFunction::sigmoid;
  run.native.selection_bias = true;
  run.native.renormalise = true;
  run.native.routed_scale = 2.5;
  run.native.qk_norm = QkNorm::full_width;
  run.native.tie_embeddings = true;
  run.native.activation = Activation::gelu;
  run.native.top_k = 4;
  run.moe.aux_scope = AuxScope::model;
  check_gradients(run);
}

TEST(ModelGradient, LatentAttention) { check_gradients(latent_run()); }

TEST(ModelGradient, CompressedQueriesGroupsAndSequenceScope) {
  RunSpec run = latent_run();
  run.native.q_rank = 11;
  run.native.score = ScoreFunction::sigmoid;
  run.native.selection_bias = true;
  run.native.expert_groups = 3;
  run.native.kept_groups = run.native.group_best = 2;
  run.moe.aux_scope = AuxScope::sequence;
  check_gradients(run);
}

TEST(ModelGradient, DocumentsOfGroupedAndLatentAttention) {
  for (RunSpec run : {small_run(), latent_run()}) {
    run.data.document_mask = true;
    check_gradients(run);
  }
}

TEST(ModelGradient, TopOneWithoutSharedExpertsOrNorms) {
  RunSpec run = small_run();
  run.native.renormalise = false;
  run.native.top_k = 1;
  run.native.shared_experts = 0;
  run.native.dense_layers = 0;
  run.native.kv_heads = 4;
  run.native.qk_norm = QkNorm::none;
  run.moe.z_loss_coef = 0;
  check_gradients(run);
}

TEST(ModelGradient, EveryExpertThroughTheExchange) {
  RunSpec run = small_run();
  run.native.top_k = 6;
  run.moe.transport = "padded";
  run.moe.row_chunks = 3;
  check_gradients(run);
}

TEST(ModelGradient, DenseOnly) {
  RunSpec run = small_run();
  run.native.dense_layers = run.native.layers = 2;
  check_gradients(run);
}

}  // namespace
}  // namespace mw::test
