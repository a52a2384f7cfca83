#include "base/error.h"
#include "formats/io/byte_input.h"

namespace mw {

std::unique_ptr<ByteInput> open_zstd_input(const std::string& path) {
  fail(Exit::unsupported, fmt::format("{}: this build cannot read .zst files", path),
       "install libzstd-dev and build again, or decompress the file with `zstd -d`");
}

}  // namespace mw
