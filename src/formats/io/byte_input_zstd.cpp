#include <zstd.h>

#include <vector>

#include "base/error.h"
#include "formats/io/byte_input.h"

namespace mw {
namespace {

// The largest window of `zstd --long`; a file that asks for more memory is refused.
constexpr int kLargestWindowLog = 27;

struct FreeStream {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

class ZstdInput final : public ByteInput {
 public:
  explicit ZstdInput(const std::string& path)
      : path_(path), file_(open_plain_input(path)), stream_(ZSTD_createDStream()), buffer_(ZSTD_DStreamInSize()) {
    if (stream_ == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kLargestWindowLog);
  }

  size_t read(std::span<char> out) override {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos == 0 && to.size > 0) {
      if (from_.pos == from_.size && !full_) {
        from_ = {buffer_.data(), file_->read(buffer_), 0};
        if (from_.size == 0) {
          if (in_frame_)
            fail(Exit::data, fmt::format("{}: the compressed file ends in the middle of a frame", path_),
                 "the file is truncated: download or compress it again");
          return 0;
        }
      }
      const size_t left = ZSTD_decompressStream(stream_.get(), &to, &from_);
      if (ZSTD_isError(left) != 0)
        fail(Exit::data, fmt::format("{}: not valid zstd data: {}", path_, ZSTD_getErrorName(left)),
             "the file is damaged: download or compress it again");
      in_frame_ = left != 0;
      full_ = to.pos == to.size && in_frame_;  // more may come out without more going in
    }
    return to.pos;
  }
  int64_t consumed() const override { return file_->consumed(); }

 private:
  std::string path_;
  std::unique_ptr<ByteInput> file_;
  std::unique_ptr<ZSTD_DStream, FreeStream> stream_;
  std::vector<char> buffer_;
  ZSTD_inBuffer from_{nullptr, 0, 0};
  bool in_frame_ = false, full_ = false;
};

}  // namespace

std::unique_ptr<ByteInput> open_zstd_input(const std::string& path) { return std::make_unique<ZstdInput>(path); }

}  // namespace mw
