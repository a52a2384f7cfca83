// Megatron datasets, llm.c shards and what is common to token sources.
#include <limits>
#include <numeric>

#include "formats/tokens/megatron.h"
#include "formats/tokens/token_file.h"
#include "formats/tokens/token_shard.h"
#include "helpers.h"
#include "support/token_writers.h"

namespace mw::test {
namespace {

using Tokens = std::vector<int32_t>;

Tokens read_tokens(const TokenSource& source, int64_t first, int64_t count) {
  Tokens out(static_cast<size_t>(count));
  source.read(first, out);
  return out;
}

Tokens read_all_tokens(const TokenSource& source) { return read_tokens(source, 0, source.size()); }

// Every sub-range equals the same range of the whole.
void expect_ranges(const TokenSource& source, const Tokens& expected) {
  ASSERT_EQ(source.size(), std::ssize(expected));
  for (int64_t first = 0; first <= source.size(); ++first) {
    for (int64_t count = 0; count <= source.size() - first; ++count) {
      EXPECT_EQ(read_tokens(source, first, count), Tokens(expected.begin() + first, expected.begin() + first + count));
    }
  }
  for (const int64_t first : {int64_t{-1}, source.size(), std::numeric_limits<int64_t>::max()}) {
    error_of([&] { read_tokens(source, first, 1); }, Exit::internal);
  }
}

// Every sub-range tells of the same documents; `begins` are those of the whole.
void expect_documents(const TokenSource& source, const std::vector<int64_t>& begins) {
  for (int64_t first = 0; first <= source.size(); ++first)
    for (int64_t count = 0; count <= source.size() - first; ++count) {
      std::vector<int64_t> expected;
      for (const int64_t begin : begins)
        if (begin >= first && begin < first + count) expected.push_back(begin);
      EXPECT_EQ(source.document_begins(first, count), expected) << first << " + " << count;
    }
  error_of([&] { source.document_begins(1, source.size()); }, Exit::internal);
}

// One of several ranks, which hears nothing of the others.
class LonelyRank final : public OpeningRanks {
 public:
  LonelyRank(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  int rank_, size_;
};

// The memory maps of files in a folder.
int64_t count_maps(const ScratchDir& dir) {
  const std::string maps = read_raw("/proc/self/maps");
  int64_t count = 0;
  for (size_t at = 0; (at = maps.find(dir.path(), at)) != std::string::npos; ++at) ++count;
  return count;
}

const std::vector<Tokens> kSequences = {{1, 2, 3}, {}, {4}, {5, 6, 7, 8, 9}, {}};
const Tokens kJoined = {1, 2, 3, 4, 5, 6, 7, 8, 9};

TEST(Megatron, RoundTripInEveryType) {
  const ScratchDir dir;
  for (const TokenType type :
       {TokenType::u8, TokenType::i8, TokenType::i16, TokenType::i32, TokenType::i64, TokenType::u16}) {
    const std::string prefix = dir / std::string(name_of(type));
    write_megatron(prefix, kSequences, type);
    for (const char* suffix : {"", ".bin", ".idx"}) {
      const MegatronDataset data(prefix + suffix);
      expect_ranges(data, kJoined);
      EXPECT_EQ(data.index().document_count, 5);
      EXPECT_TRUE(data.index().starts.empty());
    }
  }
  error_of([&] { write_megatron(dir / "x", kSequences, TokenType::u32); });
  error_of([&] { write_megatron(dir / "x", {{1}, {300}}, TokenType::u8); });
  error_of([&] { write_megatron(dir / "x", {{-1}}, TokenType::u16); });
  EXPECT_FALSE(std::filesystem::exists(dir / "x.bin"));
}

TEST(Megatron, LossMaskCoversEveryTokenAndSlicesOfThem) {
  const ScratchDir dir;
  write_megatron(dir / "d", kSequences, TokenType::u16);
  std::vector<uint8_t> mask(3, 7);
  EXPECT_FALSE(MegatronDataset(dir / "d").read_loss_mask(0, mask));
  EXPECT_EQ(mask, (std::vector<uint8_t>{7, 7, 7}));
  write_raw(dir / "d.mask", std::string("\0\1\1\0\0\1\0\1\1", 9));
  auto data = std::make_unique<MegatronDataset>(dir / "d");
  EXPECT_TRUE(contains(data->describe(), "with a loss mask"));
  EXPECT_TRUE(data->read_loss_mask(1, mask));
  EXPECT_EQ(mask, (std::vector<uint8_t>{1, 1, 0}));
  error_of([&] { data->read_loss_mask(7, mask); }, Exit::internal);
  const TokenSlice slice(std::move(data), 4, 4);
  EXPECT_TRUE(slice.read_loss_mask(1, mask));
  EXPECT_EQ(mask, (std::vector<uint8_t>{1, 0, 1}));
  error_of([&] { slice.read_loss_mask(2, mask); }, Exit::internal);

  write_raw(dir / "d.mask", std::string("\0\1\1\0\0\2\0\1\1", 9));
  EXPECT_TRUE(contains(error_of([&] { MegatronDataset(dir / "d").read_loss_mask(3, mask); }),
                       "d.mask: expected 0 or 1 for token 5, got 2"));
  write_raw(dir / "d.mask", "12345678");
  EXPECT_TRUE(contains(error_of([&] { MegatronDataset{dir / "d"}; }), "expected one byte for each of 9 tokens, got 8"));
}

TEST(Megatron, DocumentsOfSeveralSequences) {
  const ScratchDir dir;
  write_megatron(dir / "d", {kSequences[0], kSequences[2], kSequences[3]}, TokenType::i32, {0, 2, 3});
  const MegatronDataset data(dir / "d");
  EXPECT_EQ(data.index().document_count, 2);
  EXPECT_EQ(data.index().document_begin(1), 2);
  EXPECT_EQ(data.index().document_begin(2), 3);
  EXPECT_EQ(read_all_tokens(data), kJoined);
}

TEST(Megatron, DocumentsBeginWhereTheIndexSays) {
  const ScratchDir dir;
  write_megatron(dir / "empty_ones", kSequences);  // the empty ones begin nowhere
  expect_documents(MegatronDataset(dir / "empty_ones"), {0, 3, 4});
  write_megatron(dir / "d", {kSequences[0], kSequences[2], kSequences[3]}, TokenType::u16, {0, 0, 2, 2, 3});
  expect_documents(MegatronDataset(dir / "d"), {0, 4});
  write_megatron(dir / "none", {});
  expect_documents(MegatronDataset(dir / "none"), {});
}

TEST(Megatron, LayoutIsByteExact) {
  const ScratchDir dir;
  write_megatron(dir / "d", {{1, 2}, {3}}, TokenType::u16);
  EXPECT_EQ(read_raw(dir / "d.bin"), std::string("\1\0\2\0\3\0", 6));
  EXPECT_EQ(read_raw(dir / "d.idx"), std::string("MMIDIDX\0\0", 9) + bytes_of(uint64_t{1}) + '\x08' +
                                         bytes_of(uint64_t{2}) + bytes_of(uint64_t{3}) + bytes_of(int32_t{2}) +
                                         bytes_of(int32_t{1}) + bytes_of(int64_t{0}) + bytes_of(int64_t{4}) +
                                         bytes_of(int64_t{0}) + bytes_of(int64_t{1}) + bytes_of(int64_t{2}));
}

class MegatronDamage : public testing::Test {
 protected:
  void SetUp() override {
    write_megatron(dir_ / "d", kSequences, TokenType::u16);
    idx_ = read_raw(dir_ / "d.idx");
  }
  MegatronIndex parse(const std::string& idx, int64_t bin_size = 18) {
    return parse_megatron_index(as_span(idx), bin_size, "d.idx");
  }
  void expect_refused(const std::string& idx, std::string_view part, int64_t bin_size = 18) {
    const std::string message = error_of([&] { parse(idx, bin_size); });
    EXPECT_TRUE(contains(message, part) && contains(message, "d.idx")) << message;
  }
  ScratchDir dir_;
  std::string idx_;
  static constexpr size_t kLengths = 34, kOffsets = 34 + 4 * 5, kDocuments = 34 + 12 * 5;
};

TEST_F(MegatronDamage, RefusesEveryCut) {
  parse(idx_);
  for (size_t size = 0; size < idx_.size(); ++size) expect_refused(idx_.substr(0, size), "");
  expect_refused(idx_ + "x", "");
  EXPECT_EQ(parse(idx_ + std::string(5, '\0')).token_count, 9);  // with modes
}

TEST_F(MegatronDamage, RefusesEveryMutatedHeaderField) {
  for (size_t at = 0; at < 9; ++at) expect_refused(with_value(idx_, at, 'x'), "magic");
  for (const size_t field : {9u, 18u, 26u}) {
    for (const uint64_t value : {uint64_t{0}, uint64_t{2}, uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{1} << 61,
                                 uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} / 8, ~uint64_t{0} / 12 + 1}) {
      expect_refused(with_value(idx_, field, value), "");
    }
  }
  for (int code = 0; code < 256; ++code) {
    // i16 is as wide as u16; one byte per token leaves gaps, which are legal.
    if (code != 8 && code != 3 && code != 1 && code != 2)
      expect_refused(with_value(idx_, 17, static_cast<uint8_t>(code)), "");
  }
  expect_refused(with_value(idx_, 17, uint8_t{7}), "floating-point");
}

TEST_F(MegatronDamage, RefusesEveryMutatedArrayEntry) {
  for (size_t i = 0; i < 5; ++i) {
    for (const int32_t value : {-1, 77, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
      expect_refused(with_value(idx_, kLengths + 4 * i, value), "sequence");
    }
  }
  const int64_t bad[] = {-1, 19, int64_t{1} << 31, std::numeric_limits<int64_t>::max(),
                         std::numeric_limits<int64_t>::min()};
  for (const int64_t value : bad) {
    for (size_t i = 0; i < 5; ++i) expect_refused(with_value(idx_, kOffsets + 8 * i, value), "sequence");
    for (size_t i = 0; i < 6; ++i) expect_refused(with_value(idx_, kDocuments + 8 * i, value), "document entry");
  }
  expect_refused(with_value(idx_, kDocuments, int64_t{1}), "document entry 0");
  expect_refused(with_value(idx_, kDocuments + 16, int64_t{0}), "document entry 2");
  expect_refused(with_value(idx_, kDocuments + 40, int64_t{4}), "document entry 5");
  expect_refused(idx_, "expected a .bin of 18 bytes, got 19", 19);
  expect_refused(idx_, "", 17);
  expect_refused(idx_, "", 0);
}

// What those of so many ranks say that refuse the index, each by its part alone.
std::vector<std::string> refusals(const std::string& idx, int ranks) {
  std::vector<std::string> messages;
  for (int rank = 0; rank < ranks; ++rank) try {
      parse_megatron_index(as_span(idx), 18, "d.idx", LonelyRank(rank, ranks));
    } catch (const Error& error) {
      messages.emplace_back(error.what());
    }
  return messages;
}

// And by the next rank at most, whose part begins where the damaged one should end.
TEST_F(MegatronDamage, IsSeenByTheRankThatChecksThePart) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    EXPECT_TRUE(refusals(idx_, ranks).empty());
    const auto expect_one = [&](size_t at, auto value, const std::string& part) {
      const std::vector<std::string> messages = refusals(with_value(idx_, at, value), ranks);
      ASSERT_FALSE(messages.empty()) << part;
      EXPECT_TRUE(contains(messages.front(), part)) << messages.front();
      EXPECT_LE(messages.size(), ranks == 1 ? 1u : 2u) << part;
    };
    for (size_t i = 0; i < 5; ++i) {
      expect_one(kLengths + 4 * i, int32_t{-1}, fmt::format("sequence {}:", i));
      expect_one(kOffsets + 8 * i, int64_t{99}, fmt::format("sequence {}:", i));
    }
    for (size_t i = 0; i < 6; ++i) expect_one(kDocuments + 8 * i, int64_t{99}, fmt::format("document entry {}:", i));
  }
}

TEST_F(MegatronDamage, SurvivesEveryChangedByte) {
  const std::string bin = read_raw(dir_ / "d.bin");
  for (size_t at = 0; at < idx_.size(); ++at) {
    for (int value = 0; value < 256; value += 5) {
      try {
        const std::string idx = with_value(idx_, at, static_cast<char>(value));
        const MegatronIndex index = parse(idx);
        ASSERT_LE(index.token_count, 18);
        Tokens out(static_cast<size_t>(index.token_count));
        read_megatron_tokens(index, as_span(bin), 0, out, "d.bin");
        for (int64_t document = 0; document <= index.document_count; ++document) {
          ASSERT_GE(index.first_token(document), document == 0 ? 0 : index.first_token(document - 1));
          ASSERT_LE(index.first_token(document), index.token_count);
        }
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Exit::data);
      }
    }
  }
}

