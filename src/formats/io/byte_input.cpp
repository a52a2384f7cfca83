#include "formats/io/byte_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

class PlainInput final : public ByteInput {
 public:
  explicit PlainInput(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) fail_read();
  }
  ~PlainInput() override { ::close(fd_); }
  PlainInput(const PlainInput&) = delete;
  PlainInput& operator=(const PlainInput&) = delete;

  size_t read(std::span<char> out) override {
    ssize_t got = -1;
    do got = ::read(fd_, out.data(), out.size());
    while (got < 0 && errno == EINTR);
    if (got < 0) fail_read();
    consumed_ += got;
    return static_cast<size_t>(got);
  }
  int64_t consumed() const override { return consumed_; }

 private:
  [[noreturn]] void fail_read() const {
    fail(Exit::data, fmt::format("cannot read {}: {}", path_, std::strerror(errno)),
         "check the path and its permissions");
  }

  std::string path_;
  int fd_;
  int64_t consumed_ = 0;
};

}  // namespace

std::unique_ptr<ByteInput> open_plain_input(const std::string& path) { return std::make_unique<PlainInput>(path); }

std::unique_ptr<ByteInput> open_byte_input(const std::string& path) {
  return has_suffix(path, ".zst") ? open_zstd_input(path) : open_plain_input(path);
}

}  // namespace mw
