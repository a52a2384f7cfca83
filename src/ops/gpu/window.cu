#include "ops/window.h"

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"

namespace mw::gpu {
namespace {

struct FirstKey {
  const int32_t* starts;  // may be null
  int32_t* first;
  int64_t seq_len, window, past;
  __device__ void operator()(int64_t t) const {
    const int64_t start = starts == nullptr ? 0 : starts[t], seen = past + t % seq_len - window + 1;
    first[t] = static_cast<int32_t>(seen > start ? seen : start);
  }
};

}  // namespace

void first_keys_of_window(Stream& stream, int64_t seq_len, int64_t window, TensorView start_T, TensorView first_T,
                          int64_t past) {
  const int32_t* starts = start_T.data == nullptr ? nullptr : start_T.as<int32_t>();
  for_each(stream, first_T.numel(), FirstKey{starts, first_T.as<int32_t>(), seq_len, window, past});
}

}  // namespace mw::gpu
