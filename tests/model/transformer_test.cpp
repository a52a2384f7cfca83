// A whole model: its memory against the table of bytes, its transports against each other, its repetition.
#include <algorithm>
#include <cmath>
#include <cstring>

#include <map>
#include <numeric>
#include <span>

#include "model/helpers.h"

namespace mw::test {
namespace {

Outcome run_once(const RunSpec& run, int threads = 1) {
  SmallModel m(run, threads);
  return run_once(m);
}

double largest_difference(const Outcome& a, const Outcome& b) {
  double worst = std::abs(a.loss - b.loss) / std::abs(b.loss);
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    double difference = 0, norm = 0;
    for (size_t n = 0; n < a.gradients[i].size(); ++n) {
      difference += std::pow(a.gradients[i][n] - b.gradients[i][n], 2.0);
      norm += std::pow(b.gradients[i][n], 2.0);
    }
    worst = std::max(worst, std::sqrt(difference) / std::max(std::sqrt(norm), 1e-12));
  }
  return worst;
}

RunSpec with(const char* transport, DType dtype, int64_t chunks = 1) {
  RunSpec run = small_run();
  run.moe.transport = transport;
  run.moe.row_chunks = chunks;
  run.train.dtype = dtype;
  return run;
}

TEST(Transformer, FixedMemoryIsTheTableOfBytes) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const char* transport : {"in_place", "flat", "padded"})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::moe, Recompute::full}) {
        RunSpec run = with(transport, dtype);
        run.recompute = recompute;
        run.native.score = ScoreFunction::sigmoid;
        run.native.selection_bias = true;
        run.native.clip_qkv = 2;
        run.data.document_mask = recompute != Recompute::none;
        SmallModel m(run);
        const std::string what = fmt::format("{} {} {}", word_of(dtype), transport, word_of(recompute));
        const ByteSummary s = summarise(all_rows(m.plan));
        EXPECT_EQ(m.params.fixed_bytes() + m.model.activations().fixed_bytes(), s.fixed) << what;
        run_once(m);
        EXPECT_EQ(m.params.fixed_bytes() + m.model.activations().fixed_bytes(), s.fixed);
        EXPECT_LE(m.model.activations().peak_growing_bytes(), s.routed_max) << what;
        EXPECT_TRUE(m.model.activations().unused().empty());
      }
}

// Rows that arrive in the order in which they would have been gathered give the same bits.
TEST(Transformer, FlatExchangeOfOneRankIsInPlaceToTheBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Outcome in_place = run_once(with("in_place", dtype));
    for (const int64_t chunks : {1, 2, 3, 100}) {
      const Outcome flat = run_once(with("flat", dtype, chunks));
      EXPECT_EQ(flat.loss, in_place.loss) << word_of(dtype) << ", chunks " << chunks;
      EXPECT_EQ(flat.gradients, in_place.gradients) << word_of(dtype) << ", chunks " << chunks;
      EXPECT_EQ(flat.statistics, in_place.statistics);
    }
  }
}

TEST(Transformer, PaddingChangesNothingButRounding) {
  const Outcome in_place = run_once(with("in_place", DType::f32));
  for (const int64_t chunks : {1, 3}) {
    const Outcome padded = run_once(with("padded", DType::f32, chunks));
    EXPECT_LT(largest_difference(padded, in_place), 2e-6) << chunks;
    EXPECT_EQ(padded.statistics, in_place.statistics);
  }
}

// Logits of 200 tokens in chunks of 64, and their gradients as those of two, the last of them short.
TEST(Transformer, ChunksOfLogitsMultipliedTogetherChangeOnlyRounding) {
  RunSpec run = with("in_place", DType::bf16);
  run.train.seq_len = 100;
  run.train.global_batch = 2 * run.train.micro_batches;
  Platform platform = measure_platform(build_native_model(run.native), run, Mesh{}, 1);
  platform.logit_elements = 64 * 4096;
  SmallModel one_by_one(run, 1, platform);
  platform.logit_gradient_rows = 120;
  SmallModel together(run, 1, platform);
  const auto rows_of = [](const SmallModel& m, const std::string& name) {
    for (const ByteRow& row : m.plan.activation_rows)
      if (row.name == name) return row.shape.front();
    return int64_t{0};
  };
  EXPECT_EQ(rows_of(one_by_one, "work.d_logits_bf16"), 64);
  EXPECT_EQ(rows_of(together, "work.d_logits_bf16"), 128);
  EXPECT_EQ(rows_of(together, "work.logits"), 64);
  const Outcome a = run_once(one_by_one), b = run_once(together);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_LT(largest_difference(b, a), 1e-6);
  EXPECT_EQ(together.loss(false), b.loss);  // without gradients
}

TEST(Transformer, RepeatsItselfToTheBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SmallModel m(with("flat", dtype), 2);
    const Outcome first = run_once(m), second = run_once(m);
    EXPECT_EQ(first.loss, second.loss);
    EXPECT_EQ(first.gradients, second.gradients);
    EXPECT_EQ(run_once(with("flat", dtype), 2).gradients, first.gradients);
  }
}

TEST(Transformer, Bf16IsNearFp32) {
  RunSpec run = with("in_place", DType::bf16);
  const Outcome b = run_once(run), f = run_once(with("in_place", DType::f32));
  EXPECT_NEAR(b.loss, f.loss, 2e-2 * f.loss);  // three layers at 8 bits of mantissa, flips of routing included
}

// Of 64 and of 29 classes, so that rows are packs and not.
TEST(Transformer, Bf16LogitsAreNearFp32Ones) {
  for (const int64_t vocab : {29, 64}) {
    RunSpec run = with("in_place", DType::bf16);
    run.native.vocab = vocab;
    const Outcome exact = run_once(run);
    run.logits = DType::bf16;
    const Outcome rounded = run_once(run);
    EXPECT_NE(rounded.loss, exact.loss);
    EXPECT_LT(largest_difference(rounded, exact), 3e-2) << vocab;
  }
}

TEST(Transformer, CapacityDropsRowsAndSaysSo) {
  RunSpec run = small_run();
  run.moe.capacity_factor = 1.0;
  for (const char* transport : {"in_place", "flat", "padded"}) {
    run.moe.transport = transport;
    SmallModel m(run);
    const Outcome out = run_once(m);
    std::span<const double> left = out.statistics;
    double dropped = 0;
    ASSERT_EQ(m.model.moe_layers(), 2);
    for (const int64_t layer : m.model.moe_index()) {
      ASSERT_FALSE(left.empty());
      const LoadStatistics sums = take_statistics(m.spec.layers[static_cast<size_t>(layer)].moe, left);
      EXPECT_EQ(std::accumulate(sums.counts.begin(), sums.counts.end(), 0.0), 4 * 9 * 2);  // counted before drops
      dropped += sums.dropped;
    }
    EXPECT_TRUE(left.empty());
    EXPECT_GT(dropped, 0) << transport;
  }
}

TEST(Transformer, LogitsAreThoseOfTheLoss) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    RunSpec run = small_run();
    run.logits = dtype;
    if (dtype == DType::bf16) run.train.dtype = dtype;
    SmallModel m(run);
    m.model.forward(m.batch(), false);
    const double sum = summed_loss(m.model, m.batch(), 0.0f);
    m.model.forward(m.batch(), false);
    const int64_t tokens = m.plan.batch.tokens();
    const std::vector<float> logits = m.model.logits(0, tokens);
    double expected = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      if (m.labels[static_cast<size_t>(t)] < 0) continue;
      const float* row = &logits[static_cast<size_t>(t * 29)];
      double norm = 0;
      for (int v = 0; v < 29; ++v) norm += std::exp(static_cast<double>(row[v]));
      expected += std::log(norm) - row[m.labels[static_cast<size_t>(t)]];
    }
    EXPECT_NEAR(sum, expected, 1e-4 * expected) << word_of(dtype);
  }
}

// A prefix of a sequence gives the same logits whatever follows it, and whatever stands in other sequences.
TEST(Transformer, LooksBackwardsOnly) {
  SmallModel m(small_run());
  const auto logits = [&] {
    m.model.forward(m.batch(), false);
    return m.model.logits(9, 4);  // the second sequence's first four tokens
  };
  const std::vector<float> before = logits();
  for (size_t t = 0; t < m.ids.size(); ++t)
    if (t < 9 || t >= 13) m.ids[t] = (m.ids[t] + 7) % 29;
  const std::vector<float> after = logits();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(before[i], after[i], 1e-5f);
  m.ids[9] = (m.ids[9] + 1) % 29;
  EXPECT_GT(std::abs(logits()[29] - before[29]), 1e-4f);
}

