#include "ops/gpu/grouped.h"

namespace mw::gpu {

const char* tensor_core_instructions() { return ""; }
bool multiply_on_tensor_cores(Stream&, ProductKind, const SortedRows&, std::span<const int64_t>,
                              std::span<const Weight>, const SortedRows&, Store) {
  return false;
}
bool fits_tensor_cores(const SortedRows&, std::span<const Weight>, const SortedRows&) { return false; }
bool accumulate_on_tensor_cores(Stream&, const SortedRows&, const SortedRows&, std::span<const int64_t>, TensorView) {
  return false;
}

}  // namespace mw::gpu
