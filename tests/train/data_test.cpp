// The order of samples, and who reads which.
#include "train/data/data.h"
#include "train/data/read_ahead.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "config/batch_ramp.h"
#include "support/token_writers.h"
#include "train/helpers.h"

namespace mw::test {
namespace {

using Tokens = std::vector<int32_t>;

std::vector<int64_t> permuted(int64_t n, uint64_t seed) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(permute(i, n, seed));
  return out;
}

TEST(Permute, IsAPermutationOfEverySize) {
  std::vector<int64_t> sizes(130);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (const int64_t n : {255, 256, 257, 1000, 4095, 4096, 4097, 65537, 100003}) sizes.push_back(n);
  for (const int64_t n : sizes)
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      std::vector<int64_t> order = permuted(n, seed);
      std::sort(order.begin(), order.end());
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(order[static_cast<size_t>(i)], i) << n << " with seed " << seed;
    }
}

TEST(Permute, StaysInRangeForLargeSizes) {
  for (const int64_t n : {int64_t{1} << 31, (int64_t{1} << 31) + 1, (int64_t{1} << 40) - 1, int64_t{1} << 52}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 2000; ++i) {
      const int64_t at = permute(n - 1 - i * (n / 2000), n, 9);
      ASSERT_GE(at, 0);
      ASSERT_LT(at, n);
      seen.insert(at);
    }
    EXPECT_EQ(seen.size(), 2000u);
  }
  error_of([] { permute(5, 5, 1); }, Exit::internal);
  error_of([] { permute(-1, 5, 1); }, Exit::internal);
}

TEST(Permute, ShufflesAndDependsOnTheSeed) {
  const std::vector<int64_t> a = permuted(1000, 1), b = permuted(1000, 2);
  EXPECT_EQ(a, permuted(1000, 1));
  int64_t same = 0, fixed = 0, neighbours = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    same += a[i] == b[i];
    fixed += a[i] == static_cast<int64_t>(i);
    if (i > 0) neighbours += a[i] == a[i - 1] + 1;
  }
  EXPECT_LT(same, 20);  // each about 1 by chance
  EXPECT_LT(fixed, 20);
  EXPECT_LT(neighbours, 20);
}

struct Sample {
  Tokens ids, labels;
};
Sample shuffled(const SampleOrder& order, int64_t number, size_t seq_len) {
  Sample s{Tokens(seq_len), Tokens(seq_len)};
  order.shuffled(number, s.ids, s.labels);
  return s;
}

TEST(SampleOrder, CoversEveryWindowOncePerEpoch) {
  constexpr int64_t kSamples = 37;
  const SampleOrder order(counting_tokens(kSamples * 6 + 1 + 5), 6, 1000, 3);  // 5 tokens are left over
  ASSERT_EQ(order.samples(), kSamples);
  std::vector<std::vector<int32_t>> starts;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    starts.emplace_back();
    for (int64_t i = 0; i < kSamples; ++i) {
      const Sample s = shuffled(order, epoch * kSamples + i, 6);
      for (size_t t = 0; t < 6; ++t) {
        EXPECT_EQ(s.ids[t], s.ids[0] + static_cast<int32_t>(t));
        EXPECT_EQ(s.labels[t], s.ids[t] + 1);
      }
      starts.back().push_back(s.ids[0]);
    }
    std::vector<int32_t> sorted = starts.back();
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i) EXPECT_EQ(sorted[i], static_cast<int32_t>(6 * i));
  }
  EXPECT_NE(starts[0], starts[1]);
  EXPECT_NE(starts[1], starts[2]);
}

TEST(SampleOrder, DependsOnSeedAndNumberOnly) {
  const SampleOrder a(counting_tokens(601), 6, 1000, 3), b(counting_tokens(601), 6, 1000, 3),
      c(counting_tokens(601), 6, 1000, 4);
  int64_t same = 0;
  for (int64_t number = 250; number-- > 0;) {  // backwards: no state
    EXPECT_EQ(shuffled(a, number, 6).ids, shuffled(b, number, 6).ids);
    same += shuffled(a, number, 6).ids == shuffled(c, number, 6).ids;
  }
  EXPECT_LT(same, 25);
  const int64_t far = int64_t{1} << 62;
  EXPECT_EQ(shuffled(a, far, 6).ids, shuffled(b, far, 6).ids);
}

