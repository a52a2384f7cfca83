#include "formats/report/event_file.h"

#include "formats/helpers.h"
#include "formats/io/crc32.h"

namespace mw::test {
namespace {

std::string only_file(const std::string& folder) {
  std::string found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) found = entry.path().native();
  return found;
}

TEST(Crc32c, EqualsTheCheckValueOfTheStandard) {
  EXPECT_EQ(crc32c(as_span("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(EventFile, RecordsHaveLengthAndScalars) {
  const ScratchDir folder;
  {
    EventFileWriter writer(folder / "a/b", 7);
    writer.write(8, std::vector<Scalar>{{"x/y", 0.5}});
  }
  const std::string bytes = read_raw(only_file(folder / "a/b"));
  std::vector<std::string> messages;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    ASSERT_LE(at + 16, bytes.size());
    std::memcpy(&length, bytes.data() + at, 8);
    ASSERT_LE(at + 16 + length, bytes.size());
    messages.push_back(bytes.substr(at + 12, length));
    at += 16 + length;
  }
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_TRUE(
      messages[0].ends_with("\x1a\x0d"
                            "brain.Event:2"));
  EXPECT_TRUE(messages[1].ends_with(std::string("\x10\x08\x3a\x02\x08\x01")));  // step 8, session start
  EXPECT_TRUE(messages[2].ends_with(std::string("\x10\x08\x2a\x0c\x0a\x0a\x0a\x03x/y\x15\x00\x00\x00\x3f", 16)));
}

TEST(EventFile, TwoWritersHaveTwoFilesAndAFolderMustBeWritable) {
  const ScratchDir folder;
  const EventFileWriter first(folder.path(), 0), second(folder.path(), 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
  write_raw(folder / "file", "x");
  EXPECT_TRUE(contains(error_of([&] { EventFileWriter(folder / "file", 0); }), "file/events"));
}

}  // namespace
}  // namespace mw::test
