#include <zlib.h>

#include <new>

#include "formats/io/decoder.h"

namespace mw {
namespace {

constexpr int kGzip = 16;  // to be added to the bits of the window

class ZlibDecoder final : public Decoder {
 public:
  ZlibDecoder() {
    if (inflateInit2(&stream_, MAX_WBITS + kGzip) != Z_OK) throw std::bad_alloc();
  }
  ~ZlibDecoder() override { inflateEnd(&stream_); }
  ZlibDecoder(const ZlibDecoder&) = delete;
  ZlibDecoder& operator=(const ZlibDecoder&) = delete;

  Result decode(std::span<const char>& from, std::span<char>& to) override {
    if (ended_) inflateReset(&stream_);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(from.data()));
    stream_.avail_in = static_cast<uInt>(from.size());
    stream_.next_out = reinterpret_cast<Bytef*>(to.data());
    stream_.avail_out = static_cast<uInt>(to.size());
    const int code = inflate(&stream_, Z_NO_FLUSH);
    from = from.last(stream_.avail_in);
    to = to.last(stream_.avail_out);
    ended_ = code == Z_STREAM_END;
    // Z_BUF_ERROR: there was nothing to read or write.
    if (code == Z_OK || code == Z_BUF_ERROR || ended_) return {.in_frame = !ended_};
    return {.error = stream_.msg == nullptr ? zError(code) : stream_.msg};
  }

 private:
  z_stream stream_{};
  bool ended_ = false;  // the last frame
};

}  // namespace

std::unique_ptr<Decoder> make_zlib_decoder() { return std::make_unique<ZlibDecoder>(); }

}  // namespace mw