TEST_F(MegatronDamage, SequencesMayHaveGaps) {
  // Sequences of 3, 0, 1, 5 and 0 tokens with unused bytes between them.
  const int64_t offsets[] = {2, 8, 10, 13, 25};
  std::string idx = idx_;
  for (size_t i = 0; i < 5; ++i) idx = with_value(idx, kOffsets + 8 * i, offsets[i]);
  std::string bin(25, '\xee');
  const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const size_t places[] = {2, 4, 6, 10, 13, 15, 17, 19, 21};
  for (size_t i = 0; i < 9; ++i) bin = with_value(bin, places[i], static_cast<uint16_t>(ids[i]));
  write_raw(dir_ / "g.idx", idx);
  write_raw(dir_ / "g.bin", bin);
  const MegatronDataset data(dir_ / "g");
  EXPECT_FALSE(data.index().starts.empty());
  expect_ranges(data, kJoined);
  expect_documents(data, {0, 3, 4});
}

TEST_F(MegatronDamage, RefusesIdsBeyond32Bits) {
  write_megatron(dir_ / "w", {{1, 2, 3}}, TokenType::i64);
  write_raw(dir_ / "w.bin", with_value(read_raw(dir_ / "w.bin"), 8, int64_t{1} << 31));
  const MegatronDataset data(dir_ / "w");
  EXPECT_TRUE(contains(error_of([&] { read_all_tokens(data); }), "token 1"));
  EXPECT_EQ(read_tokens(data, 2, 1), Tokens{3});
}

