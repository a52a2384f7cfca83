#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "formats/helpers.h"

namespace mw::test {
namespace {

std::string text_of(const MappedFile& file) {
  const auto bytes = file.bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

TEST(MappedFile, ReadsWholeFiles) {
  const ScratchDir dir;
  const std::string text("with\0zero\n", 10);
  write_raw(dir / "a", text);
  write_raw(dir / "empty", "");
  EXPECT_EQ(text_of(MappedFile(dir / "a")), text);
  EXPECT_TRUE(MappedFile(dir / "empty").bytes().empty());
  EXPECT_TRUE(MappedFile().bytes().empty());
  EXPECT_EQ(read_text_file(dir / "a"), text);
}

TEST(MappedFile, Moves) {
  const ScratchDir dir;
  write_raw(dir / "a", "first");
  write_raw(dir / "b", "second");
  MappedFile a(dir / "a"), b(dir / "b");
  MappedFile c(std::move(a));
  EXPECT_EQ(text_of(c), "first");
  EXPECT_EQ(c.path(), dir / "a");
  c = std::move(b);
  EXPECT_EQ(text_of(c), "second");
  MappedFile& same = c;
  c = std::move(same);
  EXPECT_EQ(text_of(c), "second");
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const ScratchDir dir;
  EXPECT_TRUE(contains(error_of([&] { MappedFile(dir / "absent"); }), "absent"));
  EXPECT_TRUE(contains(error_of([&] { MappedFile(dir.path()); }), "not a regular file"));
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(contains(error_of([&] { MappedFile(dir / "pipe"); }), "not a regular file"));  // and does not hang
  EXPECT_TRUE(contains(error_of([&] { MappedFile("/dev/null"); }), "not a regular file"));
  EXPECT_TRUE(contains(error_of([&] { MappedFile(""); }), "cannot open"));
  EXPECT_TRUE(contains(error_of([&] { MappedFile(dir / "absent/deeper"); }), "absent/deeper"));
  std::filesystem::create_symlink("loop", dir / "loop");
  EXPECT_TRUE(contains(error_of([&] { MappedFile(dir / "loop"); }), "loop"));
}

TEST(TextFile, HasALimit) {
  const ScratchDir dir;
  write_raw(dir / "a", "12345");
  EXPECT_EQ(read_text_file(dir / "a", 5), "12345");
  EXPECT_TRUE(contains(error_of([&] { read_text_file(dir / "a", 4); }), "5 bytes"));
  // A sparse file larger than memory is refused without reading it.
  std::ofstream(dir / "huge") << "x";
  std::filesystem::resize_file(dir / "huge", uintmax_t{1} << 42);
  EXPECT_TRUE(contains(error_of([&] { read_text_file(dir / "huge"); }), "huge"));
}

// They tell no true sizes, and cannot be mapped.
TEST(TextFile, ReadsWhatTheKernelTells) {
  EXPECT_EQ(read_text_file("/proc/sys/kernel/random/boot_id", 64).size(), 37u);
  EXPECT_TRUE(contains(read_text_file("/proc/self/status"), "VmRSS"));
  EXPECT_FALSE(read_text_file("/sys/devices/system/cpu/online", 4096).empty());
}

TEST(TextFile, IsWrittenAtOnce) {
  const ScratchDir dir;
  const std::string path = dir / "a.json";
  write_text_file_atomically(path, "old");
  write_text_file_atomically(path, "new and longer");
  EXPECT_EQ(read_raw(path), "new and longer");
  write_text_file_atomically(path, "");
  EXPECT_EQ(read_raw(path), "");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(TextFile, WriteErrorsLeaveTheOldFile) {
  const ScratchDir dir;
  EXPECT_TRUE(contains(error_of([&] { write_text_file_atomically(dir / "absent/a", "x"); }), "absent/a"));
  std::filesystem::create_directory(dir / "folder");
  EXPECT_TRUE(contains(error_of([&] { write_text_file_atomically(dir / "folder", "x"); }), "folder"));
  EXPECT_TRUE(std::filesystem::is_directory(dir / "folder"));
  write_raw(dir / "a", "kept");
  std::filesystem::create_directory(dir / "a.tmp");
  error_of([&] { write_text_file_atomically(dir / "a", "x"); });
  EXPECT_EQ(read_raw(dir / "a"), "kept");
  std::filesystem::create_symlink("/dev/full", dir / "full.tmp");
  EXPECT_TRUE(contains(error_of([&] { write_text_file_atomically(dir / "full", "x"); }), "cannot write"));
  EXPECT_FALSE(std::filesystem::exists(dir / "full"));
}

// A rename would put a file in the place of a device, a pipe or a link.
TEST(OutputText, WritesToWhatIsThere) {
  const ScratchDir dir;
  write_output_text(dir / "new/a", "first");
  std::filesystem::create_symlink("a", dir / "new/link");
  write_output_text(dir / "new/link", "second");
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "new/link"));
  EXPECT_EQ(read_text_file(dir / "new/a"), "second");

  std::filesystem::create_symlink("absent", dir / "new/dangling");
  write_output_text(dir / "new/dangling", "x");
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "new/dangling"));
  EXPECT_EQ(read_text_file(dir / "new/absent"), "x");

