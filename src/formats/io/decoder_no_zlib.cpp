#include "formats/io/decoder.h"

namespace mw {

std::unique_ptr<Decoder> make_zlib_decoder() { return nullptr; }

}  // namespace mw
