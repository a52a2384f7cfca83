#include "ops/cpu/tile_matmul.h"

namespace mw::cpu {

const TileUnit* amx_unit() { return nullptr; }

}  // namespace mw::cpu