std::vector<BlendPart> shares(const std::vector<std::string>& items) { return parse_blend(items); }

TEST(Blend, EveryPrefixHasItsSharesAndEveryPlaceIsOfOneOrder) {
  for (const auto& parts : {shares({"1 a", "1 b"}), shares({"0.7 a", "0.2 b", "0.1 c"}), shares({"3 a", "1e-3 b"}),
                            shares({"1 a", "1 b", "1 c", "1 d", "1 e", "2 f", "0.3 g"})}) {
    std::vector<int64_t> counts(parts.size());
    for (int64_t n = 0; n < 5000; ++n) {
      ASSERT_EQ(blend_counts(parts, n), counts) << n;
      const BlendPlace place = blend_place(parts, n);
      ASSERT_EQ(place.number, counts[place.part]++) << n;
      for (size_t k = 0; k < parts.size(); ++k)
        ASSERT_NEAR(static_cast<double>(counts[k]), parts[k].weight * static_cast<double>(n + 1),
                    0.5 * static_cast<double>(parts.size()))
            << n;
    }
    const int64_t far = int64_t{1} << 45;
    std::vector<int64_t> far_counts = blend_counts(parts, far);
    for (int64_t n = far; n < far + 100; ++n) {
      const BlendPlace place = blend_place(parts, n);
      ASSERT_EQ(place.number, far_counts[place.part]++);
    }
    ASSERT_EQ(blend_counts(parts, far + 100), far_counts);
  }
}

TEST(Blend, ReadsWeightsAndRefusesOtherText) {
  const std::vector<BlendPart> parts = shares({"3 a b/c", "1e0  d"});
  EXPECT_EQ(parts[0].path, "a b/c");
  EXPECT_EQ(parts[0].weight, 0.75);
  EXPECT_EQ(parts[1].path, "d");
  for (const char* bad : {"", "a", "1", "1 ", "0 a", "-1 a", "nan a", "inf a", "1a", "1e99 a"})
    EXPECT_TRUE(contains(error_of([&] { parse_blend({"1 x", bad}); }, Exit::config), "WEIGHT PATH")) << bad;
}

TEST(SampleOrder, BlendsSourcesEachInAnOrderOfItsOwn) {
  std::vector<WeightedSource> sources;
  for (const double weight : {0.75, 0.25}) sources.push_back({weight, counting_tokens(601)});
  const SampleOrder order(std::move(sources), 6, 1000, 3), alone(counting_tokens(601), 6, 1000, 3);
  EXPECT_EQ(order.samples(), 200);
  const std::vector<BlendPart> parts = shares({"0.75 a", "0.25 b"});
  std::set<int32_t> second;
  for (int64_t n = 0; n < 400; ++n) {
    const BlendPlace place = blend_place(parts, n);
    if (place.part == 0) EXPECT_EQ(shuffled(order, n, 6).ids, shuffled(alone, place.number, 6).ids);
    else second.insert(shuffled(order, n, 6).ids[0]);
  }
  EXPECT_EQ(second.size(), 100u);  // one epoch
  EXPECT_TRUE(contains(order.describe(400), "75.0 % "));
  EXPECT_TRUE(contains(order.describe(400), ", 3 epochs"));
}

TEST(SampleOrder, SpreadsValidationEvenly) {
  const SampleOrder order(counting_tokens(601), 6, 1000, 3);  // 100 windows
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < 10; ++i) windows.push_back(order.spread(i, 10).number);
  EXPECT_EQ(windows, (std::vector<int64_t>{0, 10, 20, 30, 40, 50, 60, 70, 80, 90}));
  const int64_t many = std::numeric_limits<int64_t>::max();  // no overflow, and never out of range
  EXPECT_LE(order.spread(many - 1, many).number, 99);
  EXPECT_EQ(order.spread(250, 300).number, 83);  // more samples than windows
  Tokens ids(6), labels(6);
  order.read({0, 83}, ids, labels);
  EXPECT_EQ(ids[0], 83 * 6);
  EXPECT_EQ(labels[5], 84 * 6);
}