TEST(TokenShard, RoundTrip) {
  const ScratchDir dir;
  Tokens tokens(70000);
  std::iota(tokens.begin(), tokens.end(), 0);
  write_token_shard(dir / "wide.bin", tokens, TokenType::u32);
  EXPECT_EQ(read_all_tokens(TokenShard(dir / "wide.bin")), tokens);
  tokens.resize(65536);
  write_token_shard(dir / "a.bin", tokens);
  EXPECT_EQ(read_all_tokens(TokenShard(dir / "a.bin")), tokens);
  EXPECT_EQ(std::filesystem::file_size(dir / "a.bin"), 1024u + 2 * 65536);
  write_token_shard(dir / "small.bin", kJoined);
  expect_ranges(TokenShard(dir / "small.bin"), kJoined);
}

TEST(TokenShard, RefusesDamage) {
  const ScratchDir dir;
  for (const TokenType type : {TokenType::u16, TokenType::u32}) {
    write_token_shard(dir / "d.bin", kJoined, type);
    const std::string bytes = read_raw(dir / "d.bin");
    const auto expect_refused = [&](const std::string& mutated, std::string_view part) {
      const std::string message = error_of([&] { parse_token_shard(as_span(mutated), "d.bin"); });
      EXPECT_TRUE(contains(message, part) && contains(message, "d.bin")) << message;
    };
    for (size_t size = 0; size < bytes.size(); ++size) expect_refused(bytes.substr(0, size), "bytes");
    expect_refused(bytes + "x", "bytes");
    for (const int32_t value :
         {-1, 0, 2, 8, 10, 20240522, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
      expect_refused(with_value(bytes, 0, value), "magic");
      expect_refused(with_value(bytes, 4, value), "version");
      expect_refused(with_value(bytes, 8, value), "");
    }
    expect_refused(with_value(bytes, 0, type == TokenType::u16 ? 20240801 : 20240520), "version");
  }
}

TEST(TokenShard, RefusesIdsBeyond31Bits) {
  const ScratchDir dir;
  write_token_shard(dir / "d.bin", kJoined, TokenType::u32);
  write_raw(dir / "d.bin", with_value(read_raw(dir / "d.bin"), 1024 + 8, 0xffffffffu));
  const TokenShard shard(dir / "d.bin");
  error_of([&] { read_all_tokens(shard); });
}

TEST(JoinedShards, JoinsInOrderOfNames) {
  const ScratchDir dir;
  write_token_shard(dir / "t_2.bin", Tokens{4, 5, 6});
  write_token_shard(dir / "t_1.bin", Tokens{1, 2, 3});
  write_token_shard(dir / "t_3.bin", Tokens{});
  write_token_shard(dir / "t_4.bin", Tokens{7, 8, 9}, TokenType::u32);
  write_raw(dir / "notes.txt", "x");
  for (const std::string& path : {dir.path(), dir / "t_*.bin", dir / "t_[1-4].bin"}) {
    expect_ranges(JoinedShards(list_token_shards(path)), kJoined);
  }
  EXPECT_EQ(list_token_shards(dir / "t_1.bin").size(), 1u);
  error_of([&] { list_token_shards(dir / "absent_*.bin"); });
  error_of([&] { list_token_shards(dir / "absent"); });
  std::filesystem::create_directory(dir / "empty");
  error_of([&] { list_token_shards(dir / "empty"); });
}

TEST(JoinedShards, NameTheFileOfATokenOutsideTheVocabulary) {
  const ScratchDir dir;
  write_token_shard(dir / "t_1.bin", Tokens{1, 2, 3});
  write_token_shard(dir / "t_2.bin", Tokens{});
  write_token_shard(dir / "t_3.bin", Tokens{4, 5, 6, 77, 8, 9});
  const auto refusal = [](const TokenSource& source, int64_t first, size_t count) {
    Tokens tokens(count);
    source.read(first, tokens);
    return error_of([&] { check_tokens(tokens, 50, source, first); });
  };
  const std::string expected = (dir / "t_3.bin") + ": token 3: expected an id in [0, 50), got 77";
  const JoinedShards shards(list_token_shards(dir.path()));
  EXPECT_TRUE(contains(refusal(shards, 0, 9), expected)) << refusal(shards, 0, 9);
  EXPECT_TRUE(contains(refusal(shards, 5, 2), expected)) << refusal(shards, 5, 2);
  const TokenSlice slice(std::make_unique<JoinedShards>(list_token_shards(dir.path())), 4, 5);
  EXPECT_TRUE(contains(refusal(slice, 1, 4), expected)) << refusal(slice, 1, 4);
}

TEST(JoinedShards, AreMappedAtTheirFirstUse) {
  const ScratchDir dir;
  for (int i = 0; i < 5; ++i)
    write_token_shard(dir / fmt::format("t_{}.bin", i), Tokens{10 * i, 10 * i + 1, 10 * i + 2});
  const JoinedShards shards(list_token_shards(dir.path()), {}, 2);
  EXPECT_EQ(count_maps(dir), 0);
  EXPECT_EQ(read_tokens(shards, 4, 1), Tokens{11});
  EXPECT_EQ(count_maps(dir), 1);
  for (int64_t first = 0; first < 14; ++first) {
    EXPECT_EQ(read_tokens(shards, first, 1), Tokens{static_cast<int32_t>(first / 3 * 10 + first % 3)});
    EXPECT_LE(count_maps(dir), 2);
  }
  write_token_shard(dir / "t_0.bin", Tokens{1, 2});
  const std::string message = error_of([&] { read_tokens(shards, 0, 1); });
  EXPECT_TRUE(contains(message, "t_0.bin: expected 3 tokens, as when the data was opened, got 2")) << message;
}

TEST(JoinedShards, EachRankLooksAtItsPart) {
  const ScratchDir dir;
  for (const char* name : {"t_1.bin", "t_2.bin", "t_3.bin"}) write_token_shard(dir / name, kJoined);
  write_raw(dir / "t_3.bin", "no shard");
  const std::vector<std::string> paths = list_token_shards(dir.path());
  EXPECT_EQ(JoinedShards(paths, LonelyRank(0, 3)).size(), 9);
  EXPECT_TRUE(contains(error_of([&] { JoinedShards(paths, LonelyRank(2, 3)); }), "t_3.bin"));
  EXPECT_TRUE(list_token_shards(dir.path(), LonelyRank(1, 3)).empty());
}

// llm.c begins each document with GPT-2's 50256, or with 128000 in files of Llama 3; documents may span shards.
TEST(JoinedShards, DocumentsBeginAtAToken) {
  const ScratchDir dir;
  write_token_shard(dir / "t_1.bin", Tokens{});
  write_token_shard(dir / "t_2.bin", Tokens{50256, 2, 50256, 50256, 5});
  write_token_shard(dir / "t_3.bin", Tokens{6, 7, 50256});
  JoinedShards shards(list_token_shards(dir / "t_*.bin"));
  EXPECT_TRUE(contains(error_of([&] { shards.document_begins(0, 1); }, Exit::config), "where documents begin"));
  shards.cut_documents();
  expect_documents(shards, {0, 2, 3, 7});
  EXPECT_TRUE(contains(shards.describe(), "token 50256 begins a document"));
  shards.cut_documents(5);
  expect_documents(shards, {4});
  const std::string message = error_of([&] { shards.cut_documents(6); }, Exit::config);  // in the second shard alone
  EXPECT_TRUE(contains(message, "t_2.bin") && contains(message, "token 6, got none")) << message;
  write_token_shard(dir / "wide.bin", Tokens{1, 128000, 50256}, TokenType::u32);
  JoinedShards wide({dir / "wide.bin"});
  wide.cut_documents();
  expect_documents(wide, {1});
}

TEST(TokenSource, DocumentsOfSlicesCountFromTheirFirstToken) {
  const ScratchDir dir;
  write_megatron(dir / "m", {{1, 2}, {3, 4, 5}, {6}, {7, 8, 9}});
  TokenSourceOptions options{.kind = DataKind::megatron,
                             .path = dir / "m",
                             .suffixes = {},
                             .validation_fraction = 0.5,
                             .split = Split::train,
                             .documents = true};
  expect_documents(*open_token_source(options), {0, 2});
  options.split = Split::validation;
  expect_documents(*open_token_source(options), {0, 1});
  std::vector<int32_t> starts(3);
  find_document_starts(*open_token_source(options), 0, starts);
  EXPECT_EQ(starts, (Tokens{0, 1, 1}));
  find_document_starts(MegatronDataset(dir / "m"), 1, starts);  // in the middle of a document
  EXPECT_EQ(starts, (Tokens{0, 1, 1}));
  find_document_starts(MegatronDataset(dir / "m"), 3, starts);
  EXPECT_EQ(starts, (Tokens{0, 0, 2}));
  write_token_shard(dir / "s.bin", kJoined);
  options = {.kind = DataKind::shards, .path = dir / "s.bin", .suffixes = {}, .documents = true};
  error_of([&] { open_token_source(options); }, Exit::config);
  options.document_token = 4;
  expect_documents(*open_token_source(options), {3});
}

TEST(TokenSource, OpensByKindAndSplits) {
  const ScratchDir dir;
  write_megatron(dir / "m", {kJoined});
  write_token_shard(dir / "s.bin", kJoined);
  for (const auto& [kind, path] :
       {std::pair(DataKind::megatron, dir / "m"), std::pair(DataKind::shards, dir / "s.bin")}) {
    TokenSourceOptions options{.kind = kind, .path = path, .suffixes = {}};
    EXPECT_EQ(read_all_tokens(*open_token_source(options)), kJoined);
    options.validation_fraction = 0.34;
    options.split = Split::train;
    expect_ranges(*open_token_source(options), {1, 2, 3, 4, 5, 6});
    options.split = Split::validation;
    expect_ranges(*open_token_source(options), {7, 8, 9});
    options.validation_fraction = 0.01;  // rounds to nothing
    error_of([&] { open_token_source(options); });
    for (const double bad : {-0.1, 1.0, 0.0, std::nan("")}) {
      options.validation_fraction = bad;
      error_of([&] { open_token_source(options); }, Exit::config);
    }
  }
  write_token_shard(dir / "none.bin", Tokens{});
  const TokenSourceOptions empty{.kind = DataKind::shards, .path = dir / "none.bin", .suffixes = {}};
  EXPECT_TRUE(contains(error_of([&] { open_token_source(empty); }), "the data is empty"));
}

TEST(TokenSource, ChecksTokensAgainstAVocabulary) {
  check_tokens(kJoined, 10, "x");
  check_tokens({}, 0, "x");
  const std::string message = error_of([&] { check_tokens(kJoined, 9, "web.bin", 100); });
  EXPECT_TRUE(contains(message, "web.bin") && contains(message, "token 108") && contains(message, "got 9")) << message;
  error_of([&] { check_tokens(Tokens{0, -1}, 9, "x"); });
}

TEST(TokenSource, FindsTheRangeOfIds) {
  const ScratchDir dir;
  Tokens tokens(200001, 5);
  tokens[100000] = -7;
  tokens.back() = 99;
  write_megatron(dir / "m", {tokens});
  const TokenRange range = find_token_range(MegatronDataset(dir / "m"));
  EXPECT_EQ(range.smallest, -7);
  EXPECT_EQ(range.largest, 99);
  write_megatron(dir / "none", {});
  EXPECT_EQ(find_token_range(MegatronDataset(dir / "none")).largest, 0);
}

}  // namespace
}  // namespace mw::test
