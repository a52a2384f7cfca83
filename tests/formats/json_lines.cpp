#include "formats/io/json_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "helpers.h"

namespace mw::test {
namespace {

using nlohmann::ordered_json;

TEST(JsonLines, WritesOneLineEachAtOnce) {
  const ScratchDir dir;
  const std::string path = dir / "metrics.jsonl";
  {
    JsonLinesWriter writer(path);
    writer.write(ordered_json{{"step", 1}, {"loss", std::nan("")}, {"a", std::numeric_limits<double>::infinity()}});
    EXPECT_EQ(read_raw(path), "{\"step\":1,\"loss\":null,\"a\":null}\n");
    JsonLinesWriter moved = std::move(writer);
    moved.write(ordered_json{{"text", "two\nlines \xff"}});
  }
  EXPECT_EQ(read_raw(path), "{\"step\":1,\"loss\":null,\"a\":null}\n{\"text\":\"two\\nlines \xef\xbf\xbd\"}\n");
  JsonLinesWriter(path).write(ordered_json{{"step", 2}});  // appends
  EXPECT_TRUE(contains(read_raw(path), "\xbd\"}\n{\"step\":2}\n"));
  EXPECT_TRUE(contains(error_of([&] { JsonLinesWriter(dir / "absent/m.jsonl"); }), "absent/m.jsonl"));
}

TEST(JsonLines, FullDiskIsAnError) {
  JsonLinesWriter writer("/dev/full");
  EXPECT_TRUE(contains(error_of([&] { writer.write(ordered_json{{"step", 1}}); }), "/dev/full"));
}

TEST(JsonLines, TruncatesAfterAStep) {
  const ScratchDir dir;
  const std::string path = dir / "m.jsonl";
  write_raw(
      path,
      "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2,\"sub\":{\"step\":9},\"list\":[{\"step\":9}]}\n{\"step\":3}\n"
      "{\"step\":2.5}\n{\"step\":99999999999999999999}\n{\"st");
  const TruncatedLines result = truncate_after_step(path, 2);
  EXPECT_EQ(result.beyond, 3);
  EXPECT_EQ(result.broken, 1);
  const std::string expected =
      "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2,\"sub\":{\"step\":9},\"list\":[{\"step\":9}]}\n";
  EXPECT_EQ(read_raw(path), expected);
  truncate_after_step(path, 2);
  EXPECT_EQ(read_raw(path), expected);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

// A line before the last step that stays is not read, whatever the length of the file: this one would be broken.
TEST(JsonLines, TruncateReadsTheEndAlone) {
  const ScratchDir dir;
  const std::string path = dir / "m.jsonl", kept = "{\"step\":1}\n{\"st\n{\"step\":2}\n";
  write_raw(path, kept + "{\"step\":3}\n");
  const TruncatedLines result = truncate_after_step(path, 2);
  EXPECT_EQ(result.beyond, 1);
  EXPECT_EQ(result.broken, 0);
  EXPECT_EQ(read_raw(path), kept);
}

// Whatever the place where a crash cut the file, only whole lines remain.
TEST(JsonLines, RepairsEveryCut) {
  const ScratchDir dir;
  const std::string path = dir / "m.jsonl";
  const std::string whole = "{\"step\":1,\"loss\":2.5}\n{\"step\":12,\"loss\":2.25}\n";
  for (size_t size = 0; size <= whole.size(); ++size) {
    write_raw(path, whole.substr(0, size));
    truncate_after_step(path, 100);
    const std::string expected = size >= whole.size() - 1 ? whole : size >= 21 ? whole.substr(0, 22) : "";
    EXPECT_EQ(read_raw(path), expected) << size;
  }
}

TEST(JsonLines, SetAsideKeepTheirContent) {
  const ScratchDir dir;
  const std::string path = dir / "m.jsonl";
  EXPECT_EQ(set_lines_aside(path), "");
  write_raw(path, "");
  EXPECT_EQ(set_lines_aside(path), "");
  for (int n = 1; n <= 3; ++n) {
    const std::string line = fmt::format("{{\"step\":{}}}\n", n);
    write_raw(path, line);
    const std::string aside = set_lines_aside(path);
    EXPECT_EQ(aside, fmt::format("{}.{}", path, n));
    EXPECT_EQ(read_raw(aside), line);
    EXPECT_FALSE(std::filesystem::exists(path));
  }
}

// A text of the user keeps its name, so that nothing takes the metrics in its place for it.
TEST(JsonLines, AnotherFileIsNotSetAside) {
  const ScratchDir dir;
  const std::string path = dir / "notes.txt";
  write_raw(path, "a text\nof two lines\n");
  for (const auto& move_aside : {set_lines_aside, copy_lines_aside})
    EXPECT_TRUE(contains(error_of([&] { move_aside(path); }), "line 1 is no JSON object: a text"));
  EXPECT_FALSE(std::filesystem::exists(path + ".1"));
}

// Devices and pipes have as many writers as like. What a shell opened for the program's output stays.
TEST(JsonLines, LeaveOpenFilesAlone) {
  const JsonLinesWriter first("/dev/null"), second("/dev/null");
  const ScratchDir dir;
  write_raw(dir / "out", "text\n");
  const int fd = ::open((dir / "out").c_str(), O_RDWR);
  std::filesystem::create_symlink(fmt::format("/proc/self/fd/{}", fd), dir / "link");
  for (const std::string& name : {fmt::format("/proc/self/fd/{}", fd), dir / "link"}) {
    EXPECT_EQ(set_lines_aside(name), "");
    EXPECT_EQ(truncate_after_step(name, 1).broken, 0);
  }
  EXPECT_EQ(read_raw(dir / "out"), "text\n");
  ::close(fd);
}

// Of another run that still writes it, a file is neither written nor renamed nor shortened.
TEST(JsonLines, HaveOneWriter) {
  const ScratchDir dir;
  const std::string path = dir / "m.jsonl";
  JsonLinesWriter writer(path);
  writer.write(ordered_json{{"step", 1}});
  EXPECT_TRUE(contains(error_of([&] { JsonLinesWriter another(path); }), "another run writes"));
  EXPECT_TRUE(contains(error_of([&] { set_lines_aside(path); }), "another run writes"));
  EXPECT_TRUE(contains(error_of([&] { copy_lines_aside(path); }), "another run writes"));
  EXPECT_TRUE(contains(error_of([&] { truncate_after_step(path, 0); }), "another run writes"));
  writer.write(ordered_json{{"step", 2}});
  EXPECT_EQ(read_raw(path), "{\"step\":1}\n{\"step\":2}\n");
}

TEST(JsonLines, CopiesKeepTheFile) {
  const ScratchDir dir;
  const std::string path = dir / "m.jsonl";
  EXPECT_EQ(copy_lines_aside(path), "");
  write_raw(path, "{\"step\":1}\n");
  EXPECT_EQ(copy_lines_aside(path), path + ".1");
  EXPECT_EQ(read_raw(path), read_raw(path + ".1"));
}

// What a link names is shortened, and the link stays.
TEST(JsonLines, FollowLinks) {
  const ScratchDir dir;
  write_raw(dir / "m", "{\"step\":1}\n{\"step\":2}\n");
  std::filesystem::create_symlink("m", dir / "link");
  EXPECT_EQ(truncate_after_step(dir / "link", 1).beyond, 1);
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
  EXPECT_EQ(read_raw(dir / "m"), "{\"step\":1}\n");
  EXPECT_EQ(set_lines_aside(dir / "link"), dir / "m.1");
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
  EXPECT_EQ(truncate_after_step("/dev/null", 1).beyond, 0);
}

TEST(JsonLines, MissingAndHostileFiles) {
  const ScratchDir dir;
  EXPECT_EQ(truncate_after_step(dir / "absent", 1).beyond, 0);
  EXPECT_FALSE(std::filesystem::exists(dir / "absent"));
  const std::string object = "{\"step\":1}\n", text = "{\"step\":\"x\"}\n",
                    broken = "[1]\n\n" + std::string(1'000'000, '[') + "\n1\n";
  write_raw(dir / "m", object + text + broken + text);
  EXPECT_EQ(truncate_after_step(dir / "m", 1).broken, 4);
  EXPECT_EQ(read_raw(dir / "m"), object + text);
  write_raw(dir / "m", text + text);  // no steps: nothing is beyond
  truncate_after_step(dir / "m", 1);
  EXPECT_EQ(read_raw(dir / "m"), text + text);
  // Something else than metrics: nothing of it goes.
  for (const std::string& other : {broken + object, std::string("notes\n"), std::string("notes")}) {
    write_raw(dir / "m", other);
    EXPECT_TRUE(contains(error_of([&] { truncate_after_step(dir / "m", 1); }), "line 1 is no JSON object"));
    EXPECT_EQ(read_raw(dir / "m"), other);
  }
}

}  // namespace
}  // namespace mw::test