TEST(SampleOrder, ListsEveryWindowOfEverySource) {
  std::vector<WeightedSource> sources;
  sources.push_back({0.9, counting_tokens(13)});
  sources.push_back({0.1, counting_tokens(19)});
  const SampleOrder order(std::move(sources), 6, 1000, 3);
  std::vector<std::pair<size_t, int64_t>> found;
  for (int64_t i = 0; i < order.samples(); ++i) found.emplace_back(order.in_order(i).source, order.in_order(i).number);
  EXPECT_EQ(found, (std::vector<std::pair<size_t, int64_t>>{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {1, 2}}));
}

TEST(SampleOrder, RefusesTooLittleAndForeignTokens) {
  EXPECT_TRUE(
      contains(error_of([] { SampleOrder(counting_tokens(6), 6, 10, 1); }), "fewer than train.seq_len + 1 = 7"));
  EXPECT_EQ(SampleOrder(counting_tokens(7), 6, 10, 1).samples(), 1);
  const SampleOrder order(counting_tokens(7), 6, 6, 1);  // the last label is 6
  EXPECT_TRUE(contains(error_of([&] { shuffled(order, 0, 6); }), "got 6"));
  Tokens ids(6), labels(6), starts(6);  // a source without documents
  const SampleOrder wide(counting_tokens(7), 6, 10, 1);
  EXPECT_TRUE(contains(error_of([&] { wide.shuffled(0, ids, labels, starts); }, Exit::config), "documents begin"));
}

void append(const MicroBatch& batch, Tokens& ids, Tokens& labels) {
  ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
  labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
}

// This rank's part of validation micro-batch `index` of `count`.
MicroBatch read_validation(const SampleOrder& order, const Plan& plan, int64_t index, int64_t count) {
  const int64_t together = plan.batch.all;
  std::vector<Window> windows;
  for (int64_t i = 0; i < together; ++i) windows.push_back(order.spread(index * together + i, count * together));
  return read_windows(order, plan, windows);
}

// What all data-parallel ranks read is, joined, what one process reads.
TEST(ReadStep, SlicesOfAllRanksMakeTheWholeBatch) {
  const SampleOrder order(counting_tokens(50 * 9 + 1), 9, 1000, 11);
  RunSpec run = small_run();
  run.native.vocab = 1000;
  run.train.micro_batches = 2;  // of 8 samples, one for each of 8 ranks
  const ModelSpec model = build_native_model(run.native);
  const RunSpec alone = run;
  for (const int world : {1, 2, 4, 8})
    for (const RankPlacement placement : {RankPlacement::ep_first, RankPlacement::dp_first}) {
      run.mesh.ep = std::min(world, 2);
      run.mesh.placement = placement;
      // Steps at three cursors, and a part of the validation data.
      for (const int64_t cursor : {int64_t{0}, int64_t{16}, int64_t{99984}, int64_t{-1}}) {
        const auto read = [&](const RunSpec& spec, int ranks, int rank, size_t j, Tokens& ids, Tokens& labels) {
          const Plan plan = make_plan(model, spec, ranks, rank, {});
          const MicroBatch batch =
              cursor < 0 ? read_validation(order, plan, 3, 5)
                         : read_step(order, part_of_step(plan, cursor, plan.run.train.micro_batches)).at(j);
          EXPECT_EQ(batch.sequences * ranks, 8);
          append(batch, ids, labels);
        };
        for (size_t j = 0; j < 2; ++j) {
          Tokens whole_ids, whole_labels, ids, labels;
          read(alone, 1, 0, j, whole_ids, whole_labels);
          for (int rank = 0; rank < world; ++rank) read(run, world, rank, j, ids, labels);
          EXPECT_EQ(ids, whole_ids) << world << " " << word_of(placement);
          EXPECT_EQ(labels, whole_labels);
        }
      }
    }
}

