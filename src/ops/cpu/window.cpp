#include "ops/window.h"

#include "ops/cpu/loops.h"

namespace mw::cpu {

void first_keys_of_window(Stream& stream, int64_t seq_len, int64_t window, TensorView start_T, TensorView first_T,
                          int64_t past) {
  const int32_t* starts = start_T.data == nullptr ? nullptr : start_T.as<int32_t>();
  int32_t* first = first_T.as<int32_t>();
  for_blocks(stream, first_T.numel(), 4096, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t start = starts == nullptr ? 0 : starts[t];
      first[t] = static_cast<int32_t>(std::max(past + t % seq_len - window + 1, start));
    }
  });
}

}  // namespace mw::cpu
