#include "formats/io/decoder.h"

namespace mw {

std::unique_ptr<Decoder> make_zstd_decoder() { return nullptr; }

}  // namespace mw
