#include <numeric>

#include "formats/helpers.h"
#include "formats/io/byte_input.h"
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
  write_raw(folder / "y.txt.gz", "x");
  EXPECT_TRUE(contains(error_of([&] { list_documents({folder.path()}); }, Exit::unsupported), ".gz"));
}

TEST(ByteInput, RefusesWhatIsNotCompressed) {
  const ScratchDir folder;
  write_raw(folder / "x.txt.zst", "plain text");
  std::vector<char> out(100);
  EXPECT_TRUE(contains(error_of([&] { open_byte_input(folder / "x.txt.zst")->read(out); }), "x.txt.zst"));
}

std::vector<int32_t> document(int i) {
  std::vector<int32_t> tokens(static_cast<size_t>(i % 7));
  std::iota(tokens.begin(), tokens.end(), i);
  return tokens;
}

TEST(GrowingDataset, GoesOnFromAMarkToTheSameBytes) {
  const ScratchDir folder;
  GrowingDataset whole(folder / "whole", TokenType::u16);
  for (int i = 0; i < 100; ++i) whole.add_document(document(i));
  whole.finish();
  DatasetMark mark;
  {
    GrowingDataset first(folder / "cut", TokenType::u16);
    for (int i = 0; i < 40; ++i) first.add_document(document(i));
    mark = first.save();
    for (int i = 0; i < 5; ++i) first.add_document(document(99));  // lost
  }
  {
    GrowingDataset second(folder / "cut", TokenType::u16, mark);
    for (int i = 40; i < 60; ++i) second.add_document(document(i));
    mark = second.save();
  }
  GrowingDataset third(folder / "cut", TokenType::u16, mark);
  for (int i = 60; i < 100; ++i) third.add_document(document(i));
  third.finish();
  EXPECT_EQ(read_raw(folder / "cut.bin"), read_raw(folder / "whole.bin"));
  EXPECT_EQ(read_raw(folder / "cut.idx"), read_raw(folder / "whole.idx"));
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
