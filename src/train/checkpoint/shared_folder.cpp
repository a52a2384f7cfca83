#include "train/checkpoint/shared_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/host.h"

namespace mw {
namespace {

// A file with a name that no node has looked up before, so that none remembers that it is missing.
class Mark {
 public:
  explicit Mark(const std::string& dir)
      : name_(
            fmt::format(".seen-by-all-{}-{}", ::getpid(), std::chrono::system_clock::now().time_since_epoch().count())),
        path_(dir + "/" + name_) {
    if (!std::ofstream(path_))
      fail(Exit::checkpoint, fmt::format("cannot create {}", path_), "check that folder and its permissions");
  }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() {
    std::error_code gone_already;
    std::filesystem::remove(path_, gone_already);
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_, path_;
};

bool appears(const std::string& path, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!path_exists(path, Exit::checkpoint)) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return true;
}

}  // namespace

void check_shared_folder(Comm& world, const std::string& dir, std::chrono::milliseconds patience) {
  if (world.size() == 1) return;
  std::optional<Mark> mark;
  if (world.rank() == 0) mark.emplace(dir);
  const std::string name = broadcast_text(world, mark ? mark->name() : "", 0);
  int64_t blind = appears(dir + "/" + name, patience) ? 0 : world.rank();
  world.all_reduce_max(std::span(&blind, 1));
  if (blind == 0) return;
  const std::string first = broadcast_text(world, host_name(), 0),
                    host = broadcast_text(world, host_name(), static_cast<int>(blind));
  fail(Exit::checkpoint,
       fmt::format("rank {} on {} does not see what rank 0 on {} writes into checkpoint.dir = \"{}\"", blind, host,
                   first, dir),
       "name a folder that all nodes share, by its full path: every rank writes its part of a checkpoint there");
}

}  // namespace mw
