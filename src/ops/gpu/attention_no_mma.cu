#include "ops/gpu/attention_mma.h"

namespace mw::gpu {

bool tensor_cores_take(const AttentionShape&) { return false; }
void attention_on_tensor_cores(Stream&, const AttentionShape&, TensorView, TensorView, TensorView, TensorView,
                               TensorView, TensorView) {
  MW_CHECK(false, "attention on tensor cores is not in this build");
}
void attention_gradients_on_tensor_cores(Stream&, const AttentionShape&, const attention_detail::Operands<bf16>&) {
  MW_CHECK(false, "attention on tensor cores is not in this build");
}

}  // namespace mw::gpu
