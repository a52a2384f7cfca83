// Samples of whole documents.
#include "train/data/document_packs.h"

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <set>

#include "formats/tokens/megatron.h"
#include "formats/tokens/token_shard.h"
#include "support/token_writers.h"
#include "train/data/data.h"
#include "train/helpers.h"

namespace mw::test {
namespace {

using Tokens = std::vector<int32_t>;

// Documents of these lengths, whose tokens count up from 0 over all of them.
void write_documents(const std::string& prefix, const std::vector<int32_t>& lengths) {
  std::vector<Tokens> documents;
  int32_t next = 0;
  for (const int32_t length : lengths) {
    documents.emplace_back(static_cast<size_t>(length));
    std::iota(documents.back().begin(), documents.back().end(), next);
    next += length;
  }
  write_megatron(prefix, documents);
}

std::vector<int32_t> random_lengths(size_t count, int32_t most, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> lengths;
  for (size_t i = 0; i < count; ++i)
    lengths.push_back(1 + static_cast<int32_t>(random() % static_cast<unsigned>(most)));
  return lengths;
}

TEST(DocumentPacks, HoldEveryTokenOnceAndCutNoDocumentThatFits) {
  const ScratchDir dir;
  for (const int64_t length : {1, 7, 64, 100, 1000}) {
    const std::vector<int32_t> lengths = random_lengths(300, 150, static_cast<unsigned>(length));
    write_documents(dir / "d", lengths);
    const MegatronDataset source(dir / "d");
    const DocumentPacks packs(source, length);
    std::vector<int> seen(static_cast<size_t>(source.size()));
    std::vector<int64_t> begins = source.document_begins(0, source.size());
    begins.push_back(source.size());
    for (int64_t sample = 0; sample < packs.samples(); ++sample) {
      int64_t sum = 0;
      for (const DocumentPiece& piece : packs.pieces(sample)) {
        sum += piece.count;
        for (int64_t i = 0; i < piece.count; ++i) ++seen[static_cast<size_t>(piece.first + i)];
        const auto next = std::upper_bound(begins.begin(), begins.end(), piece.first);
        const int64_t begin = *(next - 1), end = piece.first + piece.count;
        EXPECT_EQ(piece.ends_document, end == *next);
        EXPECT_LE(end, *next);
        if (*next - begin <= length) EXPECT_EQ(piece.count, *next - begin);
        else EXPECT_TRUE((piece.first - begin) % length == 0 && (piece.ends_document || piece.count == length));
      }
      EXPECT_LE(sum, length);
      EXPECT_GT(sum, 0);
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), source.size());
    EXPECT_EQ(packs.cut_documents(),
              std::count_if(lengths.begin(), lengths.end(), [&](int32_t own) { return own > length; }));
    EXPECT_NEAR(packs.padding(), 1 - static_cast<double>(source.size()) / static_cast<double>(packs.samples() * length),
                1e-12);
  }
}

// The best fit leaves room in the last sample alone where documents are short, and little where they are not.
TEST(DocumentPacks, LeaveLittleRoom) {
  const ScratchDir dir;
  for (const auto& [most, padding] : {std::pair{100, 0.02}, std::pair{300, 0.02}, std::pair{512, 0.04}}) {
    write_documents(dir / "d", random_lengths(2000, most, 3));
    EXPECT_LT(DocumentPacks(MegatronDataset(dir / "d"), 512).padding(), padding) << most;
  }
}

// However many tokens shards have, they are looked at a piece at a time.
TEST(DocumentPacks, OfShardsNeedLittleMemory) {
  constexpr int32_t kTokens = 1 << 26;
  constexpr size_t kRoom = size_t{64} << 20;  // bytes: a quarter of what all tokens take
  const ScratchDir dir;
  const std::string path = dir / "t.bin";
  write_token_shard(path, Tokens{50256});
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(8)
      .write(reinterpret_cast<const char*>(&kTokens), sizeof kTokens);
  std::filesystem::resize_file(path, kTokenShardHeaderSize + size_t{2} * kTokens);
  JoinedShards shards({path});
  shards.cut_documents();
  std::ifstream status("/proc/self/status");
  std::string word;
  size_t kib = 0;
  while (status >> word && word != "VmData:") continue;
  ASSERT_TRUE(status >> kib);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = std::min<rlim_t>(before.rlim_max, (kib << 10) + kRoom);
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
  EXPECT_NO_THROW(EXPECT_EQ(DocumentPacks(shards, 1 << 16).samples(), 1 << 10));
  EXPECT_EQ(setrlimit(RLIMIT_DATA, &before), 0);
}

struct Sample {
  Tokens ids, labels, starts;
};

// What sample `number` of the documents must hold, piece by piece.
void check_sample(const SampleOrder& order, const DocumentPacks& packs, int64_t number, int64_t length,
                  const std::function<bool(int32_t)>& counts) {
  const auto size = static_cast<size_t>(length);
  Sample s{Tokens(size), Tokens(size), Tokens(size)};
  order.read({0, number}, s.ids, s.labels, s.starts);
  size_t at = 0;
  for (const DocumentPiece& piece : packs.pieces(number)) {
    const size_t start = at;
    for (int64_t i = 0; i < piece.count; ++i, ++at) {
      const auto id = static_cast<int32_t>(piece.first + i);
      const bool labelled = (i + 1 < piece.count || !piece.ends_document) && counts(id + 1);
      ASSERT_EQ(s.ids[at], id);
      ASSERT_EQ(s.labels[at], labelled ? id + 1 : -100);
      ASSERT_EQ(s.starts[at], static_cast<int32_t>(start));
    }
  }
  for (size_t i = 0; at + i < size; ++i) {
    ASSERT_EQ(s.ids[at + i], s.ids[i]);
    ASSERT_EQ(s.labels[at + i], -100);
    ASSERT_EQ(s.starts[at + i], static_cast<int32_t>(at));
  }
}

TEST(SampleOrder, OfWholeDocumentsHasNoLabelAtTheirEndAndInThePadding) {
  const ScratchDir dir;
  const std::vector<int32_t> lengths = random_lengths(200, 40, 5);
  write_documents(dir / "d", lengths);
  constexpr int64_t kLength = 32;
  for (const bool masked : {false, true}) {
    const auto counts = [&](int32_t id) { return !masked || id % 3 == 0; };
    if (masked) {
      std::ofstream mask(dir / "d.mask", std::ios::binary);
      for (int32_t id = 0; id < std::accumulate(lengths.begin(), lengths.end(), 0); ++id)
        mask.put(static_cast<char>(counts(id)));
    }
    const MegatronDataset source(dir / "d");
    const DocumentPacks packs(source, kLength);
    const SampleOrder order(std::make_unique<MegatronDataset>(dir / "d"), kLength, 1 << 20, 3, true);
    ASSERT_EQ(order.samples(), packs.samples());
    for (int64_t number = 0; number < packs.samples(); ++number) check_sample(order, packs, number, kLength, counts);
    EXPECT_TRUE(contains(order.describe(), "samples of 32 tokens in whole documents, ")) << order.describe();
    EXPECT_TRUE(contains(order.describe(), " longer documents cut")) << order.describe();
  }
}

TEST(SampleOrder, OfOneShortDocumentRepeatsIt) {
  const ScratchDir dir;
  write_documents(dir / "d", {3});
  const SampleOrder order(std::make_unique<MegatronDataset>(dir / "d"), 8, 10, 3, true);
  ASSERT_EQ(order.samples(), 1);
  Tokens ids(8), labels(8), starts(8);
  order.shuffled(5, ids, labels, starts);
  EXPECT_EQ(ids, (Tokens{0, 1, 2, 0, 1, 2, 0, 1}));
  EXPECT_EQ(labels, (Tokens{1, 2, -100, -100, -100, -100, -100, -100}));
  EXPECT_EQ(starts, (Tokens{0, 0, 0, 3, 3, 3, 3, 3}));
}

// The held-out part begins within a document: what is left of it there is one of its own.
TEST(OpenSamples, OfWholeDocumentsSplitsValidationOff) {
  const ScratchDir dir;
  write_documents(dir / "d", random_lengths(100, 20, 7));
  RunSpec run = small_run();
  run.data.kind = DataKind::megatron;
  run.data.path = dir / "d";
  run.data.val_fraction = 0.3;
  run.data.whole_documents = true;
  const std::unique_ptr<SampleOrder> training = open_samples(run, 1 << 20, false),
                                     validation = open_samples(run, 1 << 20, true);
  std::set<int32_t> seen;
  const auto length = static_cast<size_t>(run.train.seq_len);
  for (const SampleOrder* order : {training.get(), validation.get()})
    for (int64_t i = 0; i < order->samples(); ++i) {
      Tokens ids(length), labels(length), starts(length);
      order->read(order->in_order(i), ids, labels, starts);
      const auto end = std::find(labels.rbegin(), labels.rend(), ids[0]);
      seen.insert(ids.begin(), ids.end());
      EXPECT_EQ(end, labels.rend());  // nothing leads to the first token of a document
    }
  EXPECT_EQ(std::ssize(seen), MegatronDataset(dir / "d").size());
}

TEST(OpenSamples, OfWholeDocumentsNeedsDocuments) {
  const ScratchDir dir;
  write_token_shard(dir / "d.bin", Tokens(100, 5));
  RunSpec run = small_run();
  run.data.kind = DataKind::shards;
  run.data.path = dir / "d.bin";
  run.data.whole_documents = true;
  const std::string error = error_of([&] { open_samples(run, 100, false); }, Exit::config);
  EXPECT_TRUE(contains(error, "begin with token 50256, got none")) << error;
}

}  // namespace
}  // namespace mw::test
