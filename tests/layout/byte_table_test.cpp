#include "layout/byte_table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "layout/helpers.h"
#include "layout/logit_chunks.h"

namespace mw::test {
namespace {

int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

TEST(ByteTable, NamesAreUniqueInEveryLayout) {
  for (const char* transport : {"auto", "flat", "padded", "gather_tokens"})
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const int ep : {1, 2, 4}) {
        RunSpec run = small_run();
        run.moe.transport = transport;
        run.train.dtype = dtype;
        run.mesh.ep = ep;
        for (int rank = 0; rank < 4; ++rank) {
          std::set<std::string> names;
          for (const ByteRow& row : all_rows(small_plan(run, 4, rank))) {
            EXPECT_TRUE(names.insert(row.name).second) << row.name;
            EXPECT_LE(row.shape.size(), 4u) << row.name;  // as many axes as a TensorView has
            EXPECT_EQ(row.bytes() % 64, 0) << row.name;
            for (const int64_t extent : row.shape) EXPECT_GE(extent, 0) << row.name;
            EXPECT_TRUE(row.max_rows == 0 || row.max_rows >= row.shape[0]) << row.name;
          }
        }
      }
}

TEST(ByteTable, ParametersOfEveryRankAddUpToTheModel) {
  for (const int ep : {1, 2, 4}) {
    RunSpec run = small_run();
    run.mesh.ep = ep;  // six experts on four ranks: two ranks hold two, two hold one
    int64_t expert_elements = 0, dense_elements = 0;
    for (int rank = 0; rank < ep; ++rank) {
      const Plan plan = small_plan(run, 4, rank);
      for (const ParamRow& param : plan.params) {
        const ByteRow master = row_of(plan.parameter_rows, "param." + param.name);
        EXPECT_EQ(master.dtype, DType::f32);
        int64_t elements = 1;
        for (const int64_t extent : master.shape) elements *= extent;
        (param.expert ? expert_elements : dense_elements) += elements;
        if (!param.trained) continue;
        for (const char* prefix : {"grad.", "adam_m.", "adam_v."})
          EXPECT_EQ(row_of(plan.parameter_rows, prefix + param.name).shape, master.shape);
      }
    }
    EXPECT_EQ(expert_elements, 6 * 3 * 20 * 48);
    EXPECT_EQ(expert_elements + dense_elements / ep, parameter_count(build_native_model(small_native())));
  }
}

// One all-reduce over DP and one over EDP need the gradients of each set in one piece.
TEST(ByteTable, GradientsOfExpertsFollowTheDenseOnes) {
  RunSpec run = small_run();
  const Plan plan = small_plan(run);
  int changes = 0;
  bool expert = false;
  size_t first = plan.parameter_rows.size(), last = 0;
  for (size_t i = 0; i < plan.parameter_rows.size(); ++i) {
    if (plan.parameter_rows[i].kind != ByteKind::gradient) continue;
    first = std::min(first, i);
    last = i;
    const std::string& name = plan.parameter_rows[i].name;
    const bool now = contains(name, ".moe.w_");
    changes += now != expert ? 1 : 0;
    expert = now;
  }
  EXPECT_EQ(changes, 1);
  for (size_t i = first; i <= last; ++i) EXPECT_EQ(plan.parameter_rows[i].kind, ByteKind::gradient);
}

TEST(ByteTable, PackedWeightsOnlyInBf16) {
  RunSpec run = small_run();
  run.train.dtype = DType::f32;
  EXPECT_EQ(summarise(all_rows(small_plan(run))).by_kind[static_cast<int>(ByteKind::packed)], 0);
  run.train.dtype = DType::bf16;
  const Plan plan = small_plan(run, 1, 0, {true, 0});
  for (const char* direction : {"packed_forward.", "packed_backward."}) {
    // 6 experts of [2*20, 48], each a padded 64 x 64 of two bytes.
    const ByteRow row = row_of(plan.parameter_rows, std::string(direction) + "layers.1.moe.w_up");
    EXPECT_EQ(row.shape, (std::vector<int64_t>{6, 64 * 64 * 2}));
    EXPECT_EQ(row_of(plan.parameter_rows, std::string(direction) + "head").shape,
              (std::vector<int64_t>{1, 128 * 64 * 2}));
  }
  const auto names = [](const Plan& p) {
    std::set<std::string> set;
    for (const ByteRow& row : p.parameter_rows) set.insert(row.name);
    return set;
  };
  EXPECT_EQ(names(plan).count("packed_forward.embed"),
            0u);  // an embedding is looked up, not multiplied, unless it is the head too
  EXPECT_EQ(names(plan).count("packed_forward.layers.1.moe.router"), 0u);  // products of the router are fp32
  NativeModel tied = small_native();
  tied.tie_embeddings = true;
  EXPECT_EQ(names(make_plan(build_native_model(tied), run, 1, 0, {})).count("packed_forward.embed"), 1u);
}

// What the design promises to keep of an MoE layer with experts in place: its input and the pre-activation, 2*T*D +
// 4*T*K*F bytes in bf16, and the routing; neither gathered inputs nor expert outputs nor activated hidden states.
// Of 6 experts [2, 10, 16] and [16, 10] on 2 ranks.
TEST(ByteTable, ReplicaSlotsHaveAGradientAndWhatProductsRead) {
  const auto bytes_of = [](RunSpec run, int64_t slots, const Platform& platform) {
    run.mesh.ep = 2;
    run.moe.replica_slots = slots;
    int64_t bytes = 0;
    for (const ByteRow& row : make_plan(build_native_model(small_native()), run, 2, 0, platform).parameter_rows)
      bytes += row.bytes();
    return bytes;
  };
  const NativeModel native = small_native();
  const int64_t f = native.expert_width, d = native.width, slots = 3, moe_layers = native.layers - native.dense_layers;
  const auto packed = [&](int64_t n, int64_t k) { return (n + 63) / 64 * 64 * ((k + 63) / 64 * 64) * 4; };
  RunSpec run = small_run();
  run.train.dtype = DType::f32;
  EXPECT_EQ(bytes_of(run, slots, {}) - bytes_of(run, 0, {}),
            moe_layers * 2 * (round_up(slots * 2 * f * d * 4) + round_up(slots * d * f * 4)) + round_up(2 * f * d * 4));
  run.train.dtype = run.expert_gradients = DType::bf16;
  EXPECT_EQ(bytes_of(run, slots, {}) - bytes_of(run, 0, {}),
            moe_layers * (round_up(slots * 2 * f * d * 2) + round_up(slots * d * f * 2) +
                          2 * slots * (packed(2 * f, d) + packed(d, f))) +
                round_up(2 * f * d * 2));
}

TEST(ByteTable, MoeLayerKeepsInputAndPreActivationOnly) {
  RunSpec run = small_run();
  const Plan plan = small_plan(run);
  const int64_t t = plan.batch.tokens(), d = 48, f = 20, k = 3, e = 6, shared = 40;
  EXPECT_EQ(t, 4 * 16);
  EXPECT_EQ(plan.transports, std::vector(plan.model.layers.size(), TransportKind::in_place));
  EXPECT_EQ(row_of(plan.activation_rows, "act.1.x_mid").bytes(), round_up(2 * t * d));
  const ByteRow h = row_of(plan.activation_rows, "act.1.h");
  EXPECT_EQ(h.shape, (std::vector<int64_t>{t * k, 2, f}));
  EXPECT_EQ(h.max_rows, 0);  // its size is exact
  EXPECT_EQ(h.bytes(), round_up(4 * t * k * f));
  int64_t kept = 0;
  const std::set<std::string> attention = {"act.1.x", "act.1.attn_rstd", "act.1.q",  "act.1.k",
                                           "act.1.v", "act.1.o",         "act.1.lse"};
  for (const ByteRow& row : plan.activation_rows)
    if (row.name.rfind("act.1.", 0) == 0 && attention.count(row.name) == 0) kept += row.bytes();
  const int64_t routing =
      round_up(4 * t * e) + 6 * round_up(4 * t * k) + round_up(8 * e);  // logits; six arrays of T*K; counts
  EXPECT_EQ(kept, round_up(2 * t * d) + round_up(4 * t * k * f) + routing + round_up(4 * t) /* rstd */ +
                      round_up(4 * t * shared));
}

TEST(ByteTable, OtherRowsOfASmallModel) {
  RunSpec run = small_run();
  run.train.dtype = DType::f32;
  const Plan plan = small_plan(run);
  const int64_t t = 64;
  EXPECT_EQ(row_of(plan.activation_rows, "data.ids").shape, (std::vector<int64_t>{2, t}));  // every micro-batch
  EXPECT_EQ(row_of(plan.activation_rows, "data.labels").shape, (std::vector<int64_t>{2, t}));
  EXPECT_EQ(row_of(plan.activation_rows, "act.0.ffn.h").shape, (std::vector<int64_t>{t, 2, 70}));  // dense layer
  EXPECT_EQ(row_of(plan.activation_rows, "act.0.q").shape, (std::vector<int64_t>{t, 4, 10}));
  EXPECT_EQ(row_of(plan.activation_rows, "act.0.k").shape, (std::vector<int64_t>{t, 2, 10}));
  EXPECT_EQ(row_of(plan.activation_rows, "act.0.lse").shape, (std::vector<int64_t>{4, t}));
  EXPECT_EQ(row_of(plan.activation_rows, "act.0.x").dtype, DType::f32);
  EXPECT_EQ(row_of(plan.activation_rows, "act.1.rows_per_expert").dtype, DType::i64);
  EXPECT_EQ(row_of(plan.activation_rows, "work.logits").shape, (std::vector<int64_t>{t, 100}));
  for (const ByteRow& row : plan.activation_rows)
    EXPECT_EQ(row.max_rows, 0) << row.name;  // in place: nothing depends on the load
}

TEST(ByteTable, ReceivedRowsAreBounded) {
  RunSpec run = small_run();
  run.mesh.ep = 4;
  run.moe.row_headroom = 1.5;
  for (int rank = 0; rank < 4; ++rank) {
    const Plan plan = small_plan(run, 4, rank);
    EXPECT_EQ(plan.transports,
              (std::vector{TransportKind::in_place, TransportKind::flat}));  // the first layer is dense
    const int64_t tokens = 16, local = rank < 2 ? 2 : 1;
    const ByteRow h = row_of(plan.activation_rows, "act.1.h"),
                  received = row_of(plan.activation_rows, "act.1.received");
    EXPECT_EQ(h.kind, ByteKind::routed);
    EXPECT_EQ(h.mean_rows, 4 * tokens * 3 * local / 6);
    EXPECT_EQ(h.shape[0], h.mean_rows * 3 / 2);
    EXPECT_EQ(h.max_rows, 4 * tokens * std::min<int64_t>(3, local));  // every token of every rank on all local experts
    EXPECT_EQ(received.max_rows, h.max_rows);
    EXPECT_EQ(received.shape, (std::vector<int64_t>{h.shape[0], 48}));
  }
  run.moe.row_headroom = 1e6;  // never beyond the worst case
  const ByteRow h = row_of(small_plan(run, 4, 0).activation_rows, "act.1.h");
  EXPECT_EQ(h.shape[0], h.max_rows);
}

// A capacity of ceil(factor * S * K / E) rows of each sequence, or of each rank, and not of fewer experts than there
// are.
TEST(ByteTable, CapacityBoundsReceivedRows) {
  RunSpec run = small_run();
  run.mesh.ep = 4;
  run.moe.row_headroom = 1.5;
  const int64_t tokens = 16, sequences = tokens / run.train.seq_len, local = 2;  // of the first rank, 6 experts, K = 3
  ASSERT_EQ(sequences * run.train.seq_len, tokens);
  const auto rows = [&](double factor, CapacityDomain domain, const char* transport) {
    run.moe.capacity_factor = factor;
    run.moe.capacity_domain = domain;
    run.moe.transport = transport;
    return row_of(small_plan(run, 4, 0).activation_rows, "act.1.h");
  };
  for (const double factor : {0.3, 1.0, 1.25, 100.0}) {
    const auto capacity = [&](int64_t of) {
      return static_cast<int64_t>(std::ceil(0.5 * static_cast<double>(of) * factor));
    };
    const int64_t by_sequence = std::min(tokens, sequences * capacity(run.train.seq_len)),
                  by_rank = std::min(tokens, capacity(tokens));
    for (const char* transport : {"flat", "padded"}) {
      EXPECT_EQ(rows(factor, CapacityDomain::sequence, transport).max_rows, 4 * local * by_sequence)
          << factor << ' ' << transport;
      EXPECT_EQ(rows(factor, CapacityDomain::rank, transport).max_rows, 4 * local * by_rank)
          << factor << ' ' << transport;
    }
    const ByteRow flat = rows(factor, CapacityDomain::rank, "flat");
    EXPECT_LE(flat.mean_rows, flat.shape[0]);
    EXPECT_LE(flat.shape[0], flat.max_rows);
  }
}

TEST(ByteTable, SummaryAddsUp) {
  for (const char* transport : {"auto", "padded"}) {
    RunSpec run = small_run();
    run.mesh.ep = 2;
    run.moe.transport = transport;
    const std::vector<ByteRow> rows = all_rows(small_plan(run, 2));
    const ByteSummary s = summarise(rows);
    int64_t kinds = 0, fixed = 0, worst = 0;
    for (const int64_t bytes : s.by_kind) kinds += bytes;
    for (const ByteRow& row : rows) {
      if (row.max_rows == 0) fixed += row.bytes();
      else worst += row.bytes() == 0 ? 0 : row.max_rows;
    }
    EXPECT_EQ(s.fixed, fixed);
    EXPECT_GT(worst, 0);
    EXPECT_GE(kinds, s.total());  // equal but for rounding of rows that grow
    EXPECT_LE(kinds, s.total() + 64 * static_cast<int64_t>(rows.size()));
    EXPECT_LE(s.routed_mean, s.routed_committed);
    EXPECT_LE(s.routed_committed, s.routed_max);
  }
}

TEST(LocalBatchRule, NamesMicroBatchesThatWork) {
  for (const int dp : {1, 2, 3, 4, 6, 8})
    for (int64_t global = 1; global <= 40; ++global)
      for (int64_t micro = 1; micro <= 12; ++micro) {
        RunSpec run;
        run.train.global_batch = global;
        run.train.micro_batches = micro;
        if (global % (micro * dp) == 0) {
          EXPECT_EQ(make_local_batch(run, dp, dp - 1).sequences, global / micro / dp);
          EXPECT_EQ(make_local_batch(run, dp, dp - 1).first, global / micro / dp * (dp - 1));
          continue;
        }
        const auto error = refusal_of([&] { make_local_batch(run, dp, 0); });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code(), Exit::config);
        const std::string prefix = "set train.micro_batches to ";
        if (global % dp != 0) {
          const std::string& hint = error->hint();
          ASSERT_NE(hint.find("set train.global_batch to a multiple of train.micro_batches x "), std::string::npos);
          run.train.global_batch = std::stoll(hint.substr(hint.rfind(' ') + 1));
          EXPECT_GE(run.train.global_batch, global);
          EXPECT_LT(run.train.global_batch, global + micro * dp);
          EXPECT_EQ(make_local_batch(run, dp, 0).sequences, run.train.global_batch / micro / dp) << hint;
          continue;
        }
        ASSERT_EQ(error->hint().rfind(prefix, 0), 0u) << error->hint();
        std::istringstream words(error->hint().substr(prefix.size()));
        int64_t below = 0, above = 0;
        std::string word;
        for (words >> word; word != "or" && !word.empty();) {
          (std::stoll(word) < micro ? below : above) = std::stoll(word);
          word.clear();
          words >> word;
          if (word == "or") words >> word;
        }
        EXPECT_GT(below + above, 0) << error->hint();
        // Each divides, and none is nearer.
        for (int64_t m = 1; m <= global; ++m) {
          if (global % (m * dp) != 0) continue;
          if (m < micro) EXPECT_LE(m, below);
          else EXPECT_TRUE(above > 0 && m >= above);
        }
        for (const int64_t named : {below, above}) EXPECT_TRUE(named == 0 || global % (named * dp) == 0) << named;
      }
}

