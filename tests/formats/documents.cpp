#include <numeric>

#include "formats/helpers.h"
#include "formats/io/byte_input.h"
#include "formats/io/crc32.h"
#include "formats/tokens/document_reader.h"
#include "formats/tokens/growing_dataset.h"
#include "formats/tokens/megatron.h"

namespace mw::test {
namespace {

struct Read {
  std::vector<std::string> documents;
  std::vector<DocumentPlace> places;  // after each block
  int64_t replaced = 0;
};

Read read_documents(const std::vector<std::string>& files, const DocumentPlace& start = {}) {
  DocumentReader reader(files, start);
  Read out;
  while (const std::optional<DocumentBlock> block = reader.next()) {
    out.replaced += for_each_document(*block, "text", [&](std::string_view text) { out.documents.emplace_back(text); });
    out.places.push_back(block->end);
  }
  return out;
}

TEST(DocumentReader, ReadsLinesAndFilesAndGoesOnFromEveryPlace) {
  const ScratchDir folder;
  std::string lines;
  for (int i = 0; i < 3000; ++i)
    lines += fmt::format("{{\"text\": \"{}\"}}\n", std::string(static_cast<size_t>(i), 'a'));
  write_raw(folder / "a.jsonl", lines + "\n{\"n\": {\"text\": \"no\"}, \"text\": \"last\"}");
  write_raw(folder / "b.txt", "a file");
  write_raw(folder / "c.txt", "bad \xff\xc3 bytes");
  const std::vector<std::string> files = list_documents({folder.path()});
  const Read all = read_documents(files);
  ASSERT_EQ(all.documents.size(), 2999u + 1 + 2);  // the first line has no text
  EXPECT_EQ(all.documents[2999], "last");
  EXPECT_EQ(all.documents.back(), "bad \ufffd\ufffd bytes");
  EXPECT_EQ(all.replaced, 2);
  EXPECT_GT(all.places.size(), 5u);
  size_t done = 0;
  for (const DocumentPlace& place : all.places) {
    const Read rest = read_documents(files, place);
    ASSERT_LE(rest.documents.size(), all.documents.size() - done);
    EXPECT_TRUE(std::equal(rest.documents.rbegin(), rest.documents.rend(), all.documents.rbegin()));
    done = all.documents.size() - rest.documents.size();
  }
  EXPECT_EQ(done, all.documents.size());
}

TEST(DocumentReader, NamesFileAndLine) {
  const ScratchDir folder;
  const auto error = [&](const std::string& text) {
    write_raw(folder / "x.jsonl", "{\"text\": \"ok\"}\n" + text);
    return error_of([&] { read_documents({folder / "x.jsonl"}); });
  };
  EXPECT_TRUE(contains(error("{\"text\": 1}"), "x.jsonl:2: expected a string in \"text\", got a number"));
  EXPECT_TRUE(contains(error("{\"text\": [\"a\"]}"), "got a list or an object"));
  EXPECT_TRUE(contains(error("{\"other\": \"a\"}"), "got no such field"));
  EXPECT_TRUE(contains(error("\"text\""), "expected a JSON object"));
  EXPECT_TRUE(contains(error("{\"text\": \"a"), "x.jsonl:2"));
  EXPECT_TRUE(contains(error("{\"text\": \"\xff\"}"), "x.jsonl:2"));
  EXPECT_TRUE(contains(error_of([&] { list_documents({folder / "absent"}); }), "absent"));
  write_raw(folder / "y.txt.xz", "x");
  EXPECT_TRUE(contains(error_of([&] { list_documents({folder.path()}); }, Exit::unsupported), ".xz"));
}

TEST(ByteInput, RefusesWhatIsNotCompressed) {
  const ScratchDir folder;
  for (const std::string name : {"x.txt.zst", "x.txt.gz"}) {
    write_raw(folder / name, "plain text");
    std::vector<char> out(100);
    EXPECT_TRUE(contains(error_of([&] { open_byte_input(folder / name)->read(out); }), name + ": not valid"));
  }
}

std::string little_endian(uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i);
  return text;
}

// A gzip file (RFC 1952) whose text is stored as it is.
std::string gzip_of(std::string_view text) {
  std::string file = "\x1f\x8b\x08" + std::string(6, '\0') + "\xff";
  for (size_t at = 0; at < text.size();) {
    const auto size = static_cast<uint32_t>(std::min<size_t>(text.size() - at, 0xffff));
    const bool last = at + size == text.size();
    file += (last ? '\1' : '\0') + little_endian(size, 2) + little_endian(~size, 2);
    file += text.substr(at, size);
    at += size;
  }
  return file + little_endian(crc32_ieee(as_span(text)), 4) + little_endian(static_cast<uint32_t>(text.size()), 4);
}

std::string read_all(const std::string& path, size_t piece) {
  const std::unique_ptr<ByteInput> input = open_byte_input(path);
  std::string text(piece, ' '), all;
  while (const size_t got = input->read(text)) all.append(text, 0, got);
  EXPECT_EQ(input->consumed(), static_cast<int64_t>(std::filesystem::file_size(path)));
  return all;
}

TEST(ByteInput, ReadsGzipFilesOfSeveralParts) {
  const ScratchDir folder;
  std::string text;
  for (int i = 0; i < 300000; ++i) text += static_cast<char>(i * 7 % 251);
  write_raw(folder / "x.gz", gzip_of(text) + gzip_of("second"));
  for (const size_t piece : {1u, 1000u, 1u << 20}) EXPECT_EQ(read_all(folder / "x.gz", piece), text + "second");
}

TEST(ByteInput, RefusesDamagedGzipFilesAndNamesTheByte) {
  const ScratchDir folder;
  const std::string whole = gzip_of("first") + gzip_of("some text");
  const auto error = [&](const std::string& bytes) {
    write_raw(folder / "x.gz", bytes);
    return error_of([&] { read_all(folder / "x.gz", 100); });
  };
  for (size_t size = 1; size < whole.size(); ++size) {
    if (size == gzip_of("first").size()) continue;
    const std::string expected = fmt::format("x.gz: the gzip data ends too early, at byte {}", size);
    EXPECT_TRUE(contains(error(whole.substr(0, size)), expected)) << size;
  }
  std::string changed = whole;
  changed[changed.size() - 10] ^= 1;  // the text; its checksum follows
  EXPECT_TRUE(contains(error(changed), fmt::format("x.gz: not valid gzip data before byte {}", whole.size() - 4)));
  EXPECT_TRUE(contains(error(whole + "more"), "x.gz: not valid gzip data before byte"));
}

std::vector<int32_t> document(int i) {
  std::vector<int32_t> tokens(static_cast<size_t>(i % 7));
  std::iota(tokens.begin(), tokens.end(), i);
  return tokens;
}

void add_masked(GrowingDataset& dataset, int i) {
  const std::vector<int32_t> tokens = document(i);
  std::vector<uint8_t> mask;
  for (const int32_t token : tokens) mask.push_back(token % 3 == 0);
  dataset.add_document(tokens, mask);
}

TEST(GrowingDataset, GoesOnFromAMarkToTheSameBytes) {
  const ScratchDir folder;
  GrowingDataset whole(folder / "whole", TokenType::u16, true);
  for (int i = 0; i < 100; ++i) add_masked(whole, i);
  whole.finish();
  DatasetMark mark;
  {
    GrowingDataset first(folder / "cut", TokenType::u16, true);
    for (int i = 0; i < 40; ++i) add_masked(first, i);
    mark = first.save();
    for (int i = 0; i < 5; ++i) add_masked(first, 99);  // lost
  }
  {
    GrowingDataset second(folder / "cut", TokenType::u16, mark);
    for (int i = 40; i < 60; ++i) add_masked(second, i);
    mark = second.save();
  }
  GrowingDataset third(folder / "cut", TokenType::u16, mark);
  for (int i = 60; i < 100; ++i) add_masked(third, i);
  third.finish();
  EXPECT_EQ(read_raw(folder / "cut.bin"), read_raw(folder / "whole.bin"));
  EXPECT_EQ(read_raw(folder / "cut.idx"), read_raw(folder / "whole.idx"));
  EXPECT_EQ(read_raw(folder / "cut.mask"), read_raw(folder / "whole.mask"));
  std::vector<uint8_t> mask(static_cast<size_t>(whole.tokens()));
  EXPECT_TRUE(MegatronDataset(folder / "cut").read_loss_mask(0, mask));
  EXPECT_EQ(MegatronDataset(folder / "cut").index().document_count, 100);
  EXPECT_FALSE(std::filesystem::exists(folder / "cut.lengths.tmp"));
}

TEST(GrowingDataset, RefusesFilesThatAreNotThoseOfTheMark) {
  const ScratchDir folder;
  DatasetMark mark;
  {
    GrowingDataset first(folder / "x", TokenType::i32);
    first.add_document(std::vector<int32_t>{1, 2, 3});
    mark = first.save();
  }
  const std::string bin = read_raw(folder / "x.bin.tmp");
  for (const std::string& bad : {std::string(), bin.substr(1), "x" + bin.substr(1)}) {
    write_raw(folder / "x.bin.tmp", bad);
    EXPECT_TRUE(contains(error_of([&] { GrowingDataset(folder / "x", TokenType::i32, mark); }), "x.bin.tmp"));
  }
  write_raw(folder / "x.bin.tmp", bin);
  write_raw(folder / "x.lengths.tmp", "abcd");
  EXPECT_TRUE(contains(error_of([&] { GrowingDataset(folder / "x", TokenType::i32, mark); }), "x.lengths.tmp"));
}

}  // namespace
}  // namespace mw::test
