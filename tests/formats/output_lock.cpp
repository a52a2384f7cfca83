#include "formats/io/output_lock.h"

#include <optional>

#include "formats/helpers.h"

namespace mw::test {
namespace {

TEST(OutputLock, IsHeldByOneAtATime) {
  const ScratchDir folder;
  const std::string path = folder / "x.lock";
  write_raw(path, "what a process that was killed left, longer than what the next one writes into this file by far");
  std::optional<OutputLock> first(path);
  for (int i = 0; i < 2; ++i) {  // being refused changes nothing
    const std::string error = error_of([&] { OutputLock second(path); });
    EXPECT_TRUE(contains(error, fmt::format("x.lock is locked: process {} on ", ::getpid()))) << error;
    EXPECT_FALSE(contains(error, "left")) << error;
  }
  const OutputLock other(folder / "y.lock");
  first.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  const OutputLock next(path);
  EXPECT_TRUE(std::filesystem::exists(path));
}

// As another host leaves it, whose locks this one's file system tells of.
TEST(OutputLock, TellsOtherHosts) {
  const ScratchDir folder;
  const std::string path = folder / "x.lock";
  EXPECT_FALSE(is_held_elsewhere(path));
  const OutputLock lock(path);
  EXPECT_FALSE(is_held_elsewhere(path));
  write_raw(path, "process 12 on another-host");
  EXPECT_TRUE(is_held_elsewhere(path));
}

// Whoever takes the name afterwards keeps it.
TEST(OutputLock, IsLostWithItsFile) {
  const ScratchDir folder;
  const std::string path = folder / "x.lock";
  auto first = std::make_unique<OutputLock>(path);
  EXPECT_FALSE(first->is_lost());
  std::filesystem::remove(path);
  EXPECT_TRUE(first->is_lost());
  const OutputLock next(path);
  EXPECT_TRUE(first->is_lost());
  first.reset();
  EXPECT_FALSE(next.is_lost());
}

TEST(OutputLock, NamesWhatTheSystemRefuses) {
  const ScratchDir folder;
  EXPECT_TRUE(contains(error_of([&] { OutputLock lock(folder / "absent/x.lock"); }), "absent/x.lock: No such file"));
}

}  // namespace
}  // namespace mw::test