// Chunks of tokens cost more than they hide where few ranks share a node.
TEST(Transports, TakeOneChunkOfTokensBetweenFewRanksOfANode) {
  for (const TransportKind kind : {TransportKind::halo, TransportKind::bypass}) {
    EXPECT_EQ(automatic_chunks(traits_of(kind), 2, true, 2), 1);
    EXPECT_EQ(automatic_chunks(traits_of(kind), 4, true, 2), 1);
    EXPECT_EQ(automatic_chunks(traits_of(kind), 8, true, 2), 2);
    EXPECT_EQ(automatic_chunks(traits_of(kind), 4, false, 2), 2);
    EXPECT_EQ(automatic_chunks(traits_of(kind), 8, true, 1), 1);
  }
  EXPECT_EQ(automatic_chunks(traits_of(TransportKind::flat), 2, true, 2), 2);
}

TEST(Transports, AreChosenOrRefused) {
  EXPECT_EQ(choose_transport("auto", 1), TransportKind::in_place);
  EXPECT_EQ(choose_transport("auto", 2), TransportKind::flat);
  EXPECT_EQ(choose_transport("flat", 1), TransportKind::flat);
  EXPECT_EQ(choose_transport("padded", 2), TransportKind::padded);
  EXPECT_EQ(choose_transport("in_place", 1), TransportKind::in_place);
  EXPECT_EQ(choose_transport("", 2), TransportKind::in_place);
  error_of([&] { choose_transport("in_place", 2); }, Exit::config);
  error_of([&] { choose_transport("flta", 2); }, Exit::config);
  EXPECT_EQ(choose_transport("gather_weights", 2), TransportKind::gather_weights);
  EXPECT_EQ(choose_transport("gather_tokens", 2), TransportKind::gather_tokens);
}