  const std::string pipe = dir / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write_output_text(pipe, "third");
  char got[8] = {};
  EXPECT_EQ(::read(reader, got, sizeof got), 5);
  EXPECT_EQ(std::string(got), "third");
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));

  std::filesystem::create_symlink("/dev/full", dir / "full");  // not the device itself, which a mistake would replace
  EXPECT_TRUE(contains(error_of([&] { write_output_text(dir / "full", "x"); }), "cannot write"));
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "full"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  for (const char* folder : {"new", "new/", "absent/"})
    EXPECT_TRUE(contains(error_of([&] { write_output_text(dir / folder, "x"); }), "it is a folder")) << folder;
  EXPECT_FALSE(std::filesystem::exists(dir / "new.tmp"));
}

TEST(OutputText, IsCheckedAsItIsWritten) {
  const ScratchDir dir;
  check_output(dir / "new/a");
  EXPECT_TRUE(std::filesystem::is_empty(dir / "new"));
  write_output_text(dir / "new/a", "kept");
  check_output(dir / "new/a");
  EXPECT_EQ(read_text_file(dir / "new/a"), "kept");
  EXPECT_FALSE(std::filesystem::exists(dir / "new/a.tmp"));
  const std::string pipe = dir / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  check_output(pipe);
  check_output("/dev/null");
  for (const std::string& path : {dir / "new", dir / "new/a/b", dir / "absent/", dir / std::string(300, 'x')}) {
    const std::string error = error_of([&] { check_output(path); });
    EXPECT_NE(error, "") << path;
    EXPECT_EQ(error, error_of([&] { write_output_text(path, "x"); }));
  }
}

TEST(TextFile, WritesInTheWorkingDirectory) {
  const ScratchDir dir;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  write_text_file_atomically("plain", "x");
  std::filesystem::current_path(before);
  EXPECT_EQ(read_raw(dir / "plain"), "x");
}

TEST(PathExists, TellsOrSaysWhyNot) {
  const ScratchDir dir;
  write_raw(dir / "a", "x");
  EXPECT_TRUE(path_exists(dir / "a"));
  EXPECT_FALSE(path_exists(dir / "b"));
  EXPECT_FALSE(path_exists(dir / "a/b"));
  EXPECT_TRUE(contains(error_of([&] { path_exists(dir / std::string(300, 'x')); }), "xxx"));
  error_of([&] { path_exists(dir / std::string(300, 'x'), Exit::checkpoint); }, Exit::checkpoint);
}

TEST(PlainFileName, StaysInItsFolder) {
  for (const char* name : {"a", "rank-00000.safetensors", "a b", "a.b.c"})
    EXPECT_TRUE(is_plain_file_name(name)) << name;
  for (const char* name : {"", ".", "..", ".hidden", "/etc/passwd", "a/b", "../x", "a..b"})
    EXPECT_FALSE(is_plain_file_name(name)) << name;
  EXPECT_FALSE(is_plain_file_name(std::string_view("a\0b", 3)));
}

TEST(SyncPath, NamesThePath) {
  const ScratchDir dir;
  sync_path(dir.path());
  EXPECT_TRUE(contains(error_of([&] { sync_path(dir / "absent"); }), "absent"));
}

}  // namespace
}  // namespace mw::test
