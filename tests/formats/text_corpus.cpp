#include "formats/tokens/text_corpus.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "helpers.h"

namespace mw::test {
namespace {

using Names = std::vector<std::string>;

std::string read_text(const TokenSource& source) {
  std::vector<int32_t> tokens(static_cast<size_t>(source.size()));
  source.read(0, tokens);
  std::string text;
  for (const int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

TEST(TextCorpus, JoinsFilesInOrderWithSeparators) {
  const ScratchDir dir;
  write_raw(dir / "b.h", "bb");
  write_raw(dir / "a/z.cpp", "z\xff");
  write_raw(dir / "a.cpp", "aaa");
  write_raw(dir / "README", "r");
  write_raw(dir / "empty.h", "");
  write_raw(dir / "c.txt", "no");
  write_raw(dir / ".git/HEAD", "no");
  write_raw(dir / ".hidden.h", "no");
  const TextCorpus corpus(dir.path(), {".h", ".cpp", ""});
  EXPECT_EQ(corpus.files(), (Names{"README", "a.cpp", "a/z.cpp", "b.h"}));
  const std::string expected("r\0aaa\0z\xff\0bb\0", 12);
  EXPECT_EQ(read_text(corpus), expected);
  for (size_t first = 0; first <= expected.size(); ++first) {
    for (size_t count = 0; count <= expected.size() - first; ++count) {
      std::vector<int32_t> out(count);
      corpus.read(static_cast<int64_t>(first), out);
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(out[i], static_cast<unsigned char>(expected[first + i]));
    }
  }
  std::vector<int32_t> one(1);
  error_of([&] { corpus.read(12, one); }, Exit::internal);
  error_of([&] { corpus.read(-1, one); }, Exit::internal);
  EXPECT_EQ(corpus.document_begins(0, 12), (std::vector<int64_t>{0, 2, 6, 9}));
  EXPECT_EQ(corpus.document_begins(1, 5), (std::vector<int64_t>{2}));
  EXPECT_EQ(corpus.document_begins(2, 5), (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(corpus.document_begins(12, 0), std::vector<int64_t>{});
  error_of([&] { corpus.document_begins(0, 13); }, Exit::internal);
  EXPECT_EQ(TextCorpus(dir.path() + "/", {".h"}).files(), Names{"b.h"});
  EXPECT_EQ(TextCorpus(dir.path(), {}).files().size(), 5u);
}

TEST(TextCorpus, TakesASingleFile) {
  const ScratchDir dir;
  write_raw(dir / "book.txt", "hello");
  EXPECT_EQ(read_text(TextCorpus(dir / "book.txt", {".h"})), std::string("hello\0", 6));
}

TEST(TextCorpus, CutsASingleFileInTwo) {
  const ScratchDir dir;
  write_raw(dir / "t/book.txt", "0123456789");
  for (const std::string& path : {dir / "t", dir / "t/book.txt"}) {
    EXPECT_EQ(read_text(TextCorpus(path, {}, 0.25, Split::train)), std::string("01234567\0", 9));
    EXPECT_EQ(read_text(TextCorpus(path, {}, 0.25, Split::validation)), std::string("89\0", 3));
    EXPECT_EQ(TextCorpus(path, {}, 0.25, Split::all).size(), 11);
    EXPECT_EQ(TextCorpus(path, {}, 0, Split::train).size(), 11);
    EXPECT_TRUE(contains(error_of([&] { TextCorpus(path, {}, 0.05, Split::validation); }), "validation split"));
  }
}

TEST(TextCorpus, SkipsWhatIsNoFileAndFollowsNoLoops) {
  const ScratchDir dir;
  write_raw(dir / "t/a.h", "a");
  write_raw(dir / "outside.h", "o");
  std::filesystem::create_directory_symlink(dir / "t", dir / "t/loop");
  std::filesystem::create_symlink(dir / "outside.h", dir / "t/link.h");
  std::filesystem::create_symlink(dir / "absent.h", dir / "t/dangling.h");
  ASSERT_EQ(::mkfifo((dir / "t/pipe.h").c_str(), 0600), 0);
  EXPECT_EQ(TextCorpus(dir / "t", {".h"}).files(), (Names{"a.h", "link.h"}));
  EXPECT_TRUE(contains(error_of([&] { TextCorpus(dir / "t/pipe.h", {}); }), "neither a file nor a folder"));
}

TEST(TextCorpus, ErrorsNameThePathAndWhatWasSought) {
  const ScratchDir dir;
  EXPECT_TRUE(contains(error_of([&] { TextCorpus(dir / "absent", {}); }), "absent"));
  EXPECT_TRUE(contains(error_of([&] { TextCorpus(dir.path(), {".h"}); }), "none among 0 files"));
  write_raw(dir / "a.py", "x");
  write_raw(dir / "b.md", "x");
  const std::string message = error_of([&] { TextCorpus(dir.path(), {".h", ""}); });
  EXPECT_TRUE(contains(message, dir.path()) && contains(message, "\".h\", \"\"") &&
              contains(message, "\".md\", \".py\""))
      << message;
  write_raw(dir / "e.h", "");
  error_of([&] { TextCorpus(dir.path(), {".h"}); });
  EXPECT_TRUE(contains(error_of([&] { TextCorpus(dir / "e.h", {}); }), "empty"));
  if (::geteuid() != 0) {
    write_raw(dir / "secret.h", "x");
    std::filesystem::permissions(dir / "secret.h", std::filesystem::perms::none);
    EXPECT_TRUE(contains(error_of([&] { TextCorpus(dir.path(), {".h"}); }), "secret.h"));
  }
}

TEST(TextCorpus, SplitsPartitionTheFiles) {
  const ScratchDir dir;
  Names all;
  for (int i = 0; i < 60; ++i) {
    all.push_back(fmt::format("d{}/f{:02}.h", i % 3, i));
    write_raw(dir / all.back(), fmt::format("file {}", i));
  }
  std::sort(all.begin(), all.end());
  for (const double fraction : {0.0001, 0.1, 0.5, 0.9999}) {
    const Names train = TextCorpus(dir.path(), {".h"}, fraction, Split::train).files();
    const Names held_out = TextCorpus(dir.path(), {".h"}, fraction, Split::validation).files();
    EXPECT_FALSE(train.empty());
    EXPECT_FALSE(held_out.empty());
    Names joined = train;
    joined.insert(joined.end(), held_out.begin(), held_out.end());
    std::sort(joined.begin(), joined.end());
    EXPECT_EQ(joined, all);
  }
  EXPECT_EQ(TextCorpus(dir.path(), {".h"}, 0, Split::train).files(), all);
  EXPECT_EQ(TextCorpus(dir.path(), {".h"}, 0.5, Split::all).files(), all);
  const TokenSourceOptions options{.kind = DataKind::text,
                                   .path = dir.path(),
                                   .suffixes = {".h"},
                                   .validation_fraction = 0.5,
                                   .split = Split::validation};
  EXPECT_EQ(open_token_source(options)->size(), TextCorpus(dir.path(), {".h"}, 0.5, Split::validation).size());
}

TEST(TextCorpus, HoldOutIsFixedAndProportional) {
  Names names;
  for (int i = 0; i < 20000; ++i) names.push_back(fmt::format("src/file_{}.h", i));
  std::vector<bool> previous(names.size());
  for (const double fraction : {0.01, 0.1, 0.3, 0.7}) {
    const std::vector<bool> held_out = choose_held_out(names, fraction);
    const auto count = static_cast<double>(std::count(held_out.begin(), held_out.end(), true));
    EXPECT_NEAR(count / 20000, fraction, 0.015);
    for (size_t i = 0; i < names.size(); ++i) EXPECT_LE(previous[i], held_out[i]);  // a larger fraction only adds
    previous = held_out;
  }
  // A file's side depends on its own name: neighbours may come and go.
  const std::vector<bool> some = choose_held_out({names.begin(), names.begin() + 100}, 0.3);
  const std::vector<bool> all = choose_held_out(names, 0.3);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  for (int count = 2; count < 50; ++count) {
    for (const double fraction : {0.0001, 0.5, 0.9999}) {
      const std::vector<bool> few = choose_held_out({names.begin(), names.begin() + count}, fraction);
      const auto held_out = std::count(few.begin(), few.end(), true);
      EXPECT_TRUE(held_out >= 1 && held_out < count);
    }
  }
  EXPECT_EQ(choose_held_out({"a", "b"}, 0), (std::vector<bool>{false, false}));
}

}  // namespace
}  // namespace mw::test
