#include "formats/io/byte_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "formats/io/decoder.h"

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

constexpr size_t kPiece = 1 << 17;

class CompressedInput final : public ByteInput {
 public:
  CompressedInput(const std::string& path, const Compression& compression)
      : path_(path),
        compression_(compression),
        file_(std::make_unique<PlainInput>(path)),
        decoder_(compression.make_decoder()),
        buffer_(kPiece) {
    if (decoder_ == nullptr)
      fail(Exit::unsupported, fmt::format("{}: this build cannot read {} files", path, compression.suffix),
           fmt::format("install {} and build again, or decompress the file with `{} -d`", compression.package,
                       compression.name));
  }

  size_t read(std::span<char> out) override {
    std::span<char> to = out;
    while (to.size() == out.size() && !out.empty()) {
      if (from_.empty() && !full_) {
        from_ = std::span(buffer_).first(file_->read(buffer_));
        if (from_.empty()) {
          if (in_frame_)
            fail(Exit::data,
                 fmt::format("{}: the {} data ends too early, at byte {}", path_, compression_.name, place()),
                 "the file is truncated: download or compress it again");
          return 0;
        }
      }
      const Decoder::Result result = decoder_->decode(from_, to);
      if (result.error != nullptr)
        fail(Exit::data,
             fmt::format("{}: not valid {} data before byte {}: {}", path_, compression_.name, place(), result.error),
             "the file is damaged: download or compress it again");
      in_frame_ = result.in_frame;
      full_ = to.empty() && in_frame_;
    }
    return out.size() - to.size();
  }
  int64_t consumed() const override { return file_->consumed(); }

 private:
  int64_t place() const { return file_->consumed() - std::ssize(from_); }

  std::string path_;
  const Compression& compression_;
  std::unique_ptr<ByteInput> file_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<char> buffer_;
  std::span<const char> from_;            // of buffer_: read and not yet decompressed
  bool in_frame_ = false, full_ = false;  // full_: more may come out without more going in
};

constexpr Compression kCompressions[] = {
    {".zst", "zstd", "libzstd-dev", make_zstd_decoder},
    {".gz", "gzip", "zlib1g-dev", make_zlib_decoder},
};

}  // namespace

const Compression* find_compression(std::string_view path) {
  for (const Compression& compression : kCompressions)
    if (path.ends_with(compression.suffix)) return &compression;
  return nullptr;
}

std::unique_ptr<ByteInput> open_byte_input(const std::string& path) {
  const Compression* compression = find_compression(path);
  if (compression == nullptr) return std::make_unique<PlainInput>(path);
  return std::make_unique<CompressedInput>(path, *compression);
}

}  // namespace mw