TEST(Transports, AreChosenByLayer) {
  NativeModel native;
  native.layers = 5;
  native.dense_layers = 1;
  native.dense_width = 8;
  const ModelSpec model = build_native_model(native);
  using Names = std::vector<std::string>;
  EXPECT_EQ(transport_names("auto", model), (Names{"", "auto", "auto", "auto", "auto"}));
  EXPECT_EQ(transport_names("flat*3,padded", model), (Names{"", "flat", "flat", "flat", "padded"}));
  EXPECT_EQ(transport_names("in_place,flat,auto*2", model), (Names{"", "in_place", "flat", "auto", "auto"}));
  for (const char* setting : {"auto", "flat*3,padded", "in_place,flat,auto*2"})
    EXPECT_EQ(transport_setting(transport_names(setting, model)), setting);
  EXPECT_EQ(transport_setting(transport_names("flat,flat*2,flat", model)), "flat");
  using K = TransportKind;
  EXPECT_EQ(choose_transports({"", "auto", "padded"}, 2), (std::vector{K::in_place, K::flat, K::padded}));
  for (const char* bad : {"flat*3", "flat*5", "flat*2,", "flat*0,flat*4", "flat*-1,flat*5", "flat*x", "flat*9999999",
                          ",", "flat *4", "*4", ""})
    error_of([&] { transport_names(bad, model); }, Exit::config);
}

