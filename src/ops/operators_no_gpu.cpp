#include "ops/operators.h"

namespace mw {

const Operators& gpu_operators() {
  fail(Exit::unsupported, "this build has no GPU operators",
       "configure with --preset cuda-sm90 or hip-gfx90a and build again, or set train.device = \"cpu\"");
}

}  // namespace mw