TEST(ReadWindows, MissingOnesHaveNoLabels) {
  const SampleOrder order(counting_tokens(50 * 9 + 1), 9, 1000, 11);
  RunSpec run = small_run();
  run.native.vocab = 1000;
  const Plan plan = make_plan(build_native_model(run.native), run, 1, 0, {});  // 4 sequences in a micro-batch
  const MicroBatch batch = read_windows(order, plan, std::vector<Window>{{0, 7}, {0, 2}});
  EXPECT_EQ(batch.ids[0], 7 * 9);
  EXPECT_EQ(batch.labels[17], 3 * 9);
  EXPECT_EQ(std::count(batch.labels.begin(), batch.labels.end(), -100), 2 * 9);
}

// Every rank of every layout, those without the first stage too, reads the bounds of the documents in its samples.
TEST(ReadStep, DocumentsComeWithTheSamples) {
  const ScratchDir dir;
  std::vector<Tokens> documents[2];
  for (int32_t id = 0; id < 500;) {
    Tokens document;
    for (int32_t length = 1 + (id * 7) % 13; length > 0; --length) document.push_back(id++);
    documents[id % 2].push_back(document);
  }
  for (const int k : {0, 1}) write_megatron(dir / (k == 0 ? "a" : "b"), documents[k]);
  RunSpec run = small_run();
  run.native.vocab = 1000;
  run.data.kind = DataKind::megatron;
  run.data.blend = {"2 " + dir / "a", "1 " + dir / "b"};
  run.data.val_fraction = 0.3;
  const auto begins_document = [&](int32_t id) {
    for (const std::vector<Tokens>& of : documents)
      for (const Tokens& document : of)
        if (document.front() == id) return true;
    return false;
  };
  RunSpec short_of_validation = run;
  short_of_validation.train.seq_len = 100;
  const std::string error = error_of([&] { open_samples(short_of_validation, 1000, true); });
  EXPECT_TRUE(contains(error, "validation: ") && contains(error, "fewer than train.seq_len + 1 = 101")) << error;
  for (const bool masked : {true, false}) {
    run.data.document_mask = masked;
    const std::unique_ptr<SampleOrder> training = open_samples(run, 1000, false),
                                       validation = open_samples(run, 1000, true);
    for (const int64_t pp : {1, 3})
      for (int rank = 0; rank < 2 * pp; ++rank) {
        run.mesh.pp = pp;
        const Plan plan = make_plan(build_native_model(run.native), run, static_cast<int>(2 * pp), rank, {});
        int64_t inner = 0;
        const auto check = [&](const MicroBatch& batch) {
          ASSERT_EQ(batch.document_starts.size(), masked ? batch.ids.size() : 0);
          for (size_t t = 0; t < batch.document_starts.size(); ++t) {
            const auto at = static_cast<int32_t>(static_cast<int64_t>(t) % batch.seq_len);
            const bool begins = at > 0 && begins_document(batch.ids[t]);
            ASSERT_EQ(batch.document_starts[t], at == 0 || begins ? at : batch.document_starts[t - 1]) << t;
            inner += begins;
          }
        };
        for (const MicroBatch& batch : read_step(*training, part_of_step(plan, 5, plan.run.train.micro_batches)))
          check(batch);
        check(read_validation(*validation, plan, 1, 3));
        EXPECT_EQ(inner > 0, masked);
      }
  }
}

TEST(SampleOrder, LabelsOutsideTheLossMaskAreIgnored) {
  const ScratchDir dir;
  Tokens tokens(41);
  std::iota(tokens.begin(), tokens.end(), 0);
  write_megatron(dir / "d", {tokens});
  std::ofstream mask(dir / "d.mask", std::ios::binary);
  for (const int32_t token : tokens) mask.put(static_cast<char>(token % 3 == 0));
  mask.close();
  const SampleOrder order(std::make_unique<MegatronDataset>(dir / "d"), 8, 100, 3);
  Tokens ids(8), labels(8);
  for (int64_t number = 0; number < 10; ++number)
    for (const bool shuffled : {true, false}) {
      if (shuffled) order.shuffled(number, ids, labels);
      else order.read(order.spread(number, 10), ids, labels);
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(ids[i], ids[0] + static_cast<int32_t>(i));
        EXPECT_EQ(labels[i], (ids[i] + 1) % 3 == 0 ? ids[i] + 1 : -100);
      }
    }
}