TEST(Transports, HaveOneRecordEach) {
  std::set<std::string_view> names;
  for (const TransportTraits& t : transport_table()) {
    EXPECT_EQ(&traits_of(t.kind), &t);
    EXPECT_TRUE(names.insert(t.name).second) << t.name;
    EXPECT_NE(t.expert_rows, nullptr) << t.name;
    for (const TransportTensor& tensor : t.kept) EXPECT_TRUE(is_kept_by_transport(tensor.name)) << tensor.name;
  }
  EXPECT_FALSE(is_kept_by_transport("h"));
}

// Logits in fp32 have gradients of their own dtype in their place, and in bf16 beside them: of as many rows as are
// multiplied together. Logits in bf16 have as many rows.
TEST(LogitChunk, GradientsTakeThePlaceOfLogitsOfTheirDtype) {
  Platform platform;
  platform.logit_elements = 64 * 4096;
  platform.logit_gradient_rows = 120;
  RunSpec run = small_run();
  run.train.seq_len = 200;
  const auto rows_of = [&](DType dtype, DType logits) {
    run.train.dtype = dtype;
    run.logits = logits;
    std::map<std::string, std::pair<DType, int64_t>> rows;
    for (const ByteRow& row : make_plan(build_native_model(small_native()), run, 1, 0, platform).activation_rows)
      if (row.name == "work.logits" || row.name == "work.d_logits_bf16")
        rows[row.name] = {row.dtype, row.shape.front()};
    return rows;
  };
  using FoundRows = std::map<std::string, std::pair<DType, int64_t>>;
  EXPECT_EQ(rows_of(DType::f32, DType::f32), (FoundRows{{"work.logits", {DType::f32, 64}}}));
  EXPECT_EQ(rows_of(DType::bf16, DType::f32),
            (FoundRows{{"work.logits", {DType::f32, 64}}, {"work.d_logits_bf16", {DType::bf16, 128}}}));
  EXPECT_EQ(rows_of(DType::bf16, DType::bf16), (FoundRows{{"work.logits", {DType::bf16, 128}}}));
}

