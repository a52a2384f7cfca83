#include <zstd.h>

#include <new>

#include "formats/io/decoder.h"

namespace mw {
namespace {

// The largest window of `zstd --long`; a file that asks for more memory is refused.
constexpr int kLargestWindowLog = 27;

struct FreeStream {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

class ZstdDecoder final : public Decoder {
 public:
  ZstdDecoder() : stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kLargestWindowLog);
  }

  Result decode(std::span<const char>& from, std::span<char>& to) override {
    ZSTD_inBuffer in{from.data(), from.size(), 0};
    ZSTD_outBuffer out{to.data(), to.size(), 0};
    const size_t left = ZSTD_decompressStream(stream_.get(), &out, &in);
    from = from.subspan(in.pos);
    to = to.subspan(out.pos);
    if (ZSTD_isError(left) != 0) return {.error = ZSTD_getErrorName(left)};
    return {.in_frame = left != 0};
  }

 private:
  std::unique_ptr<ZSTD_DStream, FreeStream> stream_;
};

}  // namespace

std::unique_ptr<Decoder> make_zstd_decoder() { return std::make_unique<ZstdDecoder>(); }

}  // namespace mw
