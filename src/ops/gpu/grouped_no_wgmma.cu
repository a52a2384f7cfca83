#include "ops/gpu/grouped.h"

namespace mw::gpu {

bool multiply_by_warpgroups(Stream&, ProductKind, const SortedRows&, std::span<const int64_t>, std::span<const Weight>,
                            const SortedRows&, Store) {
  return false;
}
bool fits_warpgroups(Stream&, const SortedRows&, std::span<const Weight>, const SortedRows&) { return false; }
bool multiply_weights_by_warpgroups(Stream&, const SortedRows&, const SortedRows&, std::span<const int64_t>, TensorView,
                                    GradientStore) {
  return false;
}
bool differentiate_by_warpgroups(Stream&, const SortedRows&, const SortedRows&, std::span<const int64_t>,
                                 std::span<const Weight>, const SortedRows&, TensorView, GradientStore) {
  return false;
}

}  // namespace mw::gpu