TEST(ReadStep, NeighbouringStepsShareNoSample) {
  const SampleOrder order(counting_tokens(64 * 9 + 1), 9, 1000, 11);
  RunSpec run = small_run();
  run.native.vocab = 1000;
  const Plan plan = make_plan(build_native_model(run.native), run, 1, 0, {});
  std::set<int32_t> starts;
  for (int64_t step = 0; step < 4; ++step)  // 4 x 16 samples are one epoch of 64
    for (const MicroBatch& batch : read_step(order, part_of_step(plan, step * 16, plan.run.train.micro_batches)))
      for (size_t at = 0; at < batch.ids.size(); at += 9) starts.insert(batch.ids[at]);
  EXPECT_EQ(starts.size(), 64u);
}

// The samples of a run without a ramp, in their order, whatever the layout.
TEST(ReadStep, ARampReadsEverySampleOnce) {
  const SampleOrder order(counting_tokens(64 * 9 + 1), 9, 1000, 11);
  RunSpec run = small_run();
  run.native.vocab = 1000;
  run.train.micro_batches = 4;
  run.train.batch_ramp = {"2 4", "3 12"};
  const ModelSpec model = build_native_model(run.native);
  for (const auto& [ranks, shares] : {std::pair(1, ""), {2, ""}, {2, "3,1"}}) {
    run.mesh.shares = shares;
    std::vector<int32_t> read, expected;  // first tokens of samples
    int64_t cursor = 0;
    for (int64_t step = 1; step <= 5; cursor += samples_of_step(run.train, step++)) {
      const int64_t micro_batches = micro_batches_of_step(run.train, step);
      for (int64_t j = 0; j < micro_batches; ++j)
        for (int rank = 0; rank < ranks; ++rank) {
          const Plan plan = make_plan(model, run, ranks, rank, {});
          const MicroBatch batch =
              read_step(order, part_of_step(plan, cursor, micro_batches)).at(static_cast<size_t>(j));
          for (size_t at = 0; at < batch.ids.size(); at += 9) read.push_back(batch.ids[at]);
        }
    }
    EXPECT_EQ(cursor, 4 + 4 + 12 + 16 + 16);
    for (int64_t sample = 0; sample < cursor; ++sample) {
      std::vector<int32_t> ids(9), labels(9);
      order.shuffled(sample, ids, labels);
      expected.push_back(ids.front());
    }
    EXPECT_EQ(read, expected) << ranks << " " << shares;
  }
}

void expect_same(const std::vector<MicroBatch>& got, const std::vector<MicroBatch>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t j = 0; j < got.size(); ++j) {
    EXPECT_EQ(got[j].ids, expected[j].ids);
    EXPECT_EQ(got[j].labels, expected[j].labels);
  }
}

TEST(ReadAhead, GivesWhatReadStepGives) {
  const SampleOrder order(counting_tokens(50 * 9 + 1), 9, 1000, 11);
  const StepPart first{{2, 9, 1, 4, 8}, 16, 2, false}, other{{2, 9, 1, 4, 8}, 32, 2, false};
  ReadAhead reader(order);
  expect_same(reader.take(first), read_step(order, first));  // nothing was started
  reader.start(first);
  expect_same(reader.take(first), read_step(order, first));
  reader.start(first);
  expect_same(reader.take(other), read_step(order, other));
  reader.start(other);
  reader.start(first);
  expect_same(reader.take(first), read_step(order, first));
}

TEST(ReadAhead, ErrorsComeWhereTheStepIsTaken) {
  const SampleOrder order(counting_tokens(50 * 9 + 1), 9, 300, 11);  // the last third is outside the vocabulary
  const StepPart all{{50, 9, 0, 50, 50}, 0, 1, false};
  {
    ReadAhead reader(order);
    reader.start(all);
    EXPECT_THROW(reader.take(all), Error);
  }
  ReadAhead reader(order);
  reader.start(all);
  EXPECT_TRUE(reader.take({}).empty());
}

}  // namespace
}  // namespace mw::test