TEST(Transformer, ShorterBatchesUseTheFrontOfItsMemory) {
  SmallModel m(small_run());
  const auto loss_of = [&](int64_t sequences, int64_t seq_len, const std::vector<int32_t>& ids,
                           const std::vector<int32_t>& labels) {
    const Batch batch{ids.data(), labels.data(), sequences, seq_len};
    m.model.forward(batch, false);
    return summed_loss(m.model, batch, 0.0f);
  };
  double sum = 0;
  for (std::ptrdiff_t b = 0; b < 4; ++b) {
    const std::vector<int32_t> ids(m.ids.begin() + 9 * b, m.ids.begin() + 9 * (b + 1)),
        labels(m.labels.begin() + 9 * b, m.labels.begin() + 9 * (b + 1));
    sum += loss_of(1, 9, ids, labels);
  }
  EXPECT_NEAR(sum, loss_of(4, 9, m.ids, m.labels), 1e-4);
}

TEST(Transformer, AuxiliaryLossesAtBalance) {
  for (const auto& [scope, expected] :
       std::map<AuxScope, double>{{AuxScope::layer, 1}, {AuxScope::model, 2}, {AuxScope::sequence, 2}}) {
    RunSpec run = small_run();
    run.moe.aux_scope = scope;
    SmallModel m(run);
    std::vector<double> balanced;
    for (int layer = 0; layer < 2; ++layer) {
      balanced.insert(balanced.end(), 6, 36 * 2.0 / 6);  // counts
      balanced.insert(balanced.end(), 6, 36 / 6.0);      // probabilities
      balanced.push_back(36 * 4.0);                      // logsumexp^2
      balanced.push_back(0);
      balanced.push_back(4 * 2.0 / 6);                   // of four sequences
      balanced.insert(balanced.end(), 6, 36 * 2.0 / 6);  // counted choices
    }
    const AuxLosses losses = m.model.set_auxiliary(balanced, 36, 1.0);
    EXPECT_NEAR(losses.aux, expected, 1e-12) << word_of(scope);
    EXPECT_NEAR(losses.z, 4, 1e-12);
    EXPECT_NEAR(losses.weighted, 0.5 * losses.aux + 0.05 * 4, 1e-12);
  }
}

// DeepSeek's own formulas, over the scores that the layer keeps: V2 counts the choices, V3, whose bias and groups lead
// them elsewhere, the best scores.
TEST(Transformer, AuxiliaryLossOfSequences) {
  for (const auto& [score, biased] :
       {std::pair(ScoreFunction::softmax, false), std::pair(ScoreFunction::sigmoid, false),
        std::pair(ScoreFunction::sigmoid, true)}) {
    RunSpec run = small_run();
    if (biased) {
      run.native.selection_bias = true;
      run.native.expert_groups = 3;
      run.native.kept_groups = run.native.group_best = 2;
    }
    run.moe.aux_scope = AuxScope::sequence;
    run.native.score = score;
    SmallModel m(run);
    m.loss(false);
    double expected = 0, elsewhere = 0;
    size_t moe_layer = 0;
    for (const int64_t layer : m.model.moe_index()) {
      const float* logits = m.model.activations().fixed(fmt::format("act.{}.logits", layer)).as<float>();
      const std::vector<int32_t>& chosen = m.choices[moe_layer++];
      for (int sequence = 0; sequence < 4; ++sequence) {
        std::vector<double> share(6), mean(6);
        for (int token = sequence * 9; token < (sequence + 1) * 9; ++token) {
          std::vector<double> s(6);
          for (int e = 0; e < 6; ++e) {
            const double x = static_cast<double>(logits[token * 6 + e]);
            s[static_cast<size_t>(e)] =
                run.native.score == ScoreFunction::softmax ? std::exp(x) : 1 / (1 + std::exp(-x));
          }
          const double total = std::accumulate(s.begin(), s.end(), 0.0);
          for (size_t e = 0; e < 6; ++e) mean[e] += s[e] / total / 9;
          std::vector<int32_t> counted(chosen.begin() + token * 2, chosen.begin() + token * 2 + 2);
          if (biased) {
            std::vector<int32_t> order(6);
            std::iota(order.begin(), order.end(), 0);
            std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
              return s[static_cast<size_t>(a)] > s[static_cast<size_t>(b)];
            });
            order.resize(2);
            elsewhere += order != counted;
            counted = order;
          }
          for (const int32_t e : counted) share[static_cast<size_t>(e)] += 1;
        }
        for (size_t e = 0; e < 6; ++e) expected += share[e] * 6 / (2 * 9.0) * mean[e] / 4;
      }
    }
    EXPECT_NEAR(m.aux.aux, expected, 1e-6 * expected) << word_of(score);
    EXPECT_EQ(elsewhere > 0, biased);
  }
}

}  // namespace
}  // namespace mw::test
