#include "ops/gpu/attention_wgmma.h"

namespace mw::gpu {

bool warpgroups_take(Stream&, const AttentionShape&) { return false; }
bool warpgroups_lead(Stream&, const AttentionShape&) { return false; }
void attention_by_warpgroups(Stream&, const AttentionShape&, TensorView, TensorView, TensorView, TensorView, TensorView,
                             TensorView) {
  MW_CHECK(false, "attention by warpgroups is not in this build");
}
void attention_gradients_by_warpgroups(Stream&, const AttentionShape&, const attention_detail::Operands<bf16>&) {
  MW_CHECK(false, "attention by warpgroups is not in this build");
}

}  // namespace mw::gpu