TEST(LogitChunk, StaysSmall) {
  for (const int64_t vocab : {1, 100, 256, 50304, 151936, 1 << 24})
    for (const int64_t tokens : {1, 63, 64, 4096, 1 << 20})
      for (const int64_t elements : {int64_t{4} << 20, int64_t{128} << 20}) {
        const int64_t rows = logit_chunk_rows(vocab, tokens, elements);
        EXPECT_GE(rows, 1);
        EXPECT_LE(rows, tokens);
        EXPECT_LE(rows, elements / 4096);
        EXPECT_TRUE(rows <= 64 || rows * vocab <= elements) << vocab;
      }
  EXPECT_EQ(logit_chunk_rows(151936, 1 << 20, int64_t{128} << 20), 768);
  EXPECT_EQ(logit_chunk_rows(600000, 1 << 20, int64_t{128} << 20), 192);
  EXPECT_EQ(logit_chunk_rows(256, 1 << 20, int64_t{4} << 20), 1024);
  EXPECT_EQ(logit_gradient_rows(832, 1 << 20, 4096), 5 * 832);
  EXPECT_EQ(logit_gradient_rows(2624, 1 << 20, 4096), 2 * 2624);
  EXPECT_EQ(logit_gradient_rows(2752, 1 << 20, 4096), 2752);
  EXPECT_EQ(logit_gradient_rows(832, 1000, 4096), 1000);
  EXPECT_EQ(logit_gradient_rows(832, 1 << 20, 0), 832);
}

