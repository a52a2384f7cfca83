// Grouped products of bf16 on Hopper's warpgroup instructions: see grouped_wgmma.h.
#include "ops/gpu/grouped_products.h"

#include <cstdio>

namespace mw::gpu {
namespace {

// As many for any kernel of pairs: each block takes the memory of a processor.
int count_pairs() {
  using AnyProduct = RowsProduct<Along::depth, bf16, TileShape<kWideTile, true>, true, Results::boxes>;
  const auto* const kernel = reinterpret_cast<const void*>(pairs_kernel<AnyProduct, NoMeter>);
  int pairs = 0;
  check(allow_shared_bytes(kernel, kSharedBytes<AnyProduct>), "asking for shared memory");
  check(count_clusters(kernel, kPair, kBlockThreads, kSharedBytes<AnyProduct>, &pairs), "asking for pairs of blocks");
  return pairs;
}

struct HopperState : StreamState {
  bool known = false, warned = false;
  Processors processors;
};

}  // namespace

const Processors& find_processors(Stream& stream) {
  auto& state = stream.state<HopperState>();
  if (!state.known) {
    DeviceProperties p;
    check(read_properties(stream.device().index, &p), "reading the device's properties");
    state.known = true;
    if (p.major == 9 && p.minor == 0 && can_describe_matrices()) state.processors = {p.processors, count_pairs()};
  }
  return state.processors;
}

bool warn_unless(Stream& stream, bool done) {
  bool& warned = stream.state<HopperState>().warned;
  if (!done && !warned)
    std::fputs("warning: the driver refuses tensor maps: expert and router products take slower kernels\n", stderr);
  warned = warned || !done;
  return done;
}

bool fits_warpgroups(Stream& stream, const SortedRows& x, std::span<const Weight> weights, const SortedRows& y) {
  Matrices matrices;
  return find_operands(stream, x, weights, y, &matrices);
}

bool multiply_by_warpgroups(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                            std::span<const Weight> weights, const SortedRows& y, Store store) {
  return multiply_metered(stream, kind, x, offsets, weights, y, store, NoMeter());
}

bool multiply_weights_by_warpgroups(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                    std::span<const int64_t> offsets, TensorView dw_eNK, GradientStore to) {
  return multiply_weights_metered(stream, dy, x, offsets, dw_eNK, to, NoMeter());
}

bool differentiate_by_warpgroups(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                 std::span<const int64_t> offsets, std::span<const Weight> weights,
                                 const SortedRows& dx, TensorView dw_eNK, GradientStore to) {
  return differentiate_metered(stream, dy, x, offsets, weights, dx, dw_eNK, to, NoMeter(), NoMeter());
}

}  // namespace mw::gpu