// What memory.offload leaves on the device is what forward and backward touch.
TEST(ByteTable, OffloadedStatesAreOnTheHost) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    RunSpec run = small_run();
    run.train.dtype = dtype;
    const Plan here = small_plan(run);
    run.offload = Offload::optimizer;
    const Plan there = small_plan(run);
    const ByteSummary all = summarise(here.parameter_rows), left = summarise(there.parameter_rows);
    EXPECT_EQ(all.on_host, 0);
    EXPECT_EQ(left.total() + left.on_host, all.total());
    EXPECT_EQ(left.by_kind[static_cast<int>(ByteKind::moment)], 0);
    EXPECT_EQ(left.by_kind[static_cast<int>(ByteKind::gradient)], all.by_kind[static_cast<int>(ByteKind::gradient)]);
    for (const ByteRow& row : there.parameter_rows) {
      const bool is_matrix = row.name.find("attn.w") != std::string::npos ||
                             row.name.find("w_up") != std::string::npos ||
                             row.name.find("w_down") != std::string::npos || row.name == "param.head";
      const bool expected =
          row.kind == ByteKind::moment || (row.kind == ByteKind::master && is_matrix && dtype == DType::bf16);
      EXPECT_EQ(row.on_host, expected) << row.name << " " << word_of(dtype);
    }
    EXPECT_TRUE(contains(describe(there), "more on the host"));
  }
}

}  // namespace
}  // namespace mw::test
